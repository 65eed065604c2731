//! A person's way out of a refused journal: keep what survives, say so in the chain, go on.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::anchor::{self, Anchor, AnchorFile};
use crate::error::JournalError;
use crate::frame::{Frame, Head, KIND_EPOCH, RecordHash};
use crate::fsio;
use crate::lock::Holder;
use crate::options::Options;
use crate::payload;
use crate::records::Cursor;
use crate::salvage::Salvage;
use crate::snapshot;
use crate::store::{self, Meta, Store};
use crate::verify::{Damage, DamageKind, VerifyReport, examine, lock_existing, with_store};

const GROUP_BYTES: usize = 4 << 20;
const MARKER_SCHEMA: u16 = 1;
/// A reason is one line of a person.
const REASON_BYTES_MAX: usize = 1024;

/// The payload of a record of kind [`KIND_EPOCH`]: from here on a person has accepted a loss. A
/// fold must put every open hold to its ceiling when it sees one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochMarker {
    /// The epoch that begins.
    pub epoch: u64,
    /// Why, in the person's words.
    pub reason: String,
    /// What was found, in words.
    pub damage: String,
    /// The last sequence that was anchored, if the anchor could be read. Sequences after the
    /// marker may repeat numbers that were lost; the epoch tells them apart.
    pub anchored_seq: Option<u64>,
}

/// What a recovery did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The new epoch.
    pub epoch: u64,
    /// The last record that survived.
    pub survived: Head,
    /// Anchored records that did not survive, when the anchor could be read.
    pub lost: Option<u64>,
    /// The marker's position.
    pub marker: Head,
    /// What was wrong.
    pub damage: Damage,
    /// Whether records were collected from the raw file, because its tree had fewer.
    pub salvaged: bool,
    /// Where the old store was kept.
    pub kept: Option<PathBuf>,
}

/// Accepts the loss of what cannot be read: builds a new store from the records that are still
/// linked to the first one, appends an [`EpochMarker`] and anchors it. The old files are kept
/// beside it. Repeating it after a crash is safe: until the new anchor is written the journal is
/// refused.
///
/// # Errors
/// `NothingLost` when the journal is whole; `Newer`, `Locked`, `Missing`, `Io` or `Store`.
pub fn recover_accept_loss(
    dir: &Path,
    options: &Options,
    holder: Holder,
    reason: &str,
) -> Result<Recovered, JournalError> {
    let _lock = lock_existing(dir, holder)?;
    let report = examine(dir, options)?;
    let Some(damage) = report.damage.clone() else { return Err(JournalError::NothingLost) };
    let epoch = next_epoch(dir, &report)?;
    let old = dir.join(store::FILE);
    let salvage = match fsio::len_of(&old)? {
        None => None,
        Some(_) => Some(Salvage::scan(&old, options.max_record_bytes, report.anchor)?),
    };
    let last = last_proven(&report, &damage, salvage.as_ref());
    let salvage = salvage.filter(|s| s.len() > last);
    let salvaged = salvage.is_some();

    let new = dir.join(store::NEW_FILE);
    let mut build = Build::start(dir, &new, options)?;
    match salvage {
        Some(salvage) => {
            for stored in salvage.frames() {
                build.add(stored.map_err(JournalError::io("read", &old))?)?;
            }
        }
        // Nothing verified: the store may not even open.
        None if last == 0 => {}
        None => with_store(dir, options, |store| build.copy(store, last))?,
    }
    let survived = build.head;
    let marker = EpochMarker {
        epoch,
        reason: bounded(reason),
        damage: damage.to_string(),
        anchored_seq: report.anchor.map(|a| a.seq),
    };
    let marker = build.finish(epoch, &marker)?;

    let kept = keep_old(dir, epoch)?;
    fs::rename(&new, &old).map_err(JournalError::io("replace", &old))?;
    fsio::sync_dir(dir)?;
    AnchorFile::create(dir, Anchor::new(marker, epoch))?;
    snapshot::delete_all(dir)?;
    let lost = report.anchor.map(|a| a.seq.saturating_sub(survived.seq));
    Ok(Recovered { epoch, survived, lost, marker, damage, salvaged, kept })
}

