//! J9: on a full disk new work is refused and cleanup still fits. Runs without the usual harness:
//! it starts itself in a mount namespace of its own, where a small tmpfs is the disk.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use atenea_journal::{Journal, JournalError, Options, Priority};
use common::*;

const CHILD: &str = "ATENEA_JOURNAL_TEST_DISK";
const RESERVE: u64 = 2 << 20;

fn main() {
    if let Some(disk) = std::env::var_os(CHILD) {
        return on_a_full_disk(Path::new(&disk));
    }
    println!("on_a_full_disk_new_work_is_refused_and_cleanup_still_fits ...");
    let disk = tempfile::tempdir().unwrap();
    let me = std::env::current_exe().unwrap();
    // A host that allows neither root nor user namespaces fails here; it is not skipped.
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=16m,mode=0755 none \"$1\" && exec \"$2\"")
        .arg("sh")
        .args([disk.path(), &me])
        .env(CHILD, disk.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    println!("ok");
}

fn on_a_full_disk(disk: &Path) {
    let dir = disk.join("journal");
    let options = Options { reserve_bytes: RESERVE, ..options() };
    let open = || Journal::open(&dir, options.clone(), holder()).unwrap().journal;
    let journal = open();
    assert!(journal.reserve_ok());
    assert!(journal.has_space(RESERVE).is_ok());
    put(&journal, "while there is room");

    let fill = disk.join("fill");
    fill_up(&fill);
    let refused = journal.has_space(1 << 20);
    assert!(matches!(refused, Err(JournalError::DiskFull { .. })), "{refused:?}");
    let refused = journal.append(vec![record("new work")], Priority::Normal);
    assert!(matches!(refused, Err(JournalError::DiskFull { .. })), "{refused:?}");
    assert_eq!(refused.unwrap_err().code(), "fs.disk_full");
    let before = journal.head().seq;
    for n in 0..50 {
        journal.append(vec![record(format!("cleanup {n}"))], Priority::Cleanup).unwrap();
    }
    assert_eq!(journal.head().seq, before + 50);
    assert!(!journal.reserve_ok(), "the reserve was given up for it");
    // What was given up is free now, and not for new work.
    let refused = journal.has_space(1 << 20);
    assert!(matches!(refused, Err(JournalError::DiskFull { .. })), "{refused:?}");
    journal.close().unwrap();

    // A restart on the full disk works as well, and still admits nothing new.
    fill_up(&fill);
    let journal = open();
    assert_eq!(journal.head().seq, before + 50);
    let refused = journal.append(vec![record("new work")], Priority::Normal);
    assert!(matches!(refused, Err(JournalError::DiskFull { .. })), "{refused:?}");

    // When there is room again, the reserve is made again and work goes on.
    fs::remove_file(&fill).unwrap();
    put(&journal, "room again");
    assert!(journal.reserve_ok());
    journal.release_reserve().unwrap();
    assert!(!journal.reserve_ok());
    journal.close().unwrap();
    positive_control(disk);
}

/// Without a reserve the same load does meet the full disk: it is the reserve that helps.
fn positive_control(disk: &Path) {
    let dir = disk.join("control");
    let options = Options { reserve_bytes: 0, ..options() };
    let journal = Journal::open(&dir, options, holder()).unwrap().journal;
    put(&journal, "while there is room");
    fill_up(&disk.join("fill"));
    let failed = (0..50).any(|n| {
        let payload = vec![0; 64 << 10];
        let result = journal.append(vec![record(payload)], Priority::Cleanup);
        assert!(n == 0 || result.is_err() || journal.poisoned().is_none());
        matches!(result, Err(JournalError::CommitFailed { .. }))
    });
    assert!(failed, "the disk was not full");
}

/// Appends until not one byte more fits.
fn fill_up(path: &Path) {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0xaa; size]).is_ok() {}
    }
}
