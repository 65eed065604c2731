//! J6: snapshots change cost, never meaning.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use atenea_journal::{Head, Journal, JournalError, Options, decode, encode};
use common::*;

/// The state of the tests: number and length of all payloads.
#[derive(Debug, Default, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct State {
    records: u64,
    bytes: u64,
}

/// Folds from the newest usable snapshot. Returns the state and how many records that cost.
fn fold(journal: &Journal) -> (State, u64) {
    let snapshot = journal.latest_snapshot_if(|s| s.schema == 1);
    let (mut state, from) = match &snapshot {
        Some(s) => (decode::<State>(&s.bytes).unwrap(), s.seq + 1),
        None => (State::default(), 1),
    };
    let mut cost = 0;
    for record in journal.records(from).unwrap() {
        state.records += 1;
        state.bytes += record.unwrap().payload().len() as u64;
        cost += 1;
    }
    (state, cost)
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir.join("snapshots")) else { return vec![] };
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn deleting_or_damaging_snapshots_at_random_never_changes_the_state() {
    for seed in 0..10 {
        let mut rng = Rng(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut expect = State::default();
        for round in 0..8u64 {
            let journal = open(dir.path()).unwrap().journal;
            for n in 0..rng.below(5) {
                let payload = "z".repeat(usize::try_from(n * 7 + round).unwrap());
                expect.records += 1;
                expect.bytes += payload.len() as u64;
                put(&journal, &payload);
            }
            let (state, _) = fold(&journal);
            assert_eq!(state, expect, "seed {seed}, round {round}");
            if journal.head() != Head::GENESIS {
                journal.put_snapshot(journal.head(), 1, encode(&state).unwrap()).unwrap();
                assert_eq!(fold(&journal), (expect.clone(), 0), "seed {seed}, round {round}");
            }
            assert!(snapshots(dir.path()).len() <= 2);
            for path in snapshots(dir.path()) {
                match rng.below(4) {
                    0 => fs::remove_file(&path).unwrap(),
                    1 if fs::metadata(&path).unwrap().len() > 0 => {
                        let mut bytes = fs::read(&path).unwrap();
                        let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
                        bytes[at] ^= 1;
                        fs::write(&path, bytes).unwrap();
                    }
                    2 => fs::write(&path, b"").unwrap(),
                    _ => {}
                }
            }
            assert_eq!(fold(&journal).0, expect, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn a_snapshot_of_another_chain_is_ignored() {
    let one = journal_with(3);
    let two = tempfile::tempdir().unwrap();
    let other = open(two.path()).unwrap().journal;
    for n in 0..3 {
        put(&other, &format!("other {n}"));
    }
    other.put_snapshot(other.head(), 1, vec![1]).unwrap();
    assert!(other.latest_snapshot().is_some());
    fs::create_dir(one.path().join("snapshots")).unwrap();
    let file = snapshots(two.path()).pop().unwrap();
    fs::copy(&file, one.path().join("snapshots").join(file.file_name().unwrap())).unwrap();
    assert_eq!(open(one.path()).unwrap().journal.latest_snapshot(), None);
}

#[test]
fn a_snapshot_must_name_an_acknowledged_record_and_fit_its_bound() {
    let dir = journal_with(3);
    let options = Options { max_snapshot_bytes: 10, ..options() };
    let journal = Journal::open(dir.path(), options, holder()).unwrap().journal;
    let head = journal.head();
    for wrong in [Head::GENESIS, Head { seq: 9, ..head }, Head { seq: 2, ..head }] {
        let got = journal.put_snapshot(wrong, 1, vec![]);
        assert!(matches!(got, Err(JournalError::SnapshotNotInChain { .. })), "{got:?}");
    }
    let got = journal.put_snapshot(head, 1, vec![0; 11]);
    assert!(matches!(got, Err(JournalError::SnapshotTooLarge { bytes: 11, max: 10 })), "{got:?}");
    journal.put_snapshot(head, 1, vec![0; 10]).unwrap();
    assert_eq!(journal.latest_snapshot().unwrap().seq, 3);
    journal.delete_snapshots().unwrap();
    assert_eq!(journal.latest_snapshot(), None);
}

#[test]
fn the_last_two_are_kept_so_that_one_may_be_unreadable() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    for n in 1..=4 {
        let head = put(&journal, "x").head();
        journal.put_snapshot(head, n, vec![]).unwrap();
    }
    assert_eq!(snapshots(dir.path()).len(), 2);
    fs::write(&snapshots(dir.path())[1], b"torn").unwrap();
    assert_eq!(journal.latest_snapshot().unwrap().seq, 3);
    assert_eq!(journal.latest_snapshot_if(|s| s.schema > 3), None);
}
