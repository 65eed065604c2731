//! The broker's channel of a run: the token that makes a call this run's call, and the endpoint
//! inside the run that answers it.
//!
//! [`TokenTable`] holds hashes of the tokens of one supervisor life; [`Endpoint::bind`] serves the
//! listeners the launcher made inside the run. What a call may do comes from the supervisor's
//! record of the run the listener belongs to, never from what the guest says (T2). In this version
//! no tool and no model lane can be granted: those paths are refused with a code.
//!
//! It never writes or logs a token, a body, a query or a header value (E4), never follows a path
//! the guest names, never dials.
#![forbid(unsafe_code)]

mod accept;
pub mod denial;
pub mod endpoint;
pub mod limits;
mod service;
mod stall;
pub mod table;
pub mod token;

pub use denial::{Denial, DenialSink};
pub use endpoint::{BindError, Endpoint, EndpointHandle, Listeners};
pub use limits::{BrokerLimits, LIMITS};
pub use service::{Question, Record};
pub use table::{MintError, TokenError, TokenTable};
pub use token::{Token, TokenHash};
