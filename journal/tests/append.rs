//! Appending: order, atomicity, bounds, group commit.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::mpsc::channel;

use atenea_journal::{Head, Journal, JournalError, NewRecord, Options, Priority, RecordHash};
use common::*;

#[test]
fn appended_records_are_read_back_in_order_and_chained() {
    // J2
    let dir = journal_with(5);
    let opened = open(dir.path()).unwrap();
    let records: Vec<_> = opened.journal.records(1).unwrap().map(|r| r.unwrap()).collect();
    let mut before = Head::GENESIS;
    for (record, n) in records.iter().zip(1u64..) {
        assert_eq!(record.seq, n);
        assert_eq!(record.prev, before.hash);
        assert_eq!(record.hash, RecordHash::of(record.stored()));
        assert_eq!(record.payload(), format!("r{n}").as_bytes());
        before = record.head();
    }
    assert_eq!(records.len(), 5);
    assert_eq!(opened.head, before);
    assert_eq!(opened.journal.head(), before);
}

#[test]
fn reading_can_start_anywhere_and_checks_the_first_link_too() {
    let dir = journal_with(5);
    let journal = open(dir.path()).unwrap().journal;
    let from = |n| journal.records(n).unwrap().map(|r| r.unwrap().seq).collect::<Vec<_>>();
    assert_eq!(from(0), [1, 2, 3, 4, 5]);
    assert_eq!(from(4), [4, 5]);
    assert_eq!(from(5), [5]);
    assert!(from(6).is_empty());
    assert!(from(u64::MAX).is_empty());
}

#[test]
fn a_batch_is_contiguous_and_its_callback_names_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    put(&journal, "before");
    let batch = vec![record("a"), record("b"), record("c")];
    let place = journal.append(batch, Priority::Normal).unwrap();
    assert_eq!((place.first, place.last), (2, 4));
    assert_eq!(place.head(), journal.head());
}

#[test]
fn many_concurrent_appenders_share_few_commits() {
    // J7 bound and group commit, counted in commits and not in time: while the first commit is
    // held back, everything else queues up and must go into the second one.
    const N: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let gate = Gate::default();
    let backend_gate = gate.clone();
    let opened = Journal::open_on(dir.path(), options(), holder(), move |path| {
        Ruled::open(path, backend_gate)
    })
    .unwrap();
    let journal = opened.journal;
    gate.close();
    let (tell, told) = channel();
    let send = |n: u64| {
        let tell = tell.clone();
        let done = Box::new(move |result: Result<_, _>| tell.send((n, result)).unwrap());
        journal.append_with(vec![record(n.to_string())], Priority::Normal, done).unwrap();
    };
    send(0);
    gate.wait_until_held();
    std::thread::scope(|scope| {
        for n in 1..N {
            let send = &send;
            scope.spawn(move || send(n));
        }
    });
    gate.open();
    let mut seqs: Vec<u64> =
        (0..N).map(|_| told.recv().unwrap()).map(|(_, r)| r.unwrap().last).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=N).collect::<Vec<_>>());
    assert_eq!(journal.commits(), 2);
}

#[test]
fn a_record_above_its_bound_is_refused_before_anything_is_written() {
    // J7
    let dir = tempfile::tempdir().unwrap();
    let options = Options { max_record_bytes: 100, max_batch_records: 3, ..options() };
    let journal = Journal::open(dir.path(), options, holder()).unwrap().journal;
    put(&journal, "one");
    let big = journal.append(vec![record("x"), record(vec![0; 101])], Priority::Cleanup);
    assert!(matches!(big, Err(JournalError::RecordTooLarge { bytes: 101, max: 100 })), "{big:?}");
    let many = journal.append(vec![record("x"); 4], Priority::Normal);
    assert!(matches!(many, Err(JournalError::BatchTooLarge { records: 4, .. })), "{many:?}");
    let none = journal.append(vec![], Priority::Normal);
    assert!(matches!(none, Err(JournalError::EmptyBatch)), "{none:?}");
    let own = NewRecord { kind: 0, schema: 1, payload: vec![] };
    let own = journal.append(vec![own], Priority::Normal);
    assert!(matches!(own, Err(JournalError::ReservedKind { kind: 0 })), "{own:?}");
    assert_eq!(journal.commits(), 1);
    // The bound itself passes: a refusal wedges nothing.
    journal.append(vec![record(vec![0; 100])], Priority::Normal).unwrap();
    assert_eq!(journal.head().seq, 2);
}

#[test]
fn a_full_queue_refuses_new_work_but_still_takes_cleanup() {
    // J7, J9
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let gate = Gate::default();
    let backend_gate = gate.clone();
    let options = Options { queue_records: 3, ..options() };
    let journal = Journal::open_on(dir.path(), options, holder(), move |path| {
        Ruled::open(path, backend_gate)
    })
    .unwrap()
    .journal;
    gate.close();
    let (tell, told) = channel();
    let send = |priority| {
        let tell = tell.clone();
        let done = Box::new(move |result: Result<_, _>| tell.send(result).unwrap());
        journal.append_with(vec![record("x")], priority, done)
    };
    send(Priority::Normal).unwrap();
    gate.wait_until_held();
    for _ in 0..3 {
        send(Priority::Normal).unwrap();
    }
    let refused = send(Priority::Normal);
    assert!(matches!(refused, Err(JournalError::QueueFull { records: 3, .. })), "{refused:?}");
    for _ in 0..3 {
        send(Priority::Cleanup).unwrap();
    }
    let refused = send(Priority::Cleanup);
    assert!(matches!(refused, Err(JournalError::QueueFull { records: 6, .. })), "{refused:?}");
    gate.open();
    for _ in 0..7 {
        told.recv().unwrap().unwrap();
    }
    assert!(told.try_recv().is_err(), "a refused append must not call back");
    assert_eq!(journal.head().seq, 7);
}

#[test]
fn closing_writes_what_was_enqueued_and_refuses_what_comes_after() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    let other = journal.clone();
    let (tell, told) = channel();
    for n in 0..50 {
        let tell = tell.clone();
        let done = Box::new(move |result: Result<_, _>| tell.send(result).unwrap());
        journal.append_with(vec![record(n.to_string())], Priority::Normal, done).unwrap();
    }
    journal.close().unwrap();
    assert_eq!(told.try_iter().filter(|r| r.is_ok()).count(), 50);
    let late = other.append(vec![record("late")], Priority::Cleanup);
    assert!(matches!(late, Err(JournalError::Closed)), "{late:?}");
    drop(other);
    assert_eq!(open(dir.path()).unwrap().head.seq, 50);
}

#[test]
fn the_last_handle_may_be_dropped_inside_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    let (tell, told) = channel();
    let last = journal.clone();
    let done = Box::new(move |result: Result<_, _>| {
        drop(last);
        tell.send(result).unwrap();
    });
    journal.append_with(vec![record("x")], Priority::Normal, done).unwrap();
    drop(journal);
    told.recv().unwrap().unwrap();
}
