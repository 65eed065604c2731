//! Append-only, hash-chained, group-committed record log on redb.
//!
//! Generic over the record: it stores `(kind, schema, payload)` and knows nothing of runs. An
//! acknowledged append is durable (J1), chained to everything before it (J2) and covered by an
//! anchor in a second file (J3); one process writes (J4); after a failed commit nothing more is
//! accepted (J5); snapshots are a cache (J6); every size and queue is bounded (J7).
//!
//! The format and its protocol are in `docs/journal-format.md`. This crate reads no clock and
//! depends on no other crate of this workspace and on no async runtime.
#![forbid(unsafe_code)]

mod anchor;
mod error;
mod frame;
mod fsio;
mod journal;
mod lock;
mod open;
mod options;
mod overlay;
mod payload;
mod queue;
mod records;
mod recover;
mod salvage;
mod snapshot;
mod space;
mod stats;
mod store;
mod verify;
mod writer;

pub use anchor::Anchor;
pub use error::JournalError;
pub use frame::{Frame, HEADER_LEN, Head, KIND_EPOCH, RecordHash};
pub use journal::{Journal, Opened};
pub use lock::{Holder, Phase};
pub use options::Options;
pub use payload::{DecodeError, EncodeError, decode, encode};
pub use queue::{Appended, NewRecord, Priority};
pub use records::{Record, Records};
pub use recover::{EpochMarker, Recovered, recover_accept_loss};
pub use snapshot::Snapshot;
pub use stats::{Stats, dump, stats};
pub use verify::{Damage, DamageKind, VerifyReport, verify};
