//! J3: a store that lacks what was anchored is refused, each case with its own error.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use atenea_journal::{DamageKind, Journal, JournalError, VerifyReport, verify};
use common::*;
use redb::ReadableTable;

fn refusal(dir: &std::path::Path) -> JournalError {
    let error = open(dir).map(|o| o.head).expect_err("must be refused");
    assert!(error.needs_a_person(), "{error}");
    // A refusal must not change what is there: the second look finds the same.
    let again = open(dir).map(|o| o.head).expect_err("must stay refused");
    assert_eq!(error.to_string(), again.to_string());
    error
}

fn report(dir: &std::path::Path) -> VerifyReport {
    verify(dir, &options(), holder()).unwrap()
}

fn damage(dir: &std::path::Path) -> DamageKind {
    report(dir).damage.expect("must be damaged").kind
}

#[test]
fn an_untouched_journal_opens_and_verifies() {
    let dir = journal_with(4);
    let opened = open(dir.path()).unwrap();
    assert_eq!((opened.head.seq, opened.beyond_anchor), (4, 0));
    drop(opened);
    let report = report(dir.path());
    assert_eq!((report.records, report.anchored, report.unanchored), (4, 4, 0));
    assert!(report.is_whole());
}

#[test]
fn a_store_from_before_the_last_commits_is_refused_as_truncated() {
    let dir = journal_with(4);
    let old = fs::read(store_path(dir.path())).unwrap();
    put(&open(dir.path()).unwrap().journal, "r5");
    fs::write(store_path(dir.path()), old).unwrap();
    let error = refusal(dir.path());
    assert!(
        matches!(error, JournalError::Truncated { anchored, found: 4 } if anchored.seq == 5),
        "{error}"
    );
    assert!(matches!(damage(dir.path()), DamageKind::Truncated { found: 4, .. }));
}

#[test]
fn records_cut_from_the_tail_are_refused_as_truncated() {
    let dir = journal_with(4);
    tamper(dir.path(), |txn| {
        txn.open_table(RECORDS).unwrap().remove(4).unwrap();
    });
    let error = refusal(dir.path());
    assert!(matches!(error, JournalError::Truncated { found: 3, .. }), "{error}");
}

#[test]
fn an_emptied_store_is_refused_not_started_fresh() {
    let dir = journal_with(4);
    tamper(dir.path(), |txn| {
        txn.open_table(RECORDS).unwrap().retain(|_, _| false).unwrap();
    });
    let error = refusal(dir.path());
    assert!(matches!(error, JournalError::Emptied { .. }), "{error}");
    assert!(matches!(damage(dir.path()), DamageKind::Truncated { found: 0, .. }));
}

#[test]
fn a_fresh_store_in_place_of_the_old_one_is_refused() {
    let dir = journal_with(4);
    let fresh = journal_with(0);
    fs::copy(store_path(fresh.path()), store_path(dir.path())).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, JournalError::Emptied { .. }), "{error}");
}

#[test]
fn another_journal_in_its_place_is_refused_as_replaced() {
    let dir = journal_with(4);
    let other = tempfile::tempdir().unwrap();
    let journal = open(other.path()).unwrap().journal;
    for n in 0..6 {
        put(&journal, &format!("other {n}"));
    }
    journal.close().unwrap();
    fs::copy(store_path(other.path()), store_path(dir.path())).unwrap();
    let error = refusal(dir.path());
    assert!(
        matches!(error, JournalError::Replaced { anchored, .. } if anchored.seq == 4),
        "{error}"
    );
    assert!(matches!(damage(dir.path()), DamageKind::Replaced { .. }));
}

#[test]
fn a_directory_with_only_the_anchor_is_refused() {
    let dir = journal_with(4);
    fs::remove_file(store_path(dir.path())).unwrap();
    let error = refusal(dir.path());
    assert!(
        matches!(error, JournalError::StoreMissing { anchored } if anchored.seq == 4),
        "{error}"
    );
    assert!(!store_path(dir.path()).exists(), "nothing was started fresh");
    assert_eq!(damage(dir.path()), DamageKind::StoreMissing);
    fs::write(store_path(dir.path()), b"").unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, JournalError::Emptied { .. }), "{error}");
}

#[test]
fn a_store_with_records_but_without_an_anchor_is_refused() {
    let dir = journal_with(4);
    fs::remove_file(dir.path().join("anchor")).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, JournalError::AnchorMissing { records: 4 }), "{error}");
    assert_eq!(damage(dir.path()), DamageKind::AnchorMissing);
}

#[test]
fn a_damaged_anchor_is_refused() {
    let dir = journal_with(4);
    fs::write(dir.path().join("anchor"), [0; 8192]).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, JournalError::AnchorDamaged), "{error}");
    assert_eq!(damage(dir.path()), DamageKind::AnchorDamaged);
}

#[test]
fn neither_store_nor_anchor_is_a_new_journal() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(&dir.path().join("new")).unwrap();
    assert_eq!(opened.found_anchor, None);
    assert_eq!((opened.head.seq, opened.epoch), (0, 1));
}

