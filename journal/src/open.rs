//! Opening: lock, compare with the anchor, then start the writer.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;

use redb::StorageBackend;

use crate::anchor::{Anchor, AnchorFile};
use crate::error::JournalError;
use crate::frame::{Head, RecordHash};
use crate::fsio;
use crate::journal::{Inner, Journal, Opened, Shared};
use crate::lock::{Holder, Lock, Phase};
use crate::options::Options;
use crate::queue::Queue;
use crate::records::Cursor;
use crate::space::Space;
use crate::store::{self, Meta, Store};
use crate::verify::{Damage, DamageKind, with_store};
use crate::writer::Writer;

/// A journal that was checked and is not yet written. The lock comes last: it is released after
/// the store is closed (J4).
pub(crate) struct Ready {
    store: Store,
    anchor: AnchorFile,
    found_anchor: Option<Anchor>,
    meta: Meta,
    head: Head,
    space: Space,
    options: Options,
    dir: PathBuf,
    previous: Option<(Holder, Phase)>,
    lock: Lock,
}

/// Takes the lock, opens the store and compares it with the anchor.
pub(crate) fn prepare<B: StorageBackend>(
    dir: &Path,
    options: Options,
    holder: Holder,
    make: impl FnOnce(&Path) -> Result<B, JournalError>,
) -> Result<Ready, JournalError> {
    fsio::ensure_dir(dir)?;
    let (lock, previous) = Lock::take(dir, holder)?;
    let path = dir.join(store::FILE);
    let anchor = AnchorFile::open(dir)?;
    let found_anchor = anchor.as_ref().map(AnchorFile::current);
    let is_new = store_is_new(&path, found_anchor)?;
    let space = Space::new(dir, options.reserve_bytes);
    space.before_open()?;
    if is_new {
        create_store(dir, &path, options.cache_bytes)?;
    } else {
        check_pages(dir, &options)?;
    }
    let store = Store::open(dir, make(&path)?, options.cache_bytes, false)?;
    let (meta, head) = check_store(&store, found_anchor, &options)?;
    let anchor = settle_anchor(dir, anchor, Anchor::new(head, meta.epoch))?;
    space.ensure()?;
    let dir = dir.to_owned();
    Ok(Ready { store, anchor, found_anchor, meta, head, space, options, dir, previous, lock })
}

impl Ready {
    /// Starts the writer.
    pub(crate) fn start(self) -> Result<Opened, JournalError> {
        let Ready { anchor, found_anchor, meta, head, previous, .. } = self;
        let shared = Arc::new(Shared {
            store: self.store,
            queue: Queue::new(&self.options),
            anchored: Mutex::new(anchor.current()),
            commits: AtomicU64::new(0),
            gate: Mutex::new(()),
            space: self.space,
            options: self.options,
            dir: self.dir,
            lock: Mutex::new(self.lock),
        });
        let writer = Writer { shared: Arc::clone(&shared), anchor, meta, head };
        let thread = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run())
            .map_err(JournalError::io("start the writer of", &shared.dir))?;
        let journal = Journal { inner: Arc::new(Inner::new(shared, thread)) };
        let beyond_anchor = head.seq - found_anchor.map_or(head.seq, |a| a.seq);
        let epoch = meta.epoch;
        Ok(Opened { journal, head, found_anchor, beyond_anchor, epoch, previous })
    }
}

/// Whether neither store nor anchor exist.
// J3: a store that is not there is refused when an anchor says it was.
fn store_is_new(path: &Path, anchor: Option<Anchor>) -> Result<bool, JournalError> {
    match (fsio::len_of(path)?, anchor) {
        (None, Some(anchored)) => Err(JournalError::StoreMissing { anchored }),
        (Some(0), Some(anchored)) => Err(JournalError::Emptied { anchored }),
        (None | Some(0), None) => Ok(true),
        (Some(_), _) => Ok(false),
    }
}

/// Verifies every page before anything in it is used.
// redb trusts the pages of a file that it opens plainly and may panic on a rotten one; checked, it
// reports it. A panic would end a process that is built with `panic = "abort"` before it can say
// what is wrong, and unwinding is no way out: then a panic anywhere else in the supervisor would
// leave it running with a broken invariant. A process of its own for the check would do the same
// reads. They go through an overlay, because a check that finds damage also repairs, and that must
// not write over the evidence (J3).
fn check_pages(dir: &Path, options: &Options) -> Result<(), JournalError> {
    with_store(dir, options, |_| Ok(()))
}

