//! Workspaces of runs: what a run sees of a project, and how its work comes back.
//!
//! A directory is [inspected](mod@inspect); a `read` run gets a shared read-only [snapshot] of the
//! working state, a `workspace-write` run a [private clone](mod@clone) with a repository of its own.
//! Afterwards [seal] turns what the agent left into git objects in a store of ours, [diff] shows
//! it, [export] puts one commit into the user's repository or writes a patch.
//!
//! Three rules hold everywhere:
//!
//! * Nothing the agent wrote is interpreted by a program on the host: its tree is read through
//!   descriptors, beneath one directory, and its `.git` is never opened by git (S7).
//! * git runs in the user's repository only with its hooks, filters, monitors and helpers out of
//!   reach ([git]), and never to compare or convert file content there.
//! * The user's index, configuration and refs are never written, except for one new ref by export.
//!
//! This crate never decides policy, never reads a clock and never deletes a workspace. All its work
//! happens with the rights of the process that calls it: the supervisor starts a [worker] as the
//! client's own uid (S6).
#![forbid(unsafe_code)]

mod beneath;
pub mod clone;
mod clone_files;
mod clone_git;
mod copy;
pub mod diff;
pub mod export;
mod fail;
pub mod filter;
pub mod flags;
mod git;
mod gitname;
pub mod handover;
pub mod history;
mod holes;
pub mod identity;
mod ids;
pub mod inspect;
mod list;
mod pack;
pub mod path;
pub mod progress;
mod room;
pub mod seal;
mod seal_walk;
mod settle;
pub mod snapshot;
mod staging;
mod statcache;
mod store;
mod tree;
pub mod unchanged;
pub mod worker;

pub use clone::{Base, Clone, CloneOptions, clone_private};
pub use diff::{DiffFile, DiffText, diff, diff_json};
pub use export::{Packed, export_patch, import_ref, knows, pack_export, read_ref};
pub use filter::Filter;
pub use handover::{HandOver, give_to};
pub use history::History;
pub use identity::{Identity, identity};
pub use inspect::{Source, SourceKind, inspect};
pub use path::RawPath;
pub use progress::{NoProgress, Progress, Report};
pub use seal::{Changes, Refused, SealOptions, Sealed, seal};
pub use snapshot::{Limits, Skipped, Snapshot, SnapshotOptions, snapshot};
pub use staging::sweep_staging;
pub use unchanged::is_unchanged;
