//! The bounded queue before the writer (J7).

use std::collections::VecDeque;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::JournalError;
use crate::frame::{Head, RecordHash};
use crate::options::Options;

/// A record to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    /// What the payload is. 0 is reserved.
    pub kind: u16,
    /// Version of the payload's schema.
    pub schema: u16,
    /// The payload, see [`crate::encode`].
    pub payload: Vec<u8>,
}

/// Which appends still pass when there is little room (J9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// New work: refused when the disk has less than the reserve, or the queue is full.
    Normal,
    /// Cancel, cleanup, settlement: may use the reserve and twice the queue.
    Cleanup,
}

/// Where an acknowledged batch is in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Sequence of the first record of the batch.
    pub first: u64,
    /// Sequence of the last one.
    pub last: u64,
    /// Hash of the last one.
    pub hash: RecordHash,
}

impl Appended {
    /// The position of the batch's last record.
    pub fn head(&self) -> Head {
        Head { seq: self.last, hash: self.hash }
    }
}

pub(crate) type Callback = Box<dyn FnOnce(Result<Appended, JournalError>) + Send>;

/// A batch that waits for the writer.
pub(crate) struct Pending {
    pub(crate) batch: Vec<NewRecord>,
    pub(crate) bytes: usize,
    pub(crate) done: Callback,
}

#[derive(Default)]
struct State {
    items: VecDeque<Pending>,
    records: usize,
    bytes: usize,
    closed: bool,
    poisoned: Option<String>,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    records_max: usize,
    bytes_max: usize,
}

impl Queue {
    pub(crate) fn new(options: &Options) -> Self {
        Queue {
            state: Mutex::default(),
            wake: Condvar::new(),
            records_max: options.queue_records,
            bytes_max: options.queue_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a batch, or refuses it and enqueues nothing.
    pub(crate) fn push(&self, pending: Pending, priority: Priority) -> Result<(), JournalError> {
        let mut state = self.lock();
        if let Some(cause) = &state.poisoned {
            return Err(JournalError::Poisoned { cause: cause.clone() });
        }
        if state.closed {
            return Err(JournalError::Closed);
        }
        let factor = match priority {
            Priority::Normal => 1,
            Priority::Cleanup => 2,
        };
        let records = state.records + pending.batch.len();
        let bytes = state.bytes + pending.bytes;
        if records > self.records_max * factor || bytes > self.bytes_max * factor {
            return Err(JournalError::QueueFull { records: state.records, bytes: state.bytes });
        }
        state.records = records;
        state.bytes = bytes;
        state.items.push_back(pending);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Waits for work and takes all of it, up to `records_max` records (at least one batch).
    /// `None` when the queue is closed and empty, or poisoned.
    pub(crate) fn take_group(&self, records_max: usize) -> Option<Vec<Pending>> {
        let mut state = self.lock();
        loop {
            if state.poisoned.is_some() {
                return None;
            }
            if !state.items.is_empty() {
                break;
            }
            if state.closed {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut group = Vec::new();
        let mut records = 0;
        while let Some(next) = state.items.pop_front() {
            if !group.is_empty() && records + next.batch.len() > records_max {
                state.items.push_front(next);
                break;
            }
            records += next.batch.len();
            state.records -= next.batch.len();
            state.bytes -= next.bytes;
            group.push(next);
        }
        Some(group)
    }

    /// No more pushes; what is enqueued is still written.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// J5: nothing is accepted any more. Returns what waited, to be answered by the caller.
    pub(crate) fn poison(&self, cause: &str) -> Vec<Pending> {
        let mut state = self.lock();
        state.poisoned.get_or_insert_with(|| cause.to_owned());
        state.records = 0;
        state.bytes = 0;
        let items = mem::take(&mut state.items);
        drop(state);
        self.wake.notify_all();
        items.into()
    }

    /// Why the journal stopped, if it did.
    pub(crate) fn poisoned(&self) -> Option<String> {
        self.lock().poisoned.clone()
    }
}
