//! J8: a newer journal is refused by the name of what this program lacks, and stays untouched.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use atenea_journal::{Journal, JournalError, NewRecord, Options, Priority, verify};
use common::*;

fn assert_refused(dir: &std::path::Path, options: &Options, found: u32, feature: &str) {
    let open = Journal::open(dir, options.clone(), holder()).map(|_| ()).unwrap_err();
    assert!(
        matches!(&open, JournalError::Newer { found: f, feature: n, .. } if (*f, n.as_str()) == (found, feature)),
        "{open}"
    );
    assert_eq!(open.code(), "journal.newer");
    assert!(!open.needs_a_person(), "a newer program is the remedy, not an accepted loss");
}

#[test]
fn a_newer_store_format_is_refused() {
    let dir = journal_with(1);
    tamper(dir.path(), |txn| {
        txn.open_table(META).unwrap().insert("format", &2u32.to_le_bytes()[..]).unwrap();
    });
    assert_refused(dir.path(), &options(), 2, "store format");
    let verified = verify(dir.path(), &options(), holder());
    assert!(matches!(verified, Err(JournalError::Newer { .. })), "{verified:?}");
}

#[test]
fn an_unknown_feature_is_refused_by_its_name() {
    let dir = journal_with(1);
    tamper(dir.path(), |txn| {
        txn.open_table(META).unwrap().insert("features", &b"zstd payloads"[..]).unwrap();
    });
    assert_refused(dir.path(), &options(), 1, "zstd payloads");
}

#[test]
fn a_record_schema_the_caller_does_not_read_is_refused_before_any_record_is() {
    let dir = journal_with(1);
    let journal = open(dir.path()).unwrap().journal;
    let record = NewRecord { kind: 7, schema: 3, payload: vec![] };
    journal.append(vec![record], Priority::Normal).unwrap();
    journal.close().unwrap();
    let older = Options { schema_supported: 2, ..options() };
    assert_refused(dir.path(), &older, 3, "record schema");
    let same = Options { schema_supported: 3, ..options() };
    assert_eq!(Journal::open(dir.path(), same, holder()).unwrap().head.seq, 2);
}

#[test]
fn a_newer_anchor_is_refused() {
    let dir = journal_with(1);
    let path = dir.path().join("anchor");
    let mut bytes = std::fs::read(&path).unwrap();
    for at in [0, 4096] {
        bytes[at + 4] = 9;
        let check = *atenea_journal::RecordHash::of(&bytes[at..at + 64]).as_bytes();
        bytes[at + 64..at + 96].copy_from_slice(&check);
    }
    std::fs::write(&path, bytes).unwrap();
    assert_refused(dir.path(), &options(), 9, "anchor version");
}
