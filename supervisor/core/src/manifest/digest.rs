//! Digest of a document: BLAKE3 over its RFC 8785 canonical JSON.

use crate::Digest;
use crate::digest::canonical_json;

use super::model::Manifest;
use super::sealed::Sealed;

impl Manifest {
    /// RFC 8785 JSON of what was written: keys that were left out stay out, quantities have their
    /// canonical text, sets are sorted.
    pub fn canonical_json(&self) -> String {
        canonical_json(self)
    }

    /// What an approval is bound to (S3): equal for TOML and JSON of the same content.
    pub fn digest(&self) -> Digest {
        Digest::of(self.canonical_json().as_bytes())
    }
}

impl Sealed {
    /// RFC 8785 JSON of the sealed manifest.
    pub fn canonical_json(&self) -> String {
        canonical_json(self)
    }

    /// The sealed manifest's own digest.
    pub fn digest(&self) -> Digest {
        Digest::of(self.canonical_json().as_bytes())
    }
}
