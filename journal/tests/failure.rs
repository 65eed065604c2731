//! J1, J5: failed commits and lost power. After a failure nothing is accepted, and the reopened
//! journal holds every acknowledged record and a prefix of what was sent.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use atenea_journal::{Journal, JournalError, Priority, verify};
use common::*;
use redb::StorageBackend;

/// Appends until it fails; returns how many records were acknowledged.
fn append_until_it_fails(journal: &Journal, sent: u64) -> (u64, Option<JournalError>) {
    for n in 1..=sent {
        let payload = format!("{n}:{}", "x".repeat(usize::try_from(n * 37 % 900).unwrap()));
        if let Err(error) = journal.append(vec![record(payload)], Priority::Normal) {
            return (n - 1, Some(error));
        }
    }
    (sent, None)
}

/// Every acknowledged record is there, at most one more, in the order they were sent.
fn assert_prefix(dir: &Path, acked: u64, what: &str) {
    let report = verify(dir, &options(), holder()).unwrap();
    assert!(report.is_whole(), "{what}: {report:?}");
    let opened = open(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    let read = payloads(&opened.journal);
    let there = read.len() as u64;
    assert!(there == acked || there == acked + 1, "{what}: acked {acked}, there {there}");
    for (payload, n) in read.iter().zip(1..) {
        assert!(payload.starts_with(&format!("{n}:")), "{what}: {n} is {payload}");
    }
    // And it goes on from there.
    assert_eq!(put(&opened.journal, "next").last, there + 1);
}

#[test]
fn an_error_at_every_operation_of_the_store_poisons_and_reopens_to_a_prefix() {
    let mut failures = 0;
    for (error, step) in [(io::ErrorKind::StorageFull, 1), (io::ErrorKind::Other, 5)] {
        for k in (0..60).step_by(step) {
            let dir = journal_with(0);
            let rule = FailFrom { left: Arc::new(AtomicU64::new(u64::MAX)), error };
            let left = Arc::clone(&rule.left);
            let opened =
                Journal::open_on(dir.path(), options(), holder(), |path| Ruled::open(path, rule))
                    .unwrap();
            let journal = opened.journal;
            left.store(k, Ordering::SeqCst);
            let (acked, failed) = append_until_it_fails(&journal, 8);
            if let Some(failed) = failed {
                failures += 1;
                assert!(matches!(failed, JournalError::CommitFailed { .. }), "{failed}");
                // J5: not even cleanup, and not even when the disk works again.
                left.store(u64::MAX, Ordering::SeqCst);
                let late = journal.append(vec![record("late")], Priority::Cleanup);
                assert!(matches!(late, Err(JournalError::Poisoned { .. })), "{late:?}");
                assert!(journal.poisoned().is_some());
                assert!(matches!(journal.close(), Err(JournalError::Poisoned { .. })));
            } else {
                journal.close().unwrap();
            }
            assert_prefix(dir.path(), acked, &format!("{error:?} at operation {k}"));
        }
    }
    assert!(failures > 40, "only {failures} of the faults were reached");
}

#[test]
fn everything_that_waited_is_answered_when_a_commit_fails() {
    let dir = journal_with(0);
    let gate = Gate::default();
    let fail = FailFrom { left: Arc::new(AtomicU64::new(u64::MAX)), error: io::ErrorKind::Other };
    let rule = GateThenFail { gate: gate.clone(), fail: fail.clone() };
    let journal = Journal::open_on(dir.path(), options(), holder(), |path| Ruled::open(path, rule))
        .unwrap()
        .journal;
    gate.close();
    let (tell, told) = std::sync::mpsc::channel();
    let send = |n: u64| {
        let tell = tell.clone();
        let done = Box::new(move |result: Result<_, _>| tell.send((n, result)).unwrap());
        journal.append_with(vec![record(n.to_string())], Priority::Normal, done).unwrap();
    };
    send(0);
    gate.wait_until_held();
    (1..10).for_each(send);
    fail.left.store(0, Ordering::SeqCst);
    gate.open();
    let answers: Vec<_> = (0..10).map(|_| told.recv().unwrap()).collect();
    for (n, result) in answers {
        match n {
            0 => assert!(matches!(result, Err(JournalError::CommitFailed { .. })), "{result:?}"),
            _ => assert!(matches!(result, Err(JournalError::Poisoned { .. })), "{n}: {result:?}"),
        }
    }
}

#[derive(Debug)]
struct GateThenFail {
    gate: Gate,
    fail: FailFrom,
}

impl Rule for GateThenFail {
    fn before(&self, op: Op) -> io::Result<()> {
        self.gate.before(op)?;
        self.fail.before(op)
    }
}

/// A disk that keeps what was synced and, at the power cut, any part of the rest.
#[derive(Debug, Clone)]
struct LossyDisk {
    state: Arc<Mutex<Disk>>,
}

#[derive(Debug)]
struct Disk {
    synced: Vec<u8>,
    current: Vec<u8>,
    pending: Vec<Change>,
    syncs_left: u64,
}

#[derive(Debug, Clone)]
enum Change {
    Len(usize),
    Write(usize, Vec<u8>),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Len(len) => to.resize(*len, 0),
            Change::Write(at, data) => {
                if to.len() < at + data.len() {
                    to.resize(at + data.len(), 0);
                }
                to[*at..at + data.len()].copy_from_slice(data);
            }
        }
    }
}

