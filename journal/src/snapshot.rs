//! Snapshots of what a fold has computed: a cache that may be deleted at any time (J6).
//!
//! One file each, outside the store, so that removing them needs no transaction and never grows
//! it. A snapshot is used only if its checksum holds and the chain has its hash at its sequence.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::JournalError;
use crate::frame::{Head, RecordHash, hash_at, le16, le32, le64};
use crate::fsio;
use crate::journal::Journal;

pub(crate) const DIR: &str = "snapshots";
const PREFIX: &str = "snap-";
const MAGIC: [u8; 4] = *b"ATJS";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 84;
/// The newest may turn out to be unreadable; the one before bounds the cost of that.
const KEPT: usize = 2;

/// A snapshot whose place in the chain was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record it covers.
    pub seq: u64,
    /// The hash of that record.
    pub hash: RecordHash,
    /// Version of its content.
    pub schema: u16,
    /// Its content.
    pub bytes: Vec<u8>,
}

impl Snapshot {
    /// Header: magic, version, schema, length, zeros, sequence, hash, then the BLAKE3 of all of it
    /// with the content.
    fn to_bytes(&self) -> Option<Vec<u8>> {
        let len = u32::try_from(self.bytes.len()).ok()?;
        let mut out = Vec::with_capacity(HEADER_LEN + self.bytes.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.schema.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(self.hash.as_bytes());
        out.extend_from_slice(&checksum(&out, &self.bytes));
        out.extend_from_slice(&self.bytes);
        Some(out)
    }

    /// `None` for anything that is not a whole snapshot of a version this program knows.
    fn parse(file: &[u8]) -> Option<Self> {
        let (header, bytes) = file.split_at_checked(HEADER_LEN)?;
        if header[0..4] != MAGIC || le16(header, 4) != VERSION {
            return None;
        }
        if usize::try_from(le32(header, 8)).ok()? != bytes.len() {
            return None;
        }
        if hash_at(header, 52) != checksum(&header[..52], bytes) {
            return None;
        }
        Some(Snapshot {
            seq: le64(header, 12),
            hash: RecordHash::from_bytes(hash_at(header, 20)),
            schema: le16(header, 6),
            bytes: bytes.to_vec(),
        })
    }
}

fn checksum(header: &[u8], bytes: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(header).update(bytes).finalize().as_bytes()
}

impl Journal {
    /// Keeps what a fold computed up to and including record `at`. The last two are kept.
    ///
    /// # Errors
    /// `SnapshotNotInChain`, `SnapshotTooLarge`, `DiskFull` (a cache must not eat the reserve), or
    /// `Io`. None of them harms the journal.
    pub fn put_snapshot(&self, at: Head, schema: u16, bytes: Vec<u8>) -> Result<(), JournalError> {
        let shared = self.shared();
        let max = shared.options.max_snapshot_bytes;
        let len = bytes.len();
        if !self.contains(at) {
            return Err(JournalError::SnapshotNotInChain { seq: at.seq, hash: at.hash });
        }
        let snapshot = Snapshot { seq: at.seq, hash: at.hash, schema, bytes };
        let too_large = JournalError::SnapshotTooLarge { bytes: len, max };
        let file = snapshot.to_bytes().filter(|_| len <= max).ok_or(too_large)?;
        let spare = shared.options.reserve_bytes;
        shared.space.has_space((file.len() as u64).saturating_add(spare))?;
        let dir = shared.dir.join(DIR);
        fsio::ensure_dir(&dir)?;
        fsio::replace(&dir.join(format!("{PREFIX}{:020}", at.seq)), &file)?;
        for old in newest_first(&dir).into_iter().skip(KEPT) {
            fsio::remove_if_there(&old)?;
        }
        Ok(())
    }

    /// The newest snapshot that is whole and belongs to this chain.
    pub fn latest_snapshot(&self) -> Option<Snapshot> {
        self.latest_snapshot_if(|_| true)
    }

    /// The newest snapshot that is whole, belongs to this chain and is accepted, for example
    /// because its schema is known.
    // J6: anything unreadable or foreign is passed over; the caller then folds more records.
    pub fn latest_snapshot_if(
        &self,
        mut accept: impl FnMut(&Snapshot) -> bool,
    ) -> Option<Snapshot> {
        let max = self.shared().options.max_snapshot_bytes;
        newest_first(&self.shared().dir.join(DIR)).into_iter().find_map(|path| {
            let snapshot = Snapshot::parse(&read_bounded(&path, max + HEADER_LEN)?)?;
            let at = Head { seq: snapshot.seq, hash: snapshot.hash };
            (self.contains(at) && accept(&snapshot)).then_some(snapshot)
        })
    }

    /// Removes all snapshots. State is unchanged; the next start folds from the beginning.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn delete_snapshots(&self) -> Result<(), JournalError> {
        delete_all(&self.shared().dir)
    }

    /// Whether the acknowledged chain has this hash at this sequence.
    fn contains(&self, at: Head) -> bool {
        if at.seq == 0 || at.seq > self.head().seq {
            return false;
        }
        let stored = self.shared().store.read_one(at.seq);
        matches!(stored, Ok(Some(stored)) if RecordHash::of(&stored) == at.hash)
    }
}

/// Removes every snapshot below the journal directory.
pub(crate) fn delete_all(journal_dir: &Path) -> Result<(), JournalError> {
    for path in newest_first(&journal_dir.join(DIR)) {
        fsio::remove_if_there(&path)?;
    }
    Ok(())
}

/// Number and bytes of the snapshots below the journal directory.
pub(crate) fn usage(journal_dir: &Path) -> (u64, u64) {
    let files = newest_first(&journal_dir.join(DIR));
    let bytes = files.iter().filter_map(|p| p.symlink_metadata().ok()).map(|m| m.len()).sum();
    (files.len() as u64, bytes)
}

/// Names are of fixed width, so their order is the order of sequences.
fn newest_first(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|e| e.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)))
        .map(|e| e.path())
        .collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    paths
}

fn read_bounded(path: &Path, max: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = (max as u64).saturating_add(1);
    fsio::open_read(path).ok()??.take(limit).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= max).then_some(bytes)
}
