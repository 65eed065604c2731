//! Sizes for people, and reading a journal nobody holds.

use std::path::Path;

use crate::anchor::{self, Anchor};
use crate::error::JournalError;
use crate::fsio;
use crate::journal::Journal;
use crate::lock::Holder;
use crate::options::Options;
use crate::snapshot;
use crate::store::{self, Store};
use crate::verify::{lock_existing, with_store};

/// Sizes of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Length of the store's file.
    pub file_bytes: u64,
    /// Bytes of keys and frames.
    pub live_bytes: u64,
    /// Bytes of tree pages that hold no record data.
    pub overhead_bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Last sequence.
    pub last: u64,
    /// Epoch of the store.
    pub epoch: u64,
    /// The anchor.
    pub anchor: Option<Anchor>,
    /// Snapshot files.
    pub snapshots: u64,
    /// Bytes of the snapshot files.
    pub snapshot_bytes: u64,
}

/// Sizes of the journal in `dir` while nobody holds it. Changes nothing; reads the whole file.
///
/// # Errors
/// `Missing`, `Locked`, `Newer`, `Damaged`, or `Io`.
pub fn stats(dir: &Path, options: &Options, holder: Holder) -> Result<Stats, JournalError> {
    let _lock = lock_existing(dir, holder)?;
    with_store(dir, options, |store| collect(store, dir))
}

fn collect(store: &Store, dir: &Path) -> Result<Stats, JournalError> {
    let sizes = store.sizes()?;
    let extent = store.extent()?;
    let (snapshots, snapshot_bytes) = snapshot::usage(dir);
    Ok(Stats {
        file_bytes: fsio::len_of(&dir.join(store::FILE))?.unwrap_or(0),
        live_bytes: sizes.live_bytes,
        overhead_bytes: sizes.overhead_bytes,
        records: extent.map_or(0, |e| e.records),
        last: extent.map_or(0, |e| e.last),
        epoch: store.meta()?.map_or(0, |m| m.epoch),
        anchor: anchor::read(dir)?,
        snapshots,
        snapshot_bytes,
    })
}

impl Journal {
    /// Sizes of the open journal. Walks the tree.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn stats_live(&self) -> Result<Stats, JournalError> {
        collect(&self.shared().store, self.dir())
    }
}
