//! What the journal opens is a plain file of its user: anything else under one of its names is
//! refused at once, whatever it is.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use atenea_journal::{Head, Journal, JournalError, recover_accept_loss, stats, verify};
use common::*;
use rustix::fs::{CWD, Mode};

/// Far above anything a refusal needs: only a hang gets there.
const HANGS: Duration = Duration::from_secs(60);

const OPENED_BY_START: [&str; 4] = ["lock", "anchor", "journal.redb", "reserve"];

type Plant = (&'static str, fn(&Path));

/// Everything a name can be but a file; the links lead to a file that would do.
const PLANTS: [Plant; 6] = [
    ("pipe", |path| rustix::fs::mkfifoat(CWD, path, Mode::RWXU).unwrap()),
    ("directory", |path| fs::create_dir(path).unwrap()),
    ("socket", |path| drop(UnixListener::bind(path).unwrap())),
    ("link", |path| {
        symlink(kept(path), path).unwrap();
    }),
    ("broken link", |path| symlink("nowhere", path).unwrap()),
    ("link to a device", |path| symlink("/dev/zero", path).unwrap()),
];

/// Runs something that must come back.
fn soon<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(work()));
    match told.recv_timeout(HANGS) {
        Ok(got) => got,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: it panicked"),
    }
}

fn plant_in(dir: &Path, name: &str, plant: fn(&Path)) {
    let path = dir.join(name);
    fs::rename(&path, kept(&path)).unwrap();
    plant(&path);
}

/// Where the file goes while something else has its name.
fn kept(path: &Path) -> PathBuf {
    path.with_file_name(format!("kept-{}", path.file_name().unwrap().to_str().unwrap()))
}

#[test]
fn a_start_refuses_anything_but_a_file_under_each_name_it_opens() {
    for name in OPENED_BY_START {
        for (kind, plant) in PLANTS {
            let what = format!("{kind} as {name}");
            let dir = journal_with(3);
            plant_in(dir.path(), name, plant);
            let place = dir.path().to_owned();
            let error = soon(&what, move || open(&place).map(|_| ())).unwrap_err();
            assert_eq!(error.code(), "journal.damaged", "{what}: {error}");
            assert!(error.to_string().contains(name), "{what}: {error}");
            // What is there is evidence.
            let left = dir.path().join(name).symlink_metadata().unwrap();
            assert!(!left.is_file(), "{what}");
            fs::remove_file(dir.path().join(name))
                .or_else(|_| fs::remove_dir(dir.path().join(name)))
                .unwrap();
            fs::rename(kept(&dir.path().join(name)), dir.path().join(name)).unwrap();
            // Control: with its file back it starts.
            assert_eq!(open(dir.path()).unwrap().head.seq, 3, "{what}");
        }
    }
}

#[test]
fn looking_at_a_journal_refuses_anything_but_a_file_and_never_waits() {
    for name in ["lock", "anchor", "journal.redb"] {
        for (kind, plant) in PLANTS {
            let what = format!("{kind} as {name}");
            let dir = journal_with(3);
            plant_in(dir.path(), name, plant);
            let place = dir.path().to_owned();
            let (report, sizes) = soon(&what, move || {
                (verify(&place, &options(), holder()), stats(&place, &options(), holder()))
            });
            match report {
                Ok(report) => assert!(!report.is_whole(), "{what}"),
                Err(error) => assert_eq!(error.code(), "journal.damaged", "{what}: {error}"),
            }
            assert_eq!(sizes.unwrap_err().code(), "journal.damaged", "{what}");
        }
    }
}

#[test]
fn a_pipe_under_a_name_that_is_only_written_is_replaced_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["anchor.tmp", "journal.redb.new"] {
        rustix::fs::mkfifoat(CWD, dir.path().join(name), Mode::RWXU).unwrap();
    }
    let place = dir.path().to_owned();
    let opened = soon("a new journal", move || open(&place)).unwrap();
    assert_eq!(opened.head, Head::GENESIS);
    drop(opened);
    for name in ["anchor", "journal.redb"] {
        assert!(dir.path().join(name).symlink_metadata().unwrap().is_file());
    }
}

#[test]
fn a_snapshot_that_is_no_file_is_passed_over_without_waiting() {
    // J6
    for (kind, plant) in PLANTS {
        let dir = journal_with(3);
        let journal = open(dir.path()).unwrap().journal;
        let mut at = Vec::new();
        for record in journal.records(1).unwrap() {
            at.push(record.unwrap().head());
        }
        for head in &at[..2] {
            journal.put_snapshot(*head, 1, vec![7]).unwrap();
        }
        let newest = format!("snapshots/snap-{:020}", at[1].seq);
        plant_in(dir.path(), &newest, plant);
        let found = soon(kind, move || journal.latest_snapshot());
        assert_eq!(found.unwrap().seq, at[0].seq, "{kind}");
    }
}

#[test]
fn a_file_of_another_user_is_refused() {
    // Needs root, as other tests of the workspace do: nobody else can give a file away.
    for name in OPENED_BY_START {
        let dir = journal_with(3);
        std::os::unix::fs::chown(dir.path().join(name), Some(65_534), None).unwrap();
        let error = open(dir.path()).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "journal.damaged", "{name}: {error}");
        // Control: it is the owner that is refused.
        std::os::unix::fs::chown(dir.path().join(name), Some(0), None).unwrap();
        assert_eq!(open(dir.path()).unwrap().head.seq, 3, "{name}");
    }
}

#[test]
fn a_journal_directory_that_is_no_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("journal");
    rustix::fs::mkfifoat(CWD, &place, Mode::RWXU).unwrap();
    let at = place.clone();
    let error: JournalError = soon("pipe", move || open(&at).map(|_| ())).unwrap_err();
    assert_eq!(error.code(), "journal.damaged", "{error}");
    assert!(place.symlink_metadata().unwrap().file_type().is_fifo());
}

#[test]
fn an_anchor_that_is_a_pipe_can_be_accepted_as_lost() {
    let dir = journal_with(3);
    plant_in(dir.path(), "anchor", PLANTS[0].1);
    let place = dir.path().to_owned();
    let recovered =
        soon("recover", move || recover_accept_loss(&place, &options(), holder(), "x")).unwrap();
    assert_eq!(recovered.survived.seq, 3);
    assert_eq!(Journal::open(dir.path(), options(), holder()).unwrap().head.seq, 4);
}
