//! Opening, appending, reading: the handle a driver holds.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use redb::StorageBackend;

use crate::anchor::Anchor;
use crate::error::JournalError;
use crate::frame::{Head, KIND_EPOCH};
use crate::lock::{Holder, Lock, Phase};
use crate::open;
use crate::options::Options;
use crate::queue::{Appended, NewRecord, Pending, Priority, Queue};
use crate::records::{Cursor, Records};
use crate::space::Space;
use crate::store::Store;

/// What all handles, readers and the writer share. The lock is the last field: it is released when
/// the store is closed, not before (J4).
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    pub(crate) anchored: Mutex<Anchor>,
    pub(crate) commits: AtomicU64,
    /// Held while the store's file and its anchor change, so that they can be looked at in between.
    pub(crate) gate: Mutex<()>,
    pub(crate) space: Space,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    pub(crate) lock: Mutex<Lock>,
}

pub(crate) struct Inner {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    pub(crate) fn new(shared: Arc<Shared>, writer: JoinHandle<()>) -> Self {
        Inner { shared, writer: Mutex::new(Some(writer)) }
    }

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
    pub(crate) inner: Arc<Inner>,
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
        open::prepare(dir, options, holder, make)?.start()
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

    /// Refuses when fewer than `min_bytes` are free beside the reserve: the question to ask at
    /// admission (J9). What was freed for cleanup is not there for anything new.
    ///
    /// # Errors
    /// `DiskFull`, or `Io` when the file system cannot be asked.
    pub fn has_space(&self, min_bytes: u64) -> Result<(), JournalError> {
        // What was used up for cleanup is set aside again before anything new.
        self.shared().space.has_reserve()?;
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
