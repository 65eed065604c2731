//! Vocabulary and pure state machine of `atenea-sup`.
//!
//! Holds what every other crate talks about (ids, money, codes, limits, manifest, events, effects)
//! and the two pure functions [`decide`](decide::decide) and [`apply`](apply::apply).
//!
//! This crate never does IO, never reads a clock, never draws a random number, never starts a
//! thread and never looks at the environment: time, ids and tokens are inputs. A tidy test checks
//! its dependencies and its source for that.
#![forbid(unsafe_code)]

pub mod code;
pub mod digest;
pub mod ids;
pub mod limits;
pub mod money;
pub mod refusal;

pub use code::Code;
pub use digest::Digest;
pub use ids::{AccountName, BootId, Generation, IdempotencyKey, RunId, RunName};
pub use limits::{Limits, Profile};
pub use money::Nanos;
pub use refusal::Refusal;
