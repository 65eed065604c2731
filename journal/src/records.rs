//! Reading the chain in order, in bounded memory, verifying every link (J2).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::JournalError;
use crate::frame::{Frame, HEADER_LEN, Head, RecordHash};
use crate::journal::Shared;
use crate::store::Store;
use crate::verify::{Damage, DamageKind};

/// Stored bytes that are read in one transaction.
const CHUNK_BYTES: usize = 1 << 20;

/// One stored record whose link to the record before was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its sequence, from 1 without gaps.
    pub seq: u64,
    /// What the payload is; 0 is the journal's own.
    pub kind: u16,
    /// Version of the payload's schema.
    pub schema: u16,
    /// Hash of the record before.
    pub prev: RecordHash,
    /// Hash of this record's stored bytes.
    pub hash: RecordHash,
    stored: Vec<u8>,
}

impl Record {
    /// Parses stored bytes that must follow `before`.
    pub(crate) fn after(before: Head, seq: u64, stored: Vec<u8>) -> Result<Self, JournalError> {
        let frame = Frame::parse_after(before.hash, seq, &stored)?;
        let (kind, schema, prev) = (frame.kind, frame.schema, frame.prev);
        let hash = RecordHash::of(&stored);
        Ok(Record { seq, kind, schema, prev, hash, stored })
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.stored[HEADER_LEN..]
    }

    /// The bytes as stored: the frame with its payload, which the chain covers.
    pub fn stored(&self) -> &[u8] {
        &self.stored
    }

    /// Its position in the chain.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash }
    }
}

/// A place in the chain that moves forward. Each chunk is read in its own transaction; that is
/// sound because records are never changed.
#[derive(Debug)]
pub(crate) struct Cursor {
    at: Head,
    end: u64,
    chunk: VecDeque<(u64, Vec<u8>)>,
    failed: bool,
}

impl Cursor {
    /// Starts behind `at`, ends with `end`.
    pub(crate) fn new(at: Head, end: u64) -> Self {
        Cursor { at, end, chunk: VecDeque::new(), failed: false }
    }

    /// Starts at `from`. The record before it is read to know which link to expect.
    pub(crate) fn from_seq(store: &Store, from: u64, end: u64) -> Result<Self, JournalError> {
        let before = from.saturating_sub(1);
        if before == 0 || before > end {
            return Ok(Cursor::new(Head { seq: before, hash: RecordHash::GENESIS }, end));
        }
        let stored = store.read_one(before)?.ok_or(gap(before))?;
        Frame::parse(before, &stored)?;
        Ok(Cursor::new(Head { seq: before, hash: RecordHash::of(&stored) }, end))
    }

    /// The last record that was verified.
    pub(crate) fn at(&self) -> Head {
        self.at
    }

    /// The next record, `None` behind the end and after an error.
    pub(crate) fn step(&mut self, store: &Store) -> Option<Result<Record, JournalError>> {
        if self.failed || self.at.seq >= self.end {
            return None;
        }
        let next = self.read_next(store);
        match &next {
            Ok(record) => self.at = record.head(),
            Err(_) => self.failed = true,
        }
        Some(next)
    }

    fn read_next(&mut self, store: &Store) -> Result<Record, JournalError> {
        let seq = self.at.seq + 1;
        if self.chunk.is_empty() {
            self.chunk = store.read(seq, self.end, CHUNK_BYTES)?.into();
        }
        match self.chunk.pop_front() {
            Some((found, stored)) if found == seq => Record::after(self.at, seq, stored),
            _ => Err(gap(seq)),
        }
    }
}

fn gap(seq: u64) -> JournalError {
    JournalError::Damaged(Damage { seq: Some(seq), kind: DamageKind::Missing })
}

/// The records of an open journal, in order, each verified against the one before. It ends with
/// the head at the time it was made. The journal stays locked while one of these is alive.
pub struct Records {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cursor: Cursor,
}

impl Iterator for Records {
    type Item = Result<Record, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.step(&self.shared.store)
    }
}
