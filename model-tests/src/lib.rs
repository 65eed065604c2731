//! Model tests, crash matrix, tidy tests and generated documentation of `atenea-sup`.
//!
//! The model runs the real `decide` and `apply` against a simulated host, in memory and without a
//! clock, so that a crash can be put at every point. Nothing here ships.
#![forbid(unsafe_code)]

pub mod driver;
pub mod host;
pub mod pages;
pub mod tidy;
pub mod watch;
pub mod world;
