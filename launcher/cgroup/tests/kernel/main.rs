//! Real groups on the real kernel. Needs a writable cgroup with cpu, memory and pids; a host
//! without one fails these tests, it does not skip them.

#![expect(clippy::unwrap_used, reason = "tests; the lint only knows functions marked as tests")]

mod freeze;
mod limits;
mod removal;
mod support;