/// The last record of the store that is proven to be what was written.
fn last_proven(report: &VerifyReport, damage: &Damage, salvage: Option<&Salvage>) -> u64 {
    let head = report.head;
    match damage.kind {
        // The chain is whole in itself; only the anchor is missing or ahead.
        DamageKind::AnchorMissing
        | DamageKind::AnchorDamaged
        | DamageKind::NotOurFile { .. }
        | DamageKind::Truncated { .. }
        | DamageKind::WrongEpoch { .. } => head.seq,
        DamageKind::Replaced { anchored, .. } => head.seq.min(anchored.seq.saturating_sub(1)),
        // The chain breaks behind `head`: nothing says yet that `head` itself was not altered.
        _ => {
            let anchored = report.anchor.is_some_and(|a| a.head() == head);
            let vouched = anchored || salvage.is_some_and(|s| s.vouches_for(head.hash));
            head.seq.saturating_sub(u64::from(!vouched))
        }
    }
}

/// A new store that grows by groups of whole frames.
struct Build {
    store: Store,
    head: Head,
    group: Vec<Vec<u8>>,
    group_bytes: usize,
    schema: u16,
}

impl Build {
    fn start(dir: &Path, path: &Path, options: &Options) -> Result<Self, JournalError> {
        let store = Store::create(dir, path, options.cache_bytes)?;
        Ok(Build { store, head: Head::GENESIS, group: Vec::new(), group_bytes: 0, schema: 0 })
    }

    fn copy(&mut self, from: &Store, last: u64) -> Result<(), JournalError> {
        let mut cursor = Cursor::new(Head::GENESIS, last);
        while let Some(record) = cursor.step(from) {
            self.add(record?.stored().to_vec())?;
        }
        Ok(())
    }

    /// Adds the next record; it is checked once more against the one before.
    fn add(&mut self, stored: Vec<u8>) -> Result<(), JournalError> {
        let seq = self.head.seq + 1;
        let frame = Frame::parse_after(self.head.hash, seq, &stored)?;
        if frame.kind != KIND_EPOCH {
            // The watermark is about the caller's records (J8), not about the journal's own.
            self.schema = self.schema.max(frame.schema);
        }
        self.head = Head { seq, hash: RecordHash::of(&stored) };
        self.group_bytes += stored.len();
        self.group.push(stored);
        if self.group_bytes >= GROUP_BYTES {
            self.flush(None)?;
        }
        Ok(())
    }

    fn flush(&mut self, meta: Option<Meta>) -> Result<(), JournalError> {
        let first = self.head.seq + 1 - self.group.len() as u64;
        self.store.commit(first, &self.group, meta)?;
        self.group.clear();
        self.group_bytes = 0;
        Ok(())
    }

    fn finish(mut self, epoch: u64, marker: &EpochMarker) -> Result<Head, JournalError> {
        let payload = payload::encode(marker).map_err(|e| JournalError::Store {
            what: "encode the epoch marker for",
            source: std::sync::Arc::new(redb::Error::Corrupted(e.to_string())),
        })?;
        let frame = Frame {
            schema: MARKER_SCHEMA,
            kind: KIND_EPOCH,
            seq: self.head.seq + 1,
            prev: self.head.hash,
            payload: &payload,
        };
        self.add(frame.to_bytes())?;
        let schema = self.schema;
        self.flush(Some(Meta { epoch, schema }))?;
        self.store.close()?;
        Ok(self.head)
    }
}

/// One more than every epoch that was ever used here, as far as the files tell.
fn next_epoch(dir: &Path, report: &VerifyReport) -> Result<u64, JournalError> {
    let mut epoch = report.epoch.max(report.anchor.map_or(0, |a| a.epoch)) + 1;
    while fsio::len_of(&lost_name(dir, store::FILE, epoch))?.is_some()
        || fsio::len_of(&lost_name(dir, anchor::FILE, epoch))?.is_some()
    {
        epoch += 1;
    }
    Ok(epoch)
}

fn lost_name(dir: &Path, file: &str, epoch: u64) -> PathBuf {
    dir.join(format!("{file}.before-epoch-{epoch}"))
}

/// Keeps the old files under a second name. The store's first name stays until the new one
/// replaces it, so that no crash leaves the directory without a store.
fn keep_old(dir: &Path, epoch: u64) -> Result<Option<PathBuf>, JournalError> {
    let mut kept = None;
    for file in [store::FILE, anchor::FILE] {
        let old = dir.join(file);
        let name = lost_name(dir, file, epoch);
        match fs::hard_link(&old, &name) {
            Ok(()) if file == store::FILE => kept = Some(name),
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(JournalError::io("keep", &old)(e)),
        }
    }
    Ok(kept)
}

fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
