//! Opening, appending, reading: the handle a driver holds.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use redb::StorageBackend;

use crate::anchor::{Anchor, AnchorFile};
use crate::error::JournalError;
use crate::frame::{Head, KIND_EPOCH, RecordHash};
use crate::fsio;
use crate::lock::{Holder, Lock, Phase};
use crate::options::Options;
use crate::queue::{Appended, NewRecord, Pending, Priority, Queue};
use crate::records::{Cursor, Records};
use crate::space::Space;
use crate::store::{self, Meta, Store};
use crate::verify::{Damage, DamageKind};
use crate::writer::Writer;

/// What all handles, readers and the writer share. The lock is the last field: it is released when
/// the store is closed, not before (J4).
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    pub(crate) anchored: Mutex<Anchor>,
    pub(crate) commits: AtomicU64,
    pub(crate) space: Space,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    lock: Mutex<Lock>,
}

struct Inner {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    /// Lets the writer finish what is enqueued and waits for it.
    fn finish(&self) {
        self.shared.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.thread().id() != thread::current().id()
        {
            // A panic of the writer has already poisoned the queue.
            let _ = writer.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.finish();
    }
}

/// An open journal. Clones share one writer; the lock is held until the last clone, reader and
/// callback is gone.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

/// A journal that was just opened and checked against its anchor.
pub struct Opened {
    /// The handle.
    pub journal: Journal,
    /// The last record.
    pub head: Head,
    /// The anchor as it was found; `None` for a new journal.
    pub found_anchor: Option<Anchor>,
    /// Records behind the found anchor that its chain contains: committed, but the process died
    /// before the anchor was written. They were not acknowledged, but they happened.
    pub beyond_anchor: u64,
    /// Epoch of the store: 1, plus one for each loss a person accepted.
    pub epoch: u64,
    /// Who held the journal before, and how far it got.
    pub previous: Option<(Holder, Phase)>,
    /// Whether every page was verified.
    pub checked: bool,
}

impl Journal {
    /// Opens the journal in `dir`, creating it when neither store nor anchor exist. The parent of
    /// `dir` must exist. The lock is taken first and held for the life of the handle (J4).
    ///
    /// # Errors
    /// `Locked` names the holder. Every error for which [`JournalError::needs_a_person`] holds
    /// means the store must not be used (J3); `Newer` names what this program lacks (J8).
    pub fn open(dir: &Path, options: Options, holder: Holder) -> Result<Opened, JournalError> {
        Self::open_on(dir, options, holder, |path| Store::file_backend(path, false))
    }

    /// As [`Journal::open`], with the store on a backend of the caller's making: the seam for fault
    /// injection. The backend must hold what is at the path it is given.
    ///
    /// # Errors
    /// As [`Journal::open`], and what `make` returns.
    pub fn open_on<B: StorageBackend>(
        dir: &Path,
        options: Options,
        holder: Holder,
        make: impl FnOnce(&Path) -> Result<B, JournalError>,
    ) -> Result<Opened, JournalError> {
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
        }
        // A holder that died while opening may have died of the store: look at every page.
        let checked = options.check_on_open || matches!(previous, Some((_, Phase::Opening)));
        let store = Store::open(dir, make(&path)?, options.cache_bytes, checked)?;
        let (meta, head) = check_store(&store, found_anchor, &options)?;
        let anchor = settle_anchor(dir, anchor, Anchor::new(head, meta.epoch))?;
        space.ensure()?;
        let beyond_anchor = head.seq - found_anchor.map_or(head.seq, |a| a.seq);
        let shared = Arc::new(Shared {
            store,
            queue: Queue::new(&options),
            anchored: Mutex::new(anchor.current()),
            commits: AtomicU64::new(0),
            space,
            options,
            dir: dir.to_owned(),
            lock: Mutex::new(lock),
        });
        let writer = Writer { shared: Arc::clone(&shared), anchor, meta, head };
        let thread = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run())
            .map_err(JournalError::io("start the writer of", dir))?;
        let journal =
            Journal { inner: Arc::new(Inner { shared, writer: Mutex::new(Some(thread)) }) };
        let epoch = meta.epoch;
        Ok(Opened { journal, head, found_anchor, beyond_anchor, epoch, previous, checked })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Appends a batch atomically. `done` is called exactly once, from the writer thread and in
    /// the order of the chain, if and only if this returns `Ok`. It must not block and must not
    /// call [`Journal::append`].
    ///
    /// # Errors
    /// Refusals before anything is enqueued: bounds (J7), a full disk (J9), a stopped journal (J5).
    pub fn append_with(
        &self,
        batch: Vec<NewRecord>,
        priority: Priority,
        done: Box<dyn FnOnce(Result<Appended, JournalError>) + Send>,
    ) -> Result<(), JournalError> {
        let shared = self.shared();
        let bytes = check_batch(&batch, &shared.options)?;
        if priority == Priority::Normal {
            shared.space.admit()?;
        }
        shared.queue.push(Pending { batch, bytes, done }, priority)
    }

