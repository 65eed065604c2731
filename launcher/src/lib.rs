//! Sandbox plan and launch: what an agent sees is compiled to a [`plan`], tried by a [`probe`], and
//! made by the launcher [`helper`], the one process that holds what privilege there is. The
//! supervisor talks to it through [`client`].
//!
//! This crate executes; it never decides policy. `unsafe` is in `sys` only.

pub mod client;
pub mod helper;
pub mod packet;
pub mod plan;
pub mod probe;
pub mod protocol;
pub mod seccomp;
mod spawn;
mod sys;
