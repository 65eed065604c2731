//! Sizes for people, and reading a journal nobody holds.

use std::ops::ControlFlow;
use std::path::Path;

use crate::anchor::{self, Anchor};
use crate::error::JournalError;
use crate::frame::Head;
use crate::fsio;
use crate::journal::Journal;
use crate::lock::Holder;
use crate::options::Options;
use crate::records::{Cursor, Record};
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

/// Hands every record from `from` on to `each`, in order, while nobody holds the journal. Changes
/// nothing, and needs no anchor: of a damaged journal it shows what precedes the damage. Stops
/// early when `each` says so. Returns the last record that was read.
///
/// # Errors
/// `Missing`, `Locked`, `Newer`, `Io`, or `Damaged` at the first damage.
pub fn dump(
    dir: &Path,
    options: &Options,
    holder: Holder,
    from: u64,
    mut each: impl FnMut(Record) -> ControlFlow<()> + Send,
) -> Result<Head, JournalError> {
    let _lock = lock_existing(dir, holder)?;
    with_store(dir, options, |store| {
        let last = store.extent()?.map_or(0, |e| e.last);
        let mut cursor = Cursor::from_seq(store, from, last)?;
        while let Some(record) = cursor.step(store) {
            if each(record?).is_break() {
                break;
            }
        }
        Ok(cursor.at())
    })
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