    /// Appends a batch atomically and waits until it is durable.
    ///
    /// # Errors
    /// As [`Journal::append_with`]; `CommitFailed` when the outcome is unknown (J5).
    pub fn append(
        &self,
        batch: Vec<NewRecord>,
        priority: Priority,
    ) -> Result<Appended, JournalError> {
        let (tell, told) = sync_channel(1);
        let done = Box::new(move |result| {
            // The receiver waits below; it cannot be gone.
            let _ = tell.send(result);
        });
        self.append_with(batch, priority, done)?;
        told.recv().unwrap_or_else(|_| {
            Err(JournalError::CommitFailed { cause: "the writer is gone".to_owned() })
        })
    }

    /// The last acknowledged record.
    pub fn head(&self) -> Head {
        self.anchored().head()
    }

    /// The anchor of the last acknowledged commit.
    pub fn anchored(&self) -> Anchor {
        *self.shared().anchored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records from `from` (the first one is 1) to the present head.
    ///
    /// # Errors
    /// When the record before `from` cannot be read.
    pub fn records(&self, from: u64) -> Result<Records, JournalError> {
        let shared = Arc::clone(self.shared());
        let end = self.head().seq;
        let cursor = Cursor::from_seq(&shared.store, from, end)?;
        Ok(Records { shared, cursor })
    }

    /// Names the holder anew, once the generation is known. Also says that opening and the first
    /// reading are over.
    ///
    /// # Errors
    /// When the lock file cannot be written.
    pub fn set_holder(&self, holder: Holder) -> Result<(), JournalError> {
        self.lock().set(holder, Phase::Running)
    }

    /// Who is named in the lock file.
    pub fn holder(&self) -> (Holder, Phase) {
        let lock = self.lock();
        let (holder, phase) = lock.holder();
        (holder.clone(), phase)
    }

    fn lock(&self) -> MutexGuard<'_, Lock> {
        self.shared().lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the journal stopped, if a commit failed (J5).
    pub fn poisoned(&self) -> Option<String> {
        self.shared().queue.poisoned()
    }

    /// Commits since it was opened.
    pub fn commits(&self) -> u64 {
        self.shared().commits.load(Ordering::Relaxed)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.shared().dir
    }

    /// Refuses when fewer than `min_bytes` are free: the question to ask at admission (J9).
    ///
    /// # Errors
    /// `DiskFull`, or `Io` when the file system cannot be asked.
    pub fn has_space(&self, min_bytes: u64) -> Result<(), JournalError> {
        self.shared().space.has_space(min_bytes)
    }

    /// Whether the reserve is allocated.
    pub fn reserve_ok(&self) -> bool {
        self.shared().space.reserve_ok()
    }

    /// Frees the reserve, so that cleanup outside the journal has room as well. It is made again
    /// by the first normal append that finds enough space.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn release_reserve(&self) -> Result<(), JournalError> {
        self.shared().space.release()
    }

    /// Writes what is enqueued and closes. Other handles get `Closed` from then on.
    ///
    /// # Errors
    /// `Poisoned` when a commit had failed.
    pub fn close(self) -> Result<(), JournalError> {
        self.inner.finish();
        match self.poisoned() {
            Some(cause) => Err(JournalError::Poisoned { cause }),
            None => Ok(()),
        }
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

/// J7: bounds are checked before anything is enqueued. Returns the payload bytes.
fn check_batch(batch: &[NewRecord], options: &Options) -> Result<usize, JournalError> {
    if batch.is_empty() {
        return Err(JournalError::EmptyBatch);
    }
    let mut total: usize = 0;
    for record in batch {
        if record.kind == KIND_EPOCH {
            return Err(JournalError::ReservedKind { kind: record.kind });
        }
        let bytes = record.payload.len();
        if bytes > options.max_record_bytes {
            return Err(JournalError::RecordTooLarge { bytes, max: options.max_record_bytes });
        }
        total = total.saturating_add(bytes);
    }
    if batch.len() > options.max_batch_records || total > options.max_batch_bytes {
        return Err(JournalError::BatchTooLarge { records: batch.len(), bytes: total });
    }
    Ok(total)
}
