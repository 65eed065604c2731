//! Verification: every page, every frame, every link, and the anchor.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::thread;

use crate::anchor::{self, Anchor};
use crate::error::JournalError;
use crate::frame::{Head, RecordHash};
use crate::fsio;
use crate::journal::Journal;
use crate::lock::{Holder, Lock};
use crate::options::Options;
use crate::overlay::Overlay;
use crate::records::Cursor;
use crate::store::{self, Store};

/// The first thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// At which record, when it is about one. For a broken link the record before it may be the
    /// altered one.
    pub seq: Option<u64>,
    /// What it is.
    pub kind: DamageKind,
}

/// Kinds of damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// The store does not open, or a page of it does not verify.
    StoreUnreadable(String),
    /// Under the name of one of the journal's files is something else, or a file of another user.
    NotOurFile {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The store is not there but its anchor is.
    StoreMissing,
    /// The store says nothing valid about itself.
    BadMeta,
    /// Fewer bytes than a header.
    FrameTooShort {
        /// Bytes that are stored.
        bytes: usize,
    },
    /// The frame does not begin as one.
    BadMagic,
    /// A version or reserved field no release ever wrote.
    BadHeader {
        /// The version field.
        version: u16,
        /// The reserved field.
        reserved: u16,
    },
    /// The stated length is not the stored one.
    WrongLength {
        /// In the header.
        stated: u32,
        /// Stored.
        stored: usize,
    },
    /// The frame states another sequence than the one it is stored under.
    WrongSequence {
        /// In the header.
        stated: u64,
    },
    /// The link does not name the record before.
    BrokenLink {
        /// Hash of the record before.
        expected: RecordHash,
        /// What the frame names.
        stated: RecordHash,
    },
    /// A record is not there.
    Missing,
    /// The sequences are not 1 to the last without gaps.
    Gap {
        /// First sequence.
        first: u64,
        /// Last sequence.
        last: u64,
        /// Number of records.
        records: u64,
    },
    /// There are records but no anchor.
    AnchorMissing,
    /// No slot of the anchor is valid.
    AnchorDamaged,
    /// The store ends before the anchored sequence (0: it is empty).
    Truncated {
        /// What the anchor says.
        anchored: Anchor,
        /// Last sequence.
        found: u64,
    },
    /// Another record is at the anchored sequence.
    Replaced {
        /// What the anchor says.
        anchored: Anchor,
        /// Hash of the record there.
        found: RecordHash,
    },
    /// Store and anchor are of different epochs.
    WrongEpoch {
        /// What the anchor says.
        anchored: Anchor,
        /// Epoch of the store.
        found: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seq) = self.seq {
            write!(f, "record {seq}: ")?;
        }
        fmt::Display::fmt(&self.kind, f)
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreUnreadable(text) => write!(f, "the store cannot be read: {text}"),
            Self::NotOurFile { path, found } => {
                write!(f, "{path:?} is {found}, not a plain file of this user")
            }
            Self::StoreMissing => write!(f, "the store is missing"),
            Self::BadMeta => write!(f, "the store does not state its format"),
            Self::FrameTooShort { bytes } => write!(f, "{bytes} bytes are no frame"),
            Self::BadMagic => write!(f, "this is no frame"),
            Self::BadHeader { version, reserved } => {
                write!(f, "impossible header (version {version}, reserved {reserved})")
            }
            Self::WrongLength { stated, stored } => {
                write!(f, "{stored} bytes are stored, {stated} were written")
            }
            Self::WrongSequence { stated } => write!(f, "it says it is record {stated}"),
            Self::BrokenLink { expected, stated } => {
                write!(f, "its link {stated} is not the hash before it, {expected}")
            }
            Self::Missing => write!(f, "it is missing"),
            Self::Gap { first, last, records } => {
                write!(f, "there are {records} records from {first} to {last}")
            }
            Self::AnchorMissing => write!(f, "the anchor is missing"),
            Self::AnchorDamaged => write!(f, "no slot of the anchor is valid"),
            Self::Truncated { anchored, found } => {
                write!(f, "the store ends at {found}, its anchor says {}", anchored.seq)
            }
            Self::Replaced { anchored, found } => {
                write!(f, "hash {found}, its anchor says {}", anchored.hash)
            }
            Self::WrongEpoch { anchored, found } => {
                write!(f, "epoch {found}, its anchor says {}", anchored.epoch)
            }
        }
    }
}