#[test]
fn a_crash_between_store_and_first_anchor_leaves_a_journal_that_opens() {
    let dir = journal_with(0);
    fs::remove_file(dir.path().join("anchor")).unwrap();
    assert_eq!(open(dir.path()).unwrap().head.seq, 0);
    // And one between making the store and naming it.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal.redb.new"), b"half a store").unwrap();
    put(&open(dir.path()).unwrap().journal, "x");
    assert_eq!(open(dir.path()).unwrap().head.seq, 1);
}

#[test]
fn an_anchor_older_than_the_store_is_accepted_and_advanced() {
    let dir = journal_with(2);
    let older = fs::read(dir.path().join("anchor")).unwrap();
    let journal = open(dir.path()).unwrap().journal;
    put(&journal, "r3");
    put(&journal, "r4");
    journal.close().unwrap();
    fs::write(dir.path().join("anchor"), &older).unwrap();
    let report = report(dir.path());
    assert_eq!((report.anchored, report.unanchored), (2, 2));
    assert!(report.is_whole());
    let opened = open(dir.path()).unwrap();
    assert_eq!(opened.found_anchor.unwrap().seq, 2);
    assert_eq!((opened.head.seq, opened.beyond_anchor), (4, 2));
    assert_eq!(payloads(&opened.journal), ["r1", "r2", "r3", "r4"]);
    drop(opened);
    assert_eq!(open(dir.path()).unwrap().beyond_anchor, 0);
}

#[test]
fn an_older_anchor_does_not_excuse_a_broken_chain_behind_it() {
    let dir = journal_with(2);
    let older = fs::read(dir.path().join("anchor")).unwrap();
    put(&open(dir.path()).unwrap().journal, "r3");
    put(&open(dir.path()).unwrap().journal, "r4");
    fs::write(dir.path().join("anchor"), &older).unwrap();
    tamper(dir.path(), |txn| {
        let mut table = txn.open_table(RECORDS).unwrap();
        let mut stored = table.get(3).unwrap().unwrap().value().to_vec();
        *stored.last_mut().unwrap() ^= 1;
        table.insert(3, stored.as_slice()).unwrap();
    });
    let error = refusal(dir.path());
    assert!(matches!(&error, JournalError::Damaged(d) if d.seq == Some(4)), "{error}");
}

#[test]
fn a_record_changed_or_removed_before_the_anchor_is_found_by_verify_and_by_reading() {
    // J2
    for change in 0..2 {
        let dir = journal_with(6);
        tamper(dir.path(), |txn| {
            let mut table = txn.open_table(RECORDS).unwrap();
            if change == 0 {
                let mut stored = table.get(3).unwrap().unwrap().value().to_vec();
                *stored.last_mut().unwrap() ^= 1;
                table.insert(3, stored.as_slice()).unwrap();
            } else {
                table.remove(3).unwrap();
            }
        });
        let found = report(dir.path()).damage.unwrap();
        if change == 0 {
            assert_eq!(found.seq, Some(4));
            let journal = open(dir.path()).unwrap().journal;
            let read: Vec<bool> = journal.records(1).unwrap().map(|r| r.is_ok()).collect();
            assert_eq!(read, [true, true, true, false]);
            assert_eq!(journal.verify_live().unwrap().damage.unwrap().seq, Some(4));
        } else {
            assert_eq!(found.seq, Some(3));
            let error = refusal(dir.path());
            assert!(matches!(error, JournalError::Damaged(_)), "{error}");
        }
    }
}

#[test]
fn verify_live_sees_the_same_as_verify_while_the_journal_grows() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    std::thread::scope(|scope| {
        scope
            .spawn(|| (0..100).for_each(|n| assert_eq!(put(&journal, &n.to_string()).last, n + 1)));
        for _ in 0..20 {
            let report = journal.verify_live().unwrap();
            assert!(report.is_whole(), "{report:?}");
        }
    });
    let live = journal.verify_live().unwrap();
    journal.close().unwrap();
    assert_eq!(live, report(dir.path()));
    assert_eq!(live.records, 100);
}

#[test]
fn verify_changes_no_byte_of_store_and_anchor() {
    let dir = journal_with(4);
    // As a process leaves it that was killed: not closed.
    let journal = open(dir.path()).unwrap().journal;
    put(&journal, "r5");
    let store = fs::read(store_path(dir.path())).unwrap();
    drop(journal);
    fs::write(store_path(dir.path()), &store).unwrap();
    let anchor = fs::read(dir.path().join("anchor")).unwrap();
    assert!(report(dir.path()).is_whole());
    assert_eq!(fs::read(store_path(dir.path())).unwrap(), store);
    assert_eq!(fs::read(dir.path().join("anchor")).unwrap(), anchor);
    assert_eq!(Journal::open(dir.path(), options(), holder()).unwrap().head.seq, 5);
}

#[test]
fn verify_makes_nothing_where_there_is_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let got = verify(dir.path(), &options(), holder());
    assert!(matches!(got, Err(JournalError::Missing { .. })), "{got:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
