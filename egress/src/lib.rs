//! The network boundary of a run.
//!
//! A run's network namespace has only loopback. The launcher makes listeners inside it and hands
//! them over; [`Boundary::bind`] accepts on them, so the listener *is* the identity of the run.
//! This crate answers an explicit HTTP proxy, SOCKS5 and DNS, and refuses everything the run's
//! [`Policy`] does not grant with a stable code. In this version a policy grants nothing: there is
//! no dialler and no resolver in this crate, so a refusal cannot turn into a packet.
//!
//! It never dials, never resolves, never writes the journal itself: what was refused goes to a
//! [`DenialSink`] as counts.
#![forbid(unsafe_code)]

mod accept;
pub mod authority;
pub mod boundary;
pub mod denial;
pub mod dns;
mod dns_server;
pub mod head;
pub mod limits;
pub mod policy;
mod proxy;
mod socks;

pub use authority::{Authority, AuthorityError, Host, Name};
pub use boundary::{BindError, Boundary, BoundaryHandle, Listeners};
pub use denial::{Denial, DenialSink};
pub use limits::{BoundaryLimits, LIMITS};
pub use policy::{Policy, Verdict};