/// What verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Records that verified, from the first one.
    pub records: u64,
    /// First sequence, if there is one.
    pub first: Option<u64>,
    /// The last record that verified.
    pub head: Head,
    /// The anchor.
    pub anchor: Option<Anchor>,
    /// Epoch of the store.
    pub epoch: u64,
    /// Records that verified and are covered by the anchor.
    pub anchored: u64,
    /// Records that verified and are behind the anchor: committed, not acknowledged.
    pub unanchored: u64,
    /// The first damage; `None` means the journal is whole.
    pub damage: Option<Damage>,
}

impl VerifyReport {
    fn nothing(anchor: Option<Anchor>, damage: Option<Damage>) -> Self {
        VerifyReport {
            records: 0,
            first: None,
            head: Head::GENESIS,
            anchor,
            epoch: 0,
            anchored: 0,
            unanchored: 0,
            damage,
        }
    }

    /// Whether nothing is wrong.
    pub fn is_whole(&self) -> bool {
        self.damage.is_none()
    }
}

/// Verifies the journal in `dir` while nobody holds it. The store's file is not changed.
///
/// Damage is a result, not an error, and does not panic: every page is checked before its content
/// is used.
///
/// # Errors
/// `Missing`, `Locked`, `Newer` (J8), or `Io` and `Store` when the files cannot be read.
pub fn verify(dir: &Path, options: &Options, holder: Holder) -> Result<VerifyReport, JournalError> {
    let _lock = lock_existing(dir, holder)?;
    examine(dir, options)
}

/// Takes the lock of a journal that exists.
pub(crate) fn lock_existing(dir: &Path, holder: Holder) -> Result<Lock, JournalError> {
    let store = fsio::len_of(&dir.join(store::FILE))?;
    if store.is_none() && fsio::len_of(&dir.join(anchor::FILE))?.is_none() {
        return Err(JournalError::Missing { dir: dir.to_owned() });
    }
    Ok(Lock::take(dir, holder)?.0)
}

/// As [`verify`], for a caller that holds the lock.
pub(crate) fn examine(dir: &Path, options: &Options) -> Result<VerifyReport, JournalError> {
    let anchor = anchor_or_damage(dir)?;
    let known = anchor.as_ref().ok().copied().flatten();
    let found = with_store(dir, options, move |store| scan(store, anchor));
    match found {
        Ok(report) => Ok(report),
        Err(JournalError::Damaged(damage)) => Ok(VerifyReport::nothing(known, Some(damage))),
        Err(other) => Err(other),
    }
}

/// The anchor, or what is wrong with its file.
fn anchor_or_damage(dir: &Path) -> Result<Result<Option<Anchor>, DamageKind>, JournalError> {
    match anchor::read(dir) {
        Err(JournalError::AnchorDamaged) => Ok(Err(DamageKind::AnchorDamaged)),
        Err(JournalError::Damaged(Damage { kind, .. })) => Ok(Err(kind)),
        other => other.map(Ok),
    }
}

/// Runs `work` on the store of `dir` with every page verified, without changing the file. The caller
/// holds the lock. The thread is a last net for builds that unwind: there a panic becomes damage.
pub(crate) fn with_store<T: Send>(
    dir: &Path,
    options: &Options,
    work: impl FnOnce(&Store) -> Result<T, JournalError> + Send,
) -> Result<T, JournalError> {
    let path = dir.join(store::FILE);
    let damaged = |kind| JournalError::Damaged(Damage { seq: None, kind });
    match fsio::len_of(&path)? {
        None | Some(0) => return Err(damaged(DamageKind::StoreMissing)),
        Some(_) => {}
    }
    let overlay = Overlay::open(&path)?;
    let cache = options.cache_bytes;
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let store = Store::open(dir, overlay, cache, true)?;
            work(&store)
        });
        worker.join().unwrap_or_else(|_| {
            let text = "reading it panicked".to_owned();
            Err(damaged(DamageKind::StoreUnreadable(text)))
        })
    })
}

