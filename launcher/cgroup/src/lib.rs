//! Control groups of `atenea-sup`: limits, kill, proof of emptiness, removal.
//!
//! Two layouts of the host behave the same: `unified` (pure v2) and `hybrid` (cpu, memory and pids
//! on v1 hierarchies, a v2 tree without them). Limits go where the controller is; kill, `populated`
//! and CPU time always use the v2 tree. A run therefore is a set of directories, one per hierarchy,
//! which [`RunGroup`] holds open and handles as one thing.
//!
//! This crate never climbs above the supervisor's own group, never touches an ancestor of it, never
//! mounts or unmounts a hierarchy, and never takes "could not read" for "nothing there".
//!
//! `cgroups-rs` writes the limit values and nothing else (see the head of `limits.rs`).
#![forbid(unsafe_code)]

mod base;
mod dir;
mod error;
mod events;
mod freeze;
mod group;
mod identity;
mod layout;
mod limits;
mod mountinfo;
mod name;
mod remove;
mod scan;
mod usage;

#[cfg(test)]
mod fake_tree_tests;

pub use base::Base;
pub use error::{Error, Result};
pub use events::{OomWatch, Wait};
pub use freeze::Frozen;
pub use group::RunGroup;
pub use identity::{GroupState, Identity, Place};
pub use layout::{Controller, Kind, Layout, needs_group};
pub use limits::Limits;
pub use mountinfo::{Mount, parse as parse_mountinfo};
pub use name::{INSTANCE_CHARS_MAX, RUN_CHARS_MAX};
pub use scan::{find_instances, remove_instance, scan};
pub use usage::Usage;
