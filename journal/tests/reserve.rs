//! J9: the reserve that was used, or taken away, is made again before new work.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atenea_journal::Priority;
use common::*;

fn allocated(dir: &Path) -> u64 {
    fs::metadata(dir.join("reserve")).map_or(0, |there| there.blocks() * 512)
}

#[test]
fn a_reserve_that_was_used_is_made_again_by_the_next_normal_append_and_not_by_cleanup() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    assert!(allocated(dir.path()) >= options().reserve_bytes);
    journal.release_reserve().unwrap();
    journal.append(vec![record("cleanup")], Priority::Cleanup).unwrap();
    assert!(allocated(dir.path()) == 0 && !journal.reserve_ok());
    put(&journal, "new work");
    assert!(allocated(dir.path()) >= options().reserve_bytes && journal.reserve_ok());
}

#[test]
fn a_reserve_that_was_used_is_made_again_by_the_next_start() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    journal.release_reserve().unwrap();
    journal.close().unwrap();
    assert_eq!(allocated(dir.path()), 0);
    let journal = open(dir.path()).unwrap().journal;
    assert!(allocated(dir.path()) >= options().reserve_bytes && journal.reserve_ok());
}

#[test]
fn a_reserve_that_somebody_removed_or_cut_is_made_again_before_new_work() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    let reserve = dir.path().join("reserve");
    for cut in [false, true] {
        if cut {
            fs::File::options().write(true).open(&reserve).unwrap().set_len(0).unwrap();
        } else {
            fs::remove_file(&reserve).unwrap();
        }
        put(&journal, "new work");
        assert!(allocated(dir.path()) >= options().reserve_bytes, "cut: {cut}");
        fs::remove_file(&reserve).unwrap();
        journal.has_space(1).unwrap();
        assert!(allocated(dir.path()) >= options().reserve_bytes, "cut: {cut}");
    }
}
