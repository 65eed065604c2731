//! Finds what dead runs left and removes it by idempotent steps.
//!
//! It looks and removes; it decides nothing. [`observe`] is called before anything is compared with
//! the journal, so that what is made later is never taken for a leftover; [`Observed::compare`] then
//! names what no run accounts for. The supervisor journals each step and calls the function for it;
//! every function may be called again after any crash (R2).
//!
//! Never: take "cannot read" for "nothing there", delete through a symbolic link or across a mount,
//! or delete a workspace without a [`Permission`] (C4).
#![forbid(unsafe_code)]

mod delete;
mod error;
mod groups;
mod identity;
mod observe;
mod part;
mod state;

/// The layout and groups that the functions here work on.
pub use atenea_cgroup::{Frozen, GroupState, Layout, Place, RunGroup, needs_group};
pub use delete::Removed;
pub use error::{Error, Result};
pub use groups::{Ended, kill_group, remove_group, remove_instances};
pub use identity::{Identity, Liveness, alive, boot_id};
pub use observe::{Leftover, Observed, RunDir, SeenGroup, observe, remove_leftover};
pub use part::{Part, Permission, remove_part, remove_run_dir};
pub use state::State;