impl LossyDisk {
    fn load(path: &Path, syncs: u64) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let disk =
            Disk { synced: bytes.clone(), current: bytes, pending: vec![], syncs_left: syncs };
        LossyDisk { state: Arc::new(Mutex::new(disk)) }
    }

    fn alive(&self) -> io::Result<std::sync::MutexGuard<'_, Disk>> {
        let disk = self.state.lock().unwrap();
        if disk.syncs_left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(disk)
    }

    /// What is on the disk after the cut: each unsynced change is lost, kept or torn.
    fn after_the_cut(&self, rng: &mut Rng) -> Vec<u8> {
        let disk = self.state.lock().unwrap();
        let mut out = disk.synced.clone();
        for change in &disk.pending {
            match (rng.below(3), change) {
                (0, _) => {}
                (1, change) => change.apply(&mut out),
                (_, Change::Write(at, data)) => {
                    let keep = usize::try_from(rng.below(data.len() as u64 + 1)).unwrap();
                    Change::Write(*at, data[..keep].to_vec()).apply(&mut out);
                }
                (_, change) => change.apply(&mut out),
            }
        }
        out
    }
}

impl StorageBackend for LossyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.alive()?.current.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.alive()?;
        let at = usize::try_from(offset).unwrap();
        let from = disk.current.get(at..at + out.len());
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.alive()?;
        let change = Change::Len(usize::try_from(len).unwrap());
        change.apply(&mut disk.current);
        disk.pending.push(change);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.alive()?;
        disk.syncs_left -= 1;
        if disk.syncs_left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        disk.synced = disk.current.clone();
        disk.pending.clear();
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.alive()?;
        let change = Change::Write(usize::try_from(offset).unwrap(), data.to_vec());
        change.apply(&mut disk.current);
        disk.pending.push(change);
        Ok(())
    }
}

#[test]
fn power_lost_at_every_sync_with_lost_and_torn_writes_keeps_every_acknowledged_record() {
    // J1. The anchor file is real: power is lost before it could be written.
    let mut cuts = 0;
    for syncs in 1..30 {
        for seed in 0..4 {
            let dir = journal_with(0);
            let disk = LossyDisk::load(&store_path(dir.path()), syncs);
            let on = disk.clone();
            let opened = Journal::open_on(dir.path(), options(), holder(), |_| Ok(on));
            let acked = match opened {
                Ok(opened) => append_until_it_fails(&opened.journal, 10).0,
                Err(_) => 0,
            };
            if acked < 10 {
                cuts += 1;
            }
            let left = disk.after_the_cut(&mut Rng(seed * 1000 + syncs));
            std::fs::write(store_path(dir.path()), left).unwrap();
            assert_prefix(dir.path(), acked, &format!("cut at sync {syncs}, seed {seed}"));
        }
    }
    assert!(cuts > 60, "only {cuts} cuts");
}
