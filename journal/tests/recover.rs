//! The way out of J3: a new epoch that says so in the chain.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;

use atenea_journal::{
    EpochMarker, JournalError, KIND_EPOCH, Recovered, decode, recover_accept_loss, verify,
};
use common::*;
use redb::ReadableTable;

fn recover(dir: &Path) -> Recovered {
    recover_accept_loss(dir, &options(), holder(), "disk died, accepted by a person").unwrap()
}

/// After a recovery: whole, opens, the survivors are `r1 … rN`, then the marker, and it goes on.
fn assert_goes_on(dir: &Path, done: &Recovered) -> EpochMarker {
    let report = verify(dir, &options(), holder()).unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.epoch, report.head), (done.epoch, done.marker));
    let opened = open(dir).unwrap();
    assert_eq!(opened.epoch, done.epoch);
    let expect: Vec<_> = (1..=done.survived.seq).map(|n| format!("r{n}")).collect();
    assert_eq!(payloads(&opened.journal), expect);
    let records: Vec<_> = opened.journal.records(1).unwrap().map(|r| r.unwrap()).collect();
    let marker = records.iter().rfind(|r| r.kind == KIND_EPOCH).unwrap();
    assert_eq!(marker.head(), done.marker);
    let marker: EpochMarker = decode(marker.payload()).unwrap();
    assert_eq!(marker.epoch, done.epoch);
    assert_eq!(put(&opened.journal, "after").first, done.marker.seq + 1);
    marker
}

#[test]
fn a_whole_journal_has_no_loss_to_accept() {
    let dir = journal_with(3);
    let got = recover_accept_loss(dir.path(), &options(), holder(), "no reason");
    assert!(matches!(got, Err(JournalError::NothingLost)), "{got:?}");
    assert_eq!(open(dir.path()).unwrap().epoch, 1);
}

#[test]
fn an_older_store_goes_on_in_a_new_epoch_and_keeps_the_old_files() {
    let dir = journal_with(3);
    let old = fs::read(store_path(dir.path())).unwrap();
    put(&open(dir.path()).unwrap().journal, "r4");
    fs::write(store_path(dir.path()), &old).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.epoch, done.survived.seq, done.lost), (2, 3, Some(1)));
    assert_eq!(fs::read(done.kept.clone().unwrap()).unwrap(), old);
    let marker = assert_goes_on(dir.path(), &done);
    assert_eq!(marker.anchored_seq, Some(4));
    assert_eq!(marker.reason, "disk died, accepted by a person");
}

/// Replaces record 4 of six by junk. Returns its former bytes.
fn junk_at_four(dir: &Path) -> Vec<u8> {
    let mut old = vec![];
    tamper(dir, |txn| {
        let mut table = txn.open_table(RECORDS).unwrap();
        old = table.insert(4, &b"no frame"[..]).unwrap().unwrap().value().to_vec();
    });
    old
}

#[test]
fn what_precedes_a_damaged_record_survives() {
    let dir = journal_with(6);
    let old = junk_at_four(dir.path());
    // Destroy the copies in pages that are no longer used, too.
    let mut bytes = fs::read(store_path(dir.path())).unwrap();
    for at in find_all(&bytes.clone(), &old) {
        bytes[at + 56] ^= 1;
    }
    fs::write(store_path(dir.path()), &bytes).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.survived.seq, done.lost, done.salvaged), (3, Some(3), false));
    assert_eq!(done.damage.seq, Some(4));
    assert_goes_on(dir.path(), &done);
}

#[test]
fn an_altered_record_does_not_survive_although_its_own_link_is_right() {
    // J2: only the successor's link or the anchor proves a record.
    let dir = journal_with(6);
    let mut old = vec![];
    tamper(dir.path(), |txn| {
        let mut table = txn.open_table(RECORDS).unwrap();
        old = table.get(3).unwrap().unwrap().value().to_vec();
        let mut altered = old.clone();
        altered[57] = b'9';
        table.insert(3, altered.as_slice()).unwrap();
    });
    let mut bytes = fs::read(store_path(dir.path())).unwrap();
    for at in find_all(&bytes.clone(), &old) {
        bytes[at + 56] ^= 1;
    }
    fs::write(store_path(dir.path()), &bytes).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.survived.seq, done.lost), (2, Some(4)));
    assert_goes_on(dir.path(), &done);
}

