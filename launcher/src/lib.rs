//! Placeholder head, replaced with the crate.
pub mod seccomp;
