//! What the journal's tests share.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use atenea_journal::{
    Appended, Holder, Journal, JournalError, NewRecord, Opened, Options, Priority,
};
use redb::backends::FileBackend;
use redb::{BackendError, Database, StorageBackend, TableDefinition};

pub const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
pub const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

pub fn options() -> Options {
    Options { reserve_bytes: 64 << 10, ..Options::default() }
}

pub fn holder() -> Holder {
    Holder::this_process("test", 1)
}

pub fn open(dir: &Path) -> Result<Opened, JournalError> {
    Journal::open(dir, options(), holder())
}

pub fn record(payload: impl Into<Vec<u8>>) -> NewRecord {
    NewRecord { kind: 7, schema: 1, payload: payload.into() }
}

pub fn put(journal: &Journal, payload: &str) -> Appended {
    journal.append(vec![record(payload)], Priority::Normal).unwrap()
}

/// Payloads of the caller's records, in order.
pub fn payloads(journal: &Journal) -> Vec<String> {
    journal
        .records(1)
        .unwrap()
        .map(|r| r.unwrap())
        .filter(|r| r.kind != atenea_journal::KIND_EPOCH)
        .map(|r| String::from_utf8(r.payload().to_vec()).unwrap())
        .collect()
}

/// A closed journal with `n` records `r1 … rn`, one commit each.
pub fn journal_with(n: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path()).unwrap();
    for i in 1..=n {
        put(&opened.journal, &format!("r{i}"));
    }
    opened.journal.close().unwrap();
    dir
}

pub fn store_path(dir: &Path) -> std::path::PathBuf {
    dir.join("journal.redb")
}

/// Changes the store behind the journal's back, as a valid redb commit.
pub fn tamper(dir: &Path, change: impl FnOnce(&redb::WriteTransaction)) {
    let db = Database::open(store_path(dir)).unwrap();
    let txn = db.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
}

/// Where `part` occurs.
pub fn find_all(bytes: &[u8], part: &[u8]) -> Vec<usize> {
    bytes.windows(part.len()).enumerate().filter(|(_, w)| *w == part).map(|(at, _)| at).collect()
}

/// A backend that delegates to the file and asks `rule` before each changing operation.
#[derive(Debug)]
pub struct Ruled<R> {
    inner: FileBackend,
    rule: R,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Write,
    SetLen,
    Sync,
}

pub trait Rule: std::fmt::Debug + Send + Sync + 'static {
    fn before(&self, op: Op) -> io::Result<()>;
}

impl<R: Rule> Ruled<R> {
    pub fn open(path: &Path, rule: R) -> Result<Self, JournalError> {
        let file = File::options().read(true).write(true).open(path).unwrap();
        Ok(Ruled { inner: FileBackend::new(file).unwrap(), rule })
    }
}

impl<R: Rule> StorageBackend for Ruled<R> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.rule.before(Op::SetLen)?;
        self.inner.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.rule.before(Op::Sync)?;
        self.inner.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.rule.before(Op::Write)?;
        self.inner.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}

/// Fails every operation from the `at`-th on, once armed.
#[derive(Debug, Clone)]
pub struct FailFrom {
    pub left: Arc<AtomicU64>,
    pub error: io::ErrorKind,
}

impl Rule for FailFrom {
    fn before(&self, _: Op) -> io::Result<()> {
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(self.error.into());
        }
        if left != u64::MAX {
            self.left.store(left - 1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Holds syncs back while it is closed.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    inner: Arc<(Mutex<GateState>, Condvar)>,
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    waiting: bool,
}

impl Gate {
    pub fn close(&self) {
        self.inner.0.lock().unwrap().closed = true;
    }
    pub fn open(&self) {
        self.inner.0.lock().unwrap().closed = false;
        self.inner.1.notify_all();
    }
    /// Returns when a sync is being held back.
    pub fn wait_until_held(&self) {
        let mut state = self.inner.0.lock().unwrap();
        while !state.waiting {
            state = self.inner.1.wait(state).unwrap();
        }
    }
}

impl Rule for Gate {
    fn before(&self, op: Op) -> io::Result<()> {
        if op == Op::Sync {
            let mut state = self.inner.0.lock().unwrap();
            while state.closed {
                state.waiting = true;
                self.inner.1.notify_all();
                state = self.inner.1.wait(state).unwrap();
            }
            state.waiting = false;
        }
        Ok(())
    }
}

/// A small generator, so that a failing seed can be repeated.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