#[test]
fn an_altered_last_record_is_contradicted_by_the_anchor_and_does_not_survive() {
    let dir = journal_with(4);
    let mut old = vec![];
    tamper(dir.path(), |txn| {
        let mut table = txn.open_table(RECORDS).unwrap();
        old = table.get(4).unwrap().unwrap().value().to_vec();
        let mut altered = old.clone();
        altered[57] = b'9';
        table.insert(4, altered.as_slice()).unwrap();
    });
    let mut bytes = fs::read(store_path(dir.path())).unwrap();
    for at in find_all(&bytes.clone(), &old) {
        bytes[at + 56] ^= 1;
    }
    fs::write(store_path(dir.path()), &bytes).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.survived.seq, done.lost), (3, Some(1)));
    assert_goes_on(dir.path(), &done);
}

#[test]
fn a_damaged_record_with_a_genuine_copy_in_the_file_loses_nothing() {
    let dir = journal_with(6);
    junk_at_four(dir.path());
    let done = recover(dir.path());
    assert_eq!((done.survived.seq, done.lost, done.salvaged), (6, Some(0), true));
    assert_goes_on(dir.path(), &done);
}

#[test]
fn records_of_a_store_that_opens_empty_are_collected_from_its_pages() {
    let dir = journal_with(6);
    // The header is gone: no tree leads to the records any more.
    let mut bytes = fs::read(store_path(dir.path())).unwrap();
    bytes[..4096].fill(0);
    fs::write(store_path(dir.path()), &bytes).unwrap();
    let done = recover(dir.path());
    assert!(done.salvaged);
    assert_eq!((done.survived.seq, done.lost), (6, Some(0)));
    assert_goes_on(dir.path(), &done);
}

#[test]
fn a_lost_store_starts_empty_but_says_what_was_lost() {
    let dir = journal_with(5);
    fs::remove_file(store_path(dir.path())).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.epoch, done.survived.seq, done.lost), (2, 0, Some(5)));
    assert_eq!(done.kept, None);
    assert_goes_on(dir.path(), &done);
}

#[test]
fn a_lost_anchor_loses_no_record() {
    let dir = journal_with(5);
    fs::remove_file(dir.path().join("anchor")).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.survived.seq, done.lost), (5, None));
    assert_goes_on(dir.path(), &done);
}

#[test]
fn a_second_loss_gets_a_third_epoch() {
    let dir = journal_with(3);
    fs::remove_file(dir.path().join("anchor")).unwrap();
    assert_eq!(recover(dir.path()).epoch, 2);
    fs::remove_file(dir.path().join("anchor")).unwrap();
    let done = recover(dir.path());
    assert_eq!((done.epoch, done.survived.seq), (3, 4));
    let opened = open(dir.path()).unwrap();
    assert_eq!(payloads(&opened.journal), ["r1", "r2", "r3"]);
}

#[test]
fn a_crash_before_the_new_anchor_leaves_a_journal_that_is_refused_and_can_be_recovered_again() {
    let dir = journal_with(5);
    let anchor = fs::read(dir.path().join("anchor")).unwrap();
    tamper(dir.path(), |txn| {
        txn.open_table(RECORDS).unwrap().insert(6, &b"junk"[..]).unwrap();
    });
    let first = recover(dir.path());
    assert_eq!((first.survived.seq, first.lost), (5, Some(0)));
    // The new store has its name, the anchor is still the old one.
    fs::write(dir.path().join("anchor"), anchor).unwrap();
    let refused = open(dir.path()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, JournalError::WrongEpoch { found: 2, .. }), "{refused}");
    let again = recover(dir.path());
    assert_eq!((again.epoch, again.survived), (3, first.marker));
    assert_eq!(open(dir.path()).unwrap().epoch, 3);
}

#[test]
fn the_old_chain_cannot_come_back_under_the_new_anchor() {
    let dir = journal_with(3);
    let old = fs::read(store_path(dir.path())).unwrap();
    fs::remove_file(dir.path().join("anchor")).unwrap();
    recover(dir.path());
    fs::write(store_path(dir.path()), old).unwrap();
    let refused = open(dir.path()).map(|_| ()).unwrap_err();
    assert!(refused.needs_a_person(), "{refused}");
}
