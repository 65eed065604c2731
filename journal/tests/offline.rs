//! What the command line reads while nobody holds the journal.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::ops::ControlFlow;

use atenea_journal::{HEADER_LEN, JournalError, RecordHash, dump, stats};
use common::*;

#[test]
fn dump_hands_out_raw_frames_in_order_and_stops_when_told() {
    let dir = journal_with(5);
    let mut seen = vec![];
    let last = dump(dir.path(), &options(), holder(), 2, |record| {
        assert_eq!(RecordHash::of(record.stored()), record.hash);
        assert_eq!(&record.stored()[HEADER_LEN..], record.payload());
        seen.push(record.seq);
        if record.seq == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!((seen, last.seq), (vec![2, 3, 4], 4));
}

#[test]
fn dump_shows_what_precedes_the_damage_even_without_an_anchor() {
    let dir = journal_with(5);
    tamper(dir.path(), |txn| {
        txn.open_table(RECORDS).unwrap().insert(4, &b"no frame"[..]).unwrap();
    });
    fs::remove_file(dir.path().join("anchor")).unwrap();
    let mut seen = 0;
    let got = dump(dir.path(), &options(), holder(), 1, |_| {
        seen += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(&got, Err(JournalError::Damaged(d)) if d.seq == Some(4)), "{got:?}");
    assert_eq!(seen, 3);
}

#[test]
fn stats_agree_offline_and_live() {
    let dir = journal_with(5);
    let journal = open(dir.path()).unwrap().journal;
    let payload = vec![b'x'; 20_000];
    let head =
        journal.append(vec![record(payload)], atenea_journal::Priority::Normal).unwrap().head();
    journal.put_snapshot(head, 1, vec![0; 100]).unwrap();
    let live = journal.stats_live().unwrap();
    journal.close().unwrap();
    let still = stats(dir.path(), &options(), holder()).unwrap();
    assert_eq!((live.records, live.last, live.epoch, live.snapshots), (6, 6, 1, 1));
    assert!(live.live_bytes > 20_000 && live.file_bytes > live.live_bytes, "{live:?}");
    assert_eq!((still.records, still.live_bytes), (live.records, live.live_bytes));
    assert_eq!((still.anchor, still.snapshot_bytes), (live.anchor, live.snapshot_bytes));
}
