//! The reaper on a real kernel: hostile trees, mounts, control groups, process identities.

#![expect(clippy::unwrap_used, reason = "tests; the lint only knows functions marked as tests")]

mod deletion;
mod groups;
mod identity;
mod leftovers;
mod support;
