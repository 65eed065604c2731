//! Vocabulary and pure state machine of `atenea-sup`.
//!
//! Holds what every other crate talks about (ids, money, codes, limits, manifest, events, effects)
//! and the two pure functions [`decide`](decide::decide) and [`apply`](apply::apply).
//!
//! This crate never does IO, never reads a clock, never draws a random number, never starts a
//! thread and never looks at the environment: time, ids and tokens are inputs. A tidy test checks
//! its dependencies and its source for that.
#![forbid(unsafe_code)]

pub mod apply;
pub mod approval;
pub mod code;
pub mod decide;
pub mod digest;
pub mod effect;
pub mod event;
pub mod ids;
pub mod input;
pub mod ledger;
pub mod limits;
pub mod manifest;
pub mod money;
pub mod refusal;
pub mod run;
pub mod size;
pub mod state;

pub use apply::apply;
pub use code::Code;
pub use decide::{Decision, can_wait, decide};
pub use digest::Digest;
pub use ids::{AccountName, BootId, Generation, IdempotencyKey, RunId, RunName, StepName};
pub use limits::{Limits, Profile};
pub use money::Nanos;
pub use refusal::Refusal;
pub use run::{Outcome, Phase, Run};
pub use state::{Settings, State};
