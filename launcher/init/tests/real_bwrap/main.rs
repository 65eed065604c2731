//! `atenea-init` as process 1 of real bubblewrap sandboxes: built statically, started by hand with the
//! launcher's seccomp program, as an ordinary user also when the tests run as root.
#![expect(clippy::unwrap_used, reason = "a test may stop at anything unexpected")]

mod harness;
mod lifecycle;
mod pid_one;
mod programs;
mod refusals;
mod self_test;
mod terminal;

// The launcher depends on this package, so its program is compiled in here by path.
#[expect(unreachable_pub, reason = "public in the crate it belongs to")]
#[path = "../../../src/seccomp/mod.rs"]
mod seccomp;
