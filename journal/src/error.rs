//! The one error type of the journal. It is `Clone` because one failed commit answers every caller
//! of the group.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::anchor::Anchor;
use crate::frame::RecordHash;
use crate::lock::Holder;
use crate::verify::{Damage, DamageKind};

/// Why the journal refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// J4: another process or handle holds the lock.
    #[error("the journal in {dir:?} is held by {}", describe_holder(.holder.as_ref()))]
    Locked {
        /// The directory of the journal.
        dir: PathBuf,
        /// Who holds it, if the lock file could be read.
        holder: Option<Holder>,
    },
    /// There is no journal in the directory.
    #[error("there is no journal in {dir:?}")]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// J3: the anchor exists, the store does not.
    #[error("the store is gone but its anchor says sequence {}", anchored.seq)]
    StoreMissing {
        /// What the anchor says.
        anchored: Anchor,
    },
    /// J3: the store opened without records although some were anchored.
    #[error("the store is empty but its anchor says sequence {}", anchored.seq)]
    Emptied {
        /// What the anchor says.
        anchored: Anchor,
    },
    /// J3: the store ends before the anchored sequence.
    #[error("the store ends at sequence {found} but its anchor says {}", anchored.seq)]
    Truncated {
        /// What the anchor says.
        anchored: Anchor,
        /// The last sequence that is there.
        found: u64,
    },
    /// J3: another record is at the anchored sequence.
    #[error("sequence {} has hash {found} but its anchor says {}", anchored.seq, anchored.hash)]
    Replaced {
        /// What the anchor says.
        anchored: Anchor,
        /// The hash of the record that is there.
        found: RecordHash,
    },
    /// J3: the store and the anchor belong to different epochs.
    #[error("the store is of epoch {found} but its anchor says {}", anchored.epoch)]
    WrongEpoch {
        /// What the anchor says.
        anchored: Anchor,
        /// The epoch of the store.
        found: u64,
    },
    /// J3: a store with records has no anchor.
    #[error("the store has {records} records but no anchor")]
    AnchorMissing {
        /// How many records there are.
        records: u64,
    },
    /// J3: the anchor file is there but no slot of it is valid.
    #[error("no slot of the anchor file is valid")]
    AnchorDamaged,
    /// J2: a record, its place or its link is wrong.
    #[error("the journal is damaged: {0}")]
    Damaged(Damage),
    /// J8: written by a newer version.
    #[error("the journal needs {feature} ({found}), this program knows {supported}")]
    Newer {
        /// The version that was found.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
        /// The name of what is missing here.
        feature: String,
    },
    /// J7: a record is larger than its bound.
    #[error("a record of {bytes} bytes is larger than the bound of {max}")]
    RecordTooLarge {
        /// The size of the payload.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// J7: a batch has too many records or bytes.
    #[error("a batch of {records} records, {bytes} bytes is larger than its bound")]
    BatchTooLarge {
        /// Records in the batch.
        records: usize,
        /// Bytes in the batch.
        bytes: usize,
    },
    /// A batch without records.
    #[error("the batch is empty")]
    EmptyBatch,
    /// Kind 0 belongs to the journal itself.
    #[error("record kind {kind} is reserved")]
    ReservedKind {
        /// The kind.
        kind: u16,
    },
    /// J7: the queue of the writer is full; nothing was enqueued.
    #[error("the queue of the journal is full ({records} records, {bytes} bytes wait)")]
    QueueFull {
        /// Records that wait.
        records: usize,
        /// Bytes that wait.
        bytes: usize,
    },
    /// J9: the disk is full; only cleanup is appended.
    #[error("the disk of the journal is full: {available} bytes free, {needed} needed")]
    DiskFull {
        /// Free bytes.
        available: u64,
        /// Bytes that must be free.
        needed: u64,
    },
    /// J5: this group's commit or anchor write failed. Whether it is durable is unknown.
    #[error("the commit failed, its outcome is unknown until the journal is reopened: {cause}")]
    CommitFailed {
        /// What failed.
        cause: String,
    },
    /// J5: an earlier commit failed. The process must stop and reopen.
    #[error("the journal stopped after a failed commit: {cause}")]
    Poisoned {
        /// What failed first.
        cause: String,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
    /// A person asked to accept a loss but nothing is lost.
    #[error("the journal is whole, there is no loss to accept")]
    NothingLost,
    /// A snapshot is larger than its bound.
    #[error("a snapshot of {bytes} bytes is larger than the bound of {max}")]
    SnapshotTooLarge {
        /// The size.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The snapshot does not belong to this chain.
    #[error("there is no record {seq} with hash {hash} to snapshot")]
    SnapshotNotInChain {
        /// The sequence that was given.
        seq: u64,
        /// The hash that was given.
        hash: RecordHash,
    },
    /// The store refused or failed.
    #[error("cannot {what} the store")]
    Store {
        /// What was tried.
        what: &'static str,
        /// The cause.
        #[source]
        source: Arc<redb::Error>,
    },
    /// A file operation failed.
    #[error("cannot {what} {path:?}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
}

impl JournalError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| JournalError::Io { what, path, source: Arc::new(source) }
    }

    pub(crate) fn store<E: Into<redb::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| match source.into() {
            redb::Error::Corrupted(text) => {
                let kind = DamageKind::StoreUnreadable(text);
                JournalError::Damaged(Damage { seq: None, kind })
            }
            source => JournalError::Store { what, source: Arc::new(source) },
        }
    }

    /// The stable dotted code a supervisor shows for this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "journal.locked",
            Self::Damaged(_) | Self::AnchorDamaged => "journal.damaged",
            Self::StoreMissing { .. }
            | Self::Emptied { .. }
            | Self::Truncated { .. }
            | Self::Replaced { .. }
            | Self::WrongEpoch { .. }
            | Self::AnchorMissing { .. } => "journal.truncated",
            Self::Newer { .. } => "journal.newer",
            Self::RecordTooLarge { .. }
            | Self::BatchTooLarge { .. }
            | Self::SnapshotTooLarge { .. } => "journal.too_large",
            Self::QueueFull { .. } => "process.busy",
            Self::DiskFull { .. } => "fs.disk_full",
            Self::Missing { .. }
            | Self::EmptyBatch
            | Self::ReservedKind { .. }
            | Self::CommitFailed { .. }
            | Self::Poisoned { .. }
            | Self::Closed
            | Self::NothingLost
            | Self::SnapshotNotInChain { .. }
            | Self::Store { .. }
            | Self::Io { .. } => "journal.io",
        }
    }

    /// Whether the store must not be trusted and only a person can go on (J3).
    pub fn needs_a_person(&self) -> bool {
        matches!(self.code(), "journal.damaged" | "journal.truncated")
    }
}

fn describe_holder(holder: Option<&Holder>) -> String {
    match holder {
        Some(h) => h.to_string(),
        None => "another process that could not be named".to_owned(),
    }
}
