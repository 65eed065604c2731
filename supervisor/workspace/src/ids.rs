//! Git object ids without git.

use atenea_core::Refusal;
use gix_hash::{Kind, ObjectId, hasher};

use crate::fail::io;

/// The only object format this version writes.
pub(crate) const KIND: Kind = Kind::Sha1;

/// Computes a blob id while the content streams by.
pub(crate) struct BlobHasher(gix_hash::Hasher);

impl BlobHasher {
    /// The length is part of what is hashed, so it must be known before.
    pub(crate) fn new(size: u64) -> Self {
        let mut inner = hasher(KIND);
        inner.update(&gix_object::encode::loose_header(gix_object::Kind::Blob, size));
        BlobHasher(inner)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Result<ObjectId, Refusal> {
        self.0.try_finalize().map_err(|error| io(format!("hashing a file: {error}")))
    }
}

/// The id of an object that is whole in memory.
pub(crate) fn id_of(kind: gix_object::Kind, data: &[u8]) -> Result<ObjectId, Refusal> {
    gix_object::compute_hash(KIND, kind, data).map_err(|error| io(format!("hashing: {error}")))
}

/// Parses a full hexadecimal id.
pub(crate) fn parse(hex: &[u8]) -> Result<ObjectId, Refusal> {
    let id = ObjectId::from_hex(hex)
        .map_err(|_| io(format!("{:?} is not an object id", crate::path::shown(hex))))?;
    if id.kind() != KIND {
        return Err(crate::fail::bad("repositories with SHA-256 object ids are not supported"));
    }
    Ok(id)
}

/// A name nobody else uses, for staging directories and temporary files.
pub(crate) fn random_name(prefix: &str) -> Result<String, Refusal> {
    let mut bytes = [0_u8; 10];
    getrandom::fill(&mut bytes).map_err(|error| io(format!("drawing a name: {error}")))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{prefix}{hex}"))
}