/// Makes a whole new store, then gives it its name.
fn create_store(dir: &Path, path: &Path, cache_bytes: usize) -> Result<(), JournalError> {
    let new = dir.join(store::NEW_FILE);
    Store::create(dir, &new, cache_bytes)?.close()?;
    std::fs::rename(&new, path).map_err(JournalError::io("name", path))?;
    fsio::sync_dir(dir)
}

/// Checks an existing store. Returns what it says about itself and its head.
fn check_store(
    store: &Store,
    anchor: Option<Anchor>,
    options: &Options,
) -> Result<(Meta, Head), JournalError> {
    let meta = match (store.meta()?, anchor) {
        (Some(meta), _) => meta,
        (None, Some(anchored)) => return Err(JournalError::Emptied { anchored }),
        (None, None) => {
            return Err(JournalError::Damaged(Damage { seq: None, kind: DamageKind::BadMeta }));
        }
    };
    if meta.schema > options.schema_supported {
        // J8
        return Err(JournalError::Newer {
            found: u32::from(meta.schema),
            supported: u32::from(options.schema_supported),
            feature: "record schema".to_owned(),
        });
    }
    let head = check_anchor(store, meta, anchor)?;
    Ok((meta, head))
}

/// J3: the chain must contain the anchored sequence with the anchored hash; what follows it is
/// verified link by link. Returns the head.
pub(crate) fn check_anchor(
    store: &Store,
    meta: Meta,
    anchor: Option<Anchor>,
) -> Result<Head, JournalError> {
    let extent = store.extent()?;
    let Some(anchored) = anchor else {
        return match extent {
            Some(extent) => Err(JournalError::AnchorMissing { records: extent.records }),
            None => Ok(Head::GENESIS),
        };
    };
    let last = extent.map_or(0, |e| e.last);
    if last < anchored.seq {
        return Err(match last {
            0 => JournalError::Emptied { anchored },
            found => JournalError::Truncated { anchored, found },
        });
    }
    if let Some(extent) = extent
        && (extent.first != 1 || extent.records != extent.last)
    {
        // J2: contiguous from 1.
        let kind = DamageKind::Gap { first: extent.first, last, records: extent.records };
        return Err(JournalError::Damaged(Damage { seq: None, kind }));
    }
    let found =
        match anchored.seq {
            0 => RecordHash::GENESIS,
            seq => RecordHash::of(&store.read_one(seq)?.ok_or(JournalError::Damaged(Damage {
                seq: Some(seq),
                kind: DamageKind::Missing,
            }))?),
        };
    if found != anchored.hash {
        return Err(JournalError::Replaced { anchored, found });
    }
    if meta.epoch != anchored.epoch {
        return Err(JournalError::WrongEpoch { anchored, found: meta.epoch });
    }
    let mut cursor = Cursor::new(anchored.head(), last);
    while let Some(record) = cursor.step(store) {
        record?;
    }
    Ok(cursor.at())
}

/// Creates the anchor of a new journal, or moves an older one to the head.
fn settle_anchor(
    dir: &Path,
    file: Option<AnchorFile>,
    now: Anchor,
) -> Result<AnchorFile, JournalError> {
    let Some(mut file) = file else { return AnchorFile::create(dir, now) };
    if file.current() != now {
        file.advance(now)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{NewRecord, Priority};

    #[test]
    fn a_failed_anchor_write_poisons_although_the_store_has_the_records() {
        // J5: the outcome is unknown to the caller and learnt by reopening.
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            prepare(dir.path(), Options::default(), Holder::this_process("test", 1), |path| {
                Store::file_backend(path, false)
            })
            .unwrap()
        };
        let mut ready = open();
        ready.anchor.make_read_only();
        let journal = ready.start().unwrap().journal;
        let record = || vec![NewRecord { kind: 1, schema: 1, payload: vec![1] }];
        let first = journal.append(record(), Priority::Normal);
        assert!(matches!(first, Err(JournalError::CommitFailed { .. })), "{first:?}");
        let next = journal.append(record(), Priority::Cleanup);
        assert!(matches!(next, Err(JournalError::Poisoned { .. })), "{next:?}");
        assert_eq!(journal.head(), Head::GENESIS, "nothing was acknowledged");
        assert_eq!(journal.records(1).unwrap().count(), 0);
        drop(journal);
        let opened = open().start().unwrap();
        assert_eq!((opened.head.seq, opened.beyond_anchor), (1, 1));
    }
}
