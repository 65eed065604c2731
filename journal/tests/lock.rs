//! J4: one holder, named when it refuses another.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use atenea_journal::{Holder, JournalError, Phase, recover_accept_loss, stats, verify};
use common::*;

#[test]
fn a_second_opener_is_refused_with_the_name_of_the_first_and_changes_nothing() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    let first = Holder { generation: Some(7), ..Holder::this_process("first", 1234) };
    journal.set_holder(first.clone()).unwrap();
    let before = listing(dir.path());
    let refused = [
        open(dir.path()).map(|_| ()).unwrap_err(),
        verify(dir.path(), &options(), holder()).map(|_| ()).unwrap_err(),
        stats(dir.path(), &options(), holder()).map(|_| ()).unwrap_err(),
        recover_accept_loss(dir.path(), &options(), holder(), "x").map(|_| ()).unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(&error, JournalError::Locked { holder: Some(h), .. } if *h == first),
            "{error}"
        );
        let text = error.to_string();
        let name = format!("pid {} (first), generation 7", std::process::id());
        assert!(text.contains(&name), "{text}");
    }
    assert_eq!(listing(dir.path()), before);
    drop(journal);
    open(dir.path()).unwrap();
}

#[test]
fn a_reader_that_outlives_its_journal_keeps_the_lock() {
    let dir = journal_with(3);
    let journal = open(dir.path()).unwrap().journal;
    let mut records = journal.records(1).unwrap();
    drop(journal);
    assert!(matches!(open(dir.path()).map(|_| ()), Err(JournalError::Locked { .. })));
    assert_eq!(records.by_ref().filter(|r| r.is_ok()).count(), 3);
    drop(records);
    open(dir.path()).unwrap();
}

/// A copy of the held lock's descriptor, as a process has that was forked a moment ago.
fn copy_of_the_lock(dir: &Path) -> OwnedFd {
    let held = fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .find(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == dir.join("lock")));
    let fd: i32 = held.unwrap().file_name().to_str().unwrap().parse().unwrap();
    let me = rustix::process::getpid();
    let me = rustix::process::pidfd_open(me, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::pidfd_getfd(me, fd, rustix::process::PidfdGetfdFlags::empty()).unwrap()
}

#[test]
fn a_journal_that_was_closed_is_free_although_a_process_just_forked_has_its_descriptors() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    let copy = copy_of_the_lock(dir.path());
    drop(journal);
    open(dir.path()).unwrap();
    drop(copy);
}

#[test]
fn the_lock_of_a_killed_holder_is_waited_for_and_that_of_a_living_one_is_not() {
    let dir = journal_with(1);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    journal.set_holder(Holder { pid: child.id(), ..holder() }).unwrap();
    // The copy keeps the lock and says who is gone; it goes once somebody has begun to wait.
    let copy = fs::File::open(dir.path().join("lock")).unwrap();
    let let_go = std::thread::spawn({
        let dir = dir.path().to_owned();
        move || {
            while inode_users(&dir) < 3 {
                std::thread::yield_now();
            }
            drop((journal, copy));
        }
    });
    open(dir.path()).unwrap();
    let_go.join().unwrap();
}

/// How many descriptors of this process are open on the lock.
fn inode_users(dir: &Path) -> usize {
    let lock = dir.join("lock");
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == lock)).count()
}

#[test]
fn removing_the_lock_file_of_a_living_holder_does_not_let_a_second_writer_in() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    fs::remove_file(dir.path().join("lock")).unwrap();
    let got = open(dir.path()).map(|_| ());
    assert!(matches!(got, Err(JournalError::Locked { holder: None, .. })), "{got:?}");
    put(&journal, "still the only writer");
}

#[test]
fn the_phase_in_which_a_holder_died_is_told_to_the_next_one() {
    let dir = journal_with(1);
    let opened = open(dir.path()).unwrap();
    assert_eq!(opened.journal.holder().1, Phase::Opening);
    let dying = fs::read(dir.path().join("lock")).unwrap();
    opened.journal.set_holder(holder()).unwrap();
    let running = fs::read(dir.path().join("lock")).unwrap();
    drop(opened);
    assert_eq!(open(dir.path()).unwrap().previous.unwrap().1, Phase::Closed);
    for (left, phase) in [(&dying, Phase::Opening), (&running, Phase::Running)] {
        fs::write(dir.path().join("lock"), left).unwrap();
        assert_eq!(open(dir.path()).unwrap().previous.unwrap().1, phase);
    }
}

#[test]
fn an_unreadable_lock_file_is_taken_over_without_a_name() {
    let dir = journal_with(1);
    for bytes in [&b""[..], b"{", b"\xff\xfe\n", &[b'x'; 10_000]] {
        fs::write(dir.path().join("lock"), bytes).unwrap();
        let opened = open(dir.path()).unwrap();
        assert_eq!(opened.previous, None);
    }
}

fn listing(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
        .collect();
    files.sort();
    files
}
