//! The anchored head: sequence, hash and epoch in a second file with its own sync (J3).
//!
//! Two slots, each in its own 4096-byte block, are overwritten in turn, so that a torn write
//! leaves the slot of the commit before. The slot with the higher turn is the anchor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::JournalError;
use crate::frame::{Head, RecordHash, hash_at, le16, le64};
use crate::fsio;

pub(crate) const FILE: &str = "anchor";
const MAGIC: [u8; 4] = *b"ATJA";
const VERSION: u16 = 1;
const SLOT_LEN: usize = 96;
const SLOT_AT: [u64; 2] = [0, 4096];
const FILE_LEN: usize = 8192;

/// What was made durable outside the store after the last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Last sequence.
    pub seq: u64,
    /// Its hash.
    pub hash: RecordHash,
    /// Epoch of the store; it grows when a person accepts a loss.
    pub epoch: u64,
}

impl Anchor {
    pub(crate) fn new(head: Head, epoch: u64) -> Self {
        Anchor { seq: head.seq, hash: head.hash, epoch }
    }

    /// The position in the chain.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    turn: u64,
    anchor: Anchor,
}

impl Slot {
    fn to_bytes(self) -> [u8; SLOT_LEN] {
        let mut out = [0; SLOT_LEN];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[8..16].copy_from_slice(&self.turn.to_le_bytes());
        out[16..24].copy_from_slice(&self.anchor.epoch.to_le_bytes());
        out[24..32].copy_from_slice(&self.anchor.seq.to_le_bytes());
        out[32..64].copy_from_slice(self.anchor.hash.as_bytes());
        let check = *blake3::hash(&out[..64]).as_bytes();
        out[64..96].copy_from_slice(&check);
        out
    }

    /// `None` for a torn or damaged slot.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, JournalError> {
        if bytes.len() < SLOT_LEN || bytes[0..4] != MAGIC {
            return Ok(None);
        }
        if *blake3::hash(&bytes[..64]).as_bytes() != hash_at(bytes, 64) {
            return Ok(None);
        }
        let version = le16(bytes, 4);
        if version != VERSION {
            // J8: the checksum covers the version, so this is not damage.
            return Err(JournalError::Newer {
                found: u32::from(version),
                supported: u32::from(VERSION),
                feature: "anchor version".to_owned(),
            });
        }
        let anchor = Anchor {
            seq: le64(bytes, 24),
            hash: RecordHash::from_bytes(hash_at(bytes, 32)),
            epoch: le64(bytes, 16),
        };
        Ok(Some(Slot { turn: le64(bytes, 8), anchor }))
    }
}

/// Reads the anchor without changing anything. `None` when there is no file.
///
/// # Errors
/// `AnchorDamaged` when no slot is valid.
pub(crate) fn read(dir: &Path) -> Result<Option<Anchor>, JournalError> {
    Ok(read_slot(&dir.join(FILE))?.map(|slot| slot.anchor))
}

fn read_slot(path: &Path) -> Result<Option<Slot>, JournalError> {
    let Some(file) = fsio::open_read(path)? else { return Ok(None) };
    let bytes = read_prefix(&file).map_err(JournalError::io("read", path))?;
    let first = Slot::parse(bytes.get(..SLOT_LEN).unwrap_or(&[]))?;
    let second = Slot::parse(bytes.get(4096..4096 + SLOT_LEN).unwrap_or(&[]))?;
    match (first, second) {
        (Some(a), Some(b)) => Ok(Some(if a.turn >= b.turn { a } else { b })),
        (Some(one), None) | (None, Some(one)) => Ok(Some(one)),
        (None, None) => Err(JournalError::AnchorDamaged),
    }
}

fn read_prefix(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_LEN as u64), &mut bytes)?;
    Ok(bytes)
}

/// The anchor file, open for writing.
#[derive(Debug)]
pub(crate) struct AnchorFile {
    file: File,
    path: PathBuf,
    turn: u64,
    anchor: Anchor,
}

impl AnchorFile {
    /// Opens the existing anchor of `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Option<Self>, JournalError> {
        let path = dir.join(FILE);
        let Some(slot) = read_slot(&path)? else { return Ok(None) };
        let file = fsio::open_rw(&path, false)?;
        Ok(Some(AnchorFile { file, path, turn: slot.turn, anchor: slot.anchor }))
    }

    /// Makes a new anchor file, or replaces the one that is there: afterwards the old or the new
    /// one is whole.
    pub(crate) fn create(dir: &Path, anchor: Anchor) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        let mut bytes = vec![0; FILE_LEN];
        let first = Slot { turn: 1, anchor }.to_bytes();
        let second = Slot { turn: 0, anchor }.to_bytes();
        bytes[..SLOT_LEN].copy_from_slice(&first);
        bytes[4096..4096 + SLOT_LEN].copy_from_slice(&second);
        fsio::replace(&path, &bytes)?;
        let file = fsio::open_rw(&path, false)?;
        Ok(AnchorFile { file, path, turn: 1, anchor })
    }

    /// Makes `anchor` durable. The caller has committed the store up to it.
    pub(crate) fn advance(&mut self, anchor: Anchor) -> Result<(), JournalError> {
        let turn = self.turn + 1;
        let at = SLOT_AT[usize::from(turn.is_multiple_of(2))];
        let write = || -> std::io::Result<()> {
            self.file.write_all_at(&Slot { turn, anchor }.to_bytes(), at)?;
            self.file.sync_data()
        };
        write().map_err(JournalError::io("write", &self.path))?;
        self.turn = turn;
        self.anchor = anchor;
        Ok(())
    }

    /// Makes every further write fail.
    #[cfg(test)]
    pub(crate) fn make_read_only(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    /// The anchor that is durable.
    pub(crate) fn current(&self) -> Anchor {
        self.anchor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Anchor {
        Anchor { seq, hash: RecordHash::of(&seq.to_le_bytes()), epoch: 1 }
    }

    fn dir_with_two_advances() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut file = AnchorFile::create(dir.path(), at(0)).unwrap();
        file.advance(at(5)).unwrap();
        file.advance(at(9)).unwrap();
        dir
    }

    #[test]
    fn the_last_advance_is_read_back() {
        let dir = dir_with_two_advances();
        assert_eq!(read(dir.path()).unwrap(), Some(at(9)));
        let mut again = AnchorFile::open(dir.path()).unwrap().unwrap();
        again.advance(at(10)).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(at(10)));
    }

    #[test]
    fn a_torn_slot_leaves_the_anchor_of_the_commit_before() {
        // J3: at every byte where the write of the newest slot can stop.
        let dir = dir_with_two_advances();
        let whole = std::fs::read(dir.path().join(FILE)).unwrap();
        let newest = if whole[8] > whole[4096 + 8] { 0 } else { 4096 };
        for cut in newest..newest + SLOT_LEN {
            let mut torn = whole.clone();
            torn[cut] ^= 0xff;
            std::fs::write(dir.path().join(FILE), &torn).unwrap();
            assert_eq!(read(dir.path()).unwrap(), Some(at(5)), "byte {cut}");
        }
    }

    #[test]
    fn an_anchor_without_a_valid_slot_is_damaged_not_absent() {
        let dir = dir_with_two_advances();
        for bytes in [vec![], vec![0; FILE_LEN], vec![0xff; 100]] {
            std::fs::write(dir.path().join(FILE), &bytes).unwrap();
            assert!(matches!(read(dir.path()), Err(JournalError::AnchorDamaged)));
        }
    }
}
