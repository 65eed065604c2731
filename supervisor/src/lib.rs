//! The supervisor of untrusted agent runs: driver, configuration, control API, command line,
//! receipts. Policy is decided by `atenea-core`; this crate carries it out.
#![forbid(unsafe_code)]

// It breaks a promise on purpose: nobody can build a program with it that others might run.
#[cfg(all(feature = "broken", not(debug_assertions)))]
compile_error!("the feature `broken` is for debug builds of scripts/broken only");

pub mod api;
pub mod cli;
pub mod clock;
pub mod config;
pub mod crash;
pub mod drill;
pub mod driver;
pub mod exit;
pub mod files;
pub mod journal_view;
pub mod layout;
pub mod log;
pub mod receipt;
pub mod server;
pub mod watched;
