//! The frame around a payload: explicit little-endian fields outside serde, so that the chain is
//! over stored bytes and never over a re-encoding.

use std::fmt;

use crate::error::JournalError;
use crate::verify::{Damage, DamageKind};

/// Bytes before the payload.
pub const HEADER_LEN: usize = 56;

/// The kind of the journal's own records (epoch markers).
pub const KIND_EPOCH: u16 = 0;

/// First bytes of every frame.
pub(crate) const MAGIC: [u8; 4] = *b"ATJR";

/// The frame version this program writes and the newest it reads.
pub(crate) const FRAME_VERSION: u16 = 1;

/// The BLAKE3 of a stored frame, written `b3:<64 hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordHash([u8; 32]);

impl RecordHash {
    /// What the first record names as its predecessor.
    pub const GENESIS: RecordHash = RecordHash([0; 32]);

    /// The hash of stored bytes.
    pub fn of(stored: &[u8]) -> Self {
        RecordHash(*blake3::hash(stored).as_bytes())
    }

    /// A hash that was stored elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        RecordHash(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b3:{}", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A position in the chain: the sequence of a record and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The sequence, 0 before the first record.
    pub seq: u64,
    /// The hash of that record's stored bytes.
    pub hash: RecordHash,
}

impl Head {
    /// Before the first record.
    pub const GENESIS: Head = Head { seq: 0, hash: RecordHash::GENESIS };
}

/// A parsed frame that borrows the stored bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Version of the payload's schema.
    pub schema: u16,
    /// What the payload is; 0 is the journal's own.
    pub kind: u16,
    /// Sequence, from 1 without gaps.
    pub seq: u64,
    /// Hash of the record before.
    pub prev: RecordHash,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The bytes that are stored.
    ///
    /// # Panics
    /// Never for payloads within the journal's bound, which is far below 4 GiB.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let len = u32::try_from(self.payload.len()).expect("payloads are bounded below 4 GiB");
        let mut out = Vec::with_capacity(HEADER_LEN + self.payload.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FRAME_VERSION.to_le_bytes());
        out.extend_from_slice(&self.schema.to_le_bytes());
        out.extend_from_slice(&self.kind.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(self.prev.as_bytes());
        out.extend_from_slice(self.payload);
        out
    }

    /// Reads the frame stored under `at`.
    ///
    /// # Errors
    /// `Newer` for a frame version of the future, `Damaged` for bytes that are no frame.
    pub fn parse(at: u64, stored: &'a [u8]) -> Result<Self, JournalError> {
        let damaged = |kind| JournalError::Damaged(Damage { seq: Some(at), kind });
        let Some((header, payload)) = stored.split_first_chunk::<HEADER_LEN>() else {
            return Err(damaged(DamageKind::FrameTooShort { bytes: stored.len() }));
        };
        if header[0..4] != MAGIC {
            return Err(damaged(DamageKind::BadMagic));
        }
        let version = le16(header, 4);
        let reserved = le16(header, 10);
        if version != FRAME_VERSION || reserved != 0 {
            return Err(unknown_version(at, version, reserved));
        }
        let len = le32(header, 12);
        if usize::try_from(len).ok() != Some(payload.len()) {
            let kind = DamageKind::WrongLength { stated: len, stored: payload.len() };
            return Err(damaged(kind));
        }
        let seq = le64(header, 16);
        if seq != at {
            return Err(damaged(DamageKind::WrongSequence { stated: seq }));
        }
        Ok(Frame {
            schema: le16(header, 6),
            kind: le16(header, 8),
            seq,
            prev: RecordHash(hash_at(header, 24)),
            payload,
        })
    }

    /// Reads the frame stored under `at` and checks that it follows `before` (J2).
    ///
    /// # Errors
    /// As [`Frame::parse`], and `Damaged` when the link does not match.
    pub fn parse_after(
        before: RecordHash,
        at: u64,
        stored: &'a [u8],
    ) -> Result<Self, JournalError> {
        let frame = Self::parse(at, stored)?;
        if frame.prev != before {
            let kind = DamageKind::BrokenLink { expected: before, stated: frame.prev };
            return Err(JournalError::Damaged(Damage { seq: Some(at), kind }));
        }
        Ok(frame)
    }
}

/// A version 0 or reserved bits without a newer version were never written by anybody: damage.
fn unknown_version(at: u64, version: u16, reserved: u16) -> JournalError {
    if version > FRAME_VERSION {
        // J8: an older program says what it lacks instead of calling the record damaged.
        return JournalError::Newer {
            found: u32::from(version),
            supported: u32::from(FRAME_VERSION),
            feature: "record frame version".to_owned(),
        };
    }
    let kind = DamageKind::BadHeader { version, reserved };
    JournalError::Damaged(Damage { seq: Some(at), kind })
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn hash_at(bytes: &[u8], at: usize) -> [u8; 32] {
    array_at(bytes, at)
}

/// Callers pass offsets inside a buffer whose length they have just checked.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let prev = RecordHash::of(b"before");
        Frame { schema: 3, kind: 9, seq: 5, prev, payload: b"hello" }.to_bytes()
    }

    #[test]
    fn a_frame_reads_back_as_written() {
        let bytes = frame();
        assert_eq!(bytes.len(), HEADER_LEN + 5);
        let f = Frame::parse_after(RecordHash::of(b"before"), 5, &bytes).unwrap();
        assert_eq!((f.schema, f.kind, f.seq, f.payload), (3, 9, 5, &b"hello"[..]));
    }

    #[test]
    fn every_single_bit_flip_changes_the_hash_and_none_panics() {
        let bytes = frame();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(RecordHash::of(&bad), RecordHash::of(&bytes));
            let _ = Frame::parse(5, &bad);
        }
    }

    #[test]
    fn every_truncation_is_damage() {
        let bytes = frame();
        for len in 0..bytes.len() {
            let got = Frame::parse(5, &bytes[..len]);
            assert!(matches!(got, Err(JournalError::Damaged(_))), "{len}: {got:?}");
        }
    }

    #[test]
    fn a_newer_frame_version_is_refused_by_name_not_called_damage() {
        // J8
        let mut bytes = frame();
        bytes[4] = 2;
        let got = Frame::parse(5, &bytes);
        assert!(
            matches!(&got, Err(JournalError::Newer { found: 2, supported: 1, feature }) if feature == "record frame version"),
            "{got:?}"
        );
    }

    #[test]
    fn a_frame_under_another_sequence_or_after_another_record_is_damage() {
        let bytes = frame();
        assert!(Frame::parse(6, &bytes).is_err());
        assert!(Frame::parse_after(RecordHash::GENESIS, 5, &bytes).is_err());
    }
}
