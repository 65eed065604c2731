//! A rotten page may kill the process that opens the journal, but not the next one. In a file of its
//! own, because its panics would be counted by the tests that allow none.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::*;

#[test]
fn a_plain_open_that_dies_of_a_rotten_page_is_followed_by_one_that_refuses() {
    // The pages of the tree are trusted by a plain open. Where that ends in a panic, the phase in
    // the lock file makes the next open look at every page first.
    let dir = journal_with(40);
    let whole = fs::read(store_path(dir.path())).unwrap();
    let mut died = 0;
    for page in (4096..whole.len()).step_by(4096) {
        if whole[page..].iter().take(4096).all(|b| *b == 0) {
            continue;
        }
        let mut bytes = whole.clone();
        bytes[page..page + 8].fill(0xff);
        fs::write(store_path(dir.path()), &bytes).unwrap();
        let first = catch_unwind(AssertUnwindSafe(|| {
            let journal = open(dir.path())?.journal;
            journal.records(1)?.try_fold(0, |n, r| r.map(|_| n + 1))
        }));
        match first {
            Ok(Ok(read)) => assert_eq!(read, 40, "page {page}"),
            Ok(Err(_)) => {}
            Err(_) => {
                died += 1;
                let next = catch_unwind(AssertUnwindSafe(|| open(dir.path()).map(|o| o.head)));
                let next = next.unwrap_or_else(|_| panic!("page {page}: the second one died too"));
                assert!(next.is_err_and(|e| e.needs_a_person()), "page {page}");
            }
        }
    }
    eprintln!("{died} died");
    // Optimised builds of redb turn some of these panics into errors.
    assert!(died > 0 || !cfg!(debug_assertions), "nothing died: the test shows nothing");
}
