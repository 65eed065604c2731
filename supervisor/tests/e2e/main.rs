//! The real program from end to end: each test starts its own supervisor on a state directory of its
//! own, looks at what comes out, and checks that nothing of its runs is left.
//!
//! Nothing sleeps here: every command is bounded by `timeout`, every wait is for an event.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod approvals;
mod bad_input;
mod boundary;
mod command_line;
mod control;
mod daemon;
mod delegated;
mod docs;
mod drills;
mod ends;
mod full_disk;
mod hostile;
mod http;
mod inside;
mod install;
mod manifests;
mod money;
mod old_journal;
mod ordinary_user;
mod preparing;
mod queue;
mod recovery;
mod relay;
mod repositories;
mod rights;
mod support;
mod workspace;
mod world;