/// Walks the whole chain and compares it with the anchor.
pub(crate) fn scan(
    store: &Store,
    anchor: Result<Option<Anchor>, DamageKind>,
) -> Result<VerifyReport, JournalError> {
    let known = anchor.as_ref().ok().copied().flatten();
    let Some(meta) = store.meta()? else {
        let kind = match known {
            Some(anchored) => DamageKind::Truncated { anchored, found: 0 },
            None => DamageKind::BadMeta,
        };
        return Ok(VerifyReport::nothing(known, Some(Damage { seq: None, kind })));
    };
    let extent = store.extent()?;
    let last = extent.map_or(0, |e| e.last);
    let mut cursor = Cursor::new(Head::GENESIS, last);
    let mut at_anchor = known.filter(|a| a.seq == 0).map(|_| RecordHash::GENESIS);
    let mut damage = None;
    while let Some(record) = cursor.step(store) {
        match record {
            Ok(record) if known.is_some_and(|a| a.seq == record.seq) => {
                at_anchor = Some(record.hash);
            }
            Ok(_) => {}
            Err(JournalError::Damaged(found)) => damage = Some(found),
            Err(other) => return Err(other),
        }
    }
    let head = cursor.at();
    let against = against_anchor(anchor, at_anchor, last, meta.epoch);
    let anchored = known.map_or(0, |a| a.seq.min(head.seq));
    Ok(VerifyReport {
        records: head.seq,
        first: extent.map(|e| e.first),
        head,
        anchor: known,
        epoch: meta.epoch,
        anchored,
        unanchored: head.seq - anchored,
        damage: damage.or(against),
    })
}

/// J3, after the chain itself: what the anchor says against it.
fn against_anchor(
    anchor: Result<Option<Anchor>, DamageKind>,
    at_anchor: Option<RecordHash>,
    last: u64,
    epoch: u64,
) -> Option<Damage> {
    let damage = |seq, kind| Some(Damage { seq, kind });
    let anchored = match anchor {
        Err(kind) => return damage(None, kind),
        Ok(None) if last == 0 => return None,
        Ok(None) => return damage(None, DamageKind::AnchorMissing),
        Ok(Some(anchored)) => anchored,
    };
    if last < anchored.seq {
        return damage(None, DamageKind::Truncated { anchored, found: last });
    }
    match at_anchor {
        Some(found) if found != anchored.hash => {
            damage(Some(anchored.seq), DamageKind::Replaced { anchored, found })
        }
        _ if epoch != anchored.epoch => {
            damage(None, DamageKind::WrongEpoch { anchored, found: epoch })
        }
        _ => None,
    }
}

impl Journal {
    /// Verifies the open journal, as [`verify`] does one that nobody holds. Appends wait meanwhile
    /// for as long as it takes to read the pages of the file; the records are read afterwards.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify_live(&self) -> Result<VerifyReport, JournalError> {
        let shared = self.shared();
        let gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let anchor = anchor_or_damage(self.dir())?;
        let known = anchor.as_ref().ok().copied().flatten();
        // Between two commits the file is whole. Its pages are checked as in `open`, before the
        // store that the supervisor lives on reads them.
        let pages = with_store(self.dir(), &shared.options, |_| Ok(()));
        drop(gate);
        match pages {
            Ok(()) => scan(&shared.store, anchor),
            Err(JournalError::Damaged(damage)) => Ok(VerifyReport::nothing(known, Some(damage))),
            Err(other) => Err(other),
        }
    }
}
