//! Digest of a document: BLAKE3 over its RFC 8785 canonical JSON.

use serde::Serialize;

use crate::Digest;

use super::model::Manifest;
use super::sealed::Sealed;

/// Canonical JSON of a type of this crate.
fn canonical<T: Serialize>(value: &T) -> String {
    // Every type that comes here has text keys, finite numbers and no failing serialiser, which
    // are the only ways canonical JSON can fail.
    serde_jcs::to_string(value).unwrap_or_else(|error| unreachable!("{error}"))
}

impl Manifest {
    /// RFC 8785 JSON of what was written: keys that were left out stay out, quantities have their
    /// canonical text, sets are sorted.
    pub fn canonical_json(&self) -> String {
        canonical(self)
    }

    /// What an approval is bound to (S3): equal for TOML and JSON of the same content.
    pub fn digest(&self) -> Digest {
        Digest::of(self.canonical_json().as_bytes())
    }
}

impl Sealed {
    /// RFC 8785 JSON of the sealed manifest.
    pub fn canonical_json(&self) -> String {
        canonical(self)
    }

    /// The sealed manifest's own digest.
    pub fn digest(&self) -> Digest {
        Digest::of(self.canonical_json().as_bytes())
    }
}
