//! The manifest: what a run may do, as a person wrote and approved it.
//!
//! Life of one: [`parse_bytes`] reads it and refuses what has no meaning, [`narrow`] applies
//! command-line options that may only take away, [`check`] refuses what the configuration or this
//! version does not allow and fills in defaults, [`Sealed`] binds it to one run. Each stage has a
//! type of its own; only a [`Checked`] one can be sealed.
//!
//! A grant is never ignored: what cannot be enforced is refused (S2), with the path of its key.

mod check;
mod digest;
mod explain;
mod forms;
mod model;
mod narrow;
mod parse;
mod sealed;
mod targets;
pub mod tree;
mod unsupported;

pub use check::{Ceilings, Checked, Grants, MaxLimits, check};
pub use explain::explain;
pub use forms::{ARGUMENT_BYTES_MAX, ARGV_MAX, ENTRIES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};
pub use model::{
    Approval, Budget, Command, DEFAULT_ACCOUNT, Deliver, Effect, History, LimitsTable, Llm,
    Manifest, Mount, Network, PrivateNetwork, Protocol, Runtime, Secret, Session, Tools,
    UnknownPrice, VERSION, Workspace,
};
pub use narrow::{Overrides, from_flags, narrow, parse_allow, parse_env, parse_mount};
pub use parse::{parse_bytes, parse_json, parse_toml};
pub use sealed::Sealed;
pub use targets::{is_plain_absolute, is_plain_relative, is_unsafe_source, is_within};

#[cfg(test)]
#[path = "manifest/tests.rs"]
mod tests;
