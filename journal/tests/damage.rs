//! Damaged files: verification reports, never panics, and never calls damage whole.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use atenea_journal::{DamageKind, Journal, JournalError, VerifyReport, verify};
use common::*;

/// Panics in any thread, the verifier's own included.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            eprintln!("{info}");
        }));
    });
}

/// Files of a small journal with records of several sizes.
fn small() -> (tempfile::TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap().journal;
    for n in 1..=12u64 {
        let text = format!("{n}:{}", "y".repeat(usize::try_from(n * n * 60).unwrap()));
        put(&journal, &text);
    }
    journal.close().unwrap();
    let store = fs::read(store_path(dir.path())).unwrap();
    (dir, store)
}

fn checked(dir: &Path) -> Result<VerifyReport, JournalError> {
    verify(dir, &options(), holder())
}

/// The records that verified must be the true ones, whatever was damaged.
fn assert_true_prefix(dir: &Path, report: &VerifyReport, truth: &VerifyReport, what: &str) {
    assert!(report.records <= truth.records, "{what}");
    if report.is_whole() {
        assert_eq!((report.records, report.head), (truth.records, truth.head), "{what}");
        let opened = Journal::open(dir, options(), holder());
        assert_eq!(opened.unwrap().head, truth.head, "{what}");
    }
}

#[test]
fn a_flipped_bit_in_any_region_of_the_store_is_reported_or_harmless_and_never_panics() {
    count_panics();
    let (dir, whole) = small();
    let truth = checked(dir.path()).unwrap();
    let mut rng = Rng(42);
    let (mut found, mut harmless) = (0u32, 0u32);
    // The header with its two commit slots closely, then every kilobyte that is in use.
    let header = (0..320).step_by(2).map(|at| (at, 1u8 << rng.below(8)));
    let mut places: Vec<(usize, u8)> = header.collect();
    for region in (0..whole.len()).step_by(1024) {
        let at = (region + usize::try_from(rng.below(1024)).unwrap()).min(whole.len() - 1);
        if whole[region..].iter().take(1024).any(|b| *b != 0) {
            places.push((at, 1 << rng.below(8)));
        }
    }
    eprintln!("{} places in {} bytes", places.len(), whole.len());
    for (at, bit) in places {
        let mut bytes = whole.clone();
        bytes[at] ^= bit;
        fs::write(store_path(dir.path()), &bytes).unwrap();
        let what = format!("byte {at} xor {bit:#x}");
        let got = catch_unwind(AssertUnwindSafe(|| checked(dir.path())));
        let got = got.unwrap_or_else(|_| panic!("{what} panicked"));
        match got {
            Ok(report) => {
                assert_true_prefix(dir.path(), &report, &truth, &what);
                if report.is_whole() { harmless += 1 } else { found += 1 }
            }
            // A flipped version field may look like a newer file: still a refusal.
            Err(JournalError::Newer { .. } | JournalError::Store { .. }) => found += 1,
            Err(other) => panic!("{what}: {other}"),
        }
    }
    eprintln!("found {found}, harmless {harmless}");
    assert!(found > 30, "found {found}, harmless {harmless}");
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a build with panic=abort would have died");
}

#[test]
fn a_bit_flipped_in_any_byte_of_a_record_is_found() {
    // J2: every byte of every stored frame, found by its magic in the file.
    let (dir, whole) = small();
    let truth = checked(dir.path()).unwrap();
    let mut found = 0;
    let live = live_frames(dir.path());
    for frame in &live {
        let places = find_all(&whole, frame);
        assert!(!places.is_empty());
        for at in [0, 4, 8, 12, 16, 24, 55, frame.len() - 1] {
            let mut bytes = whole.clone();
            // Stale copies of a page hold the frame too; damage all of them.
            for place in &places {
                bytes[place + at] ^= 0x10;
            }
            fs::write(store_path(dir.path()), &bytes).unwrap();
            let report = checked(dir.path()).unwrap();
            assert!(!report.is_whole(), "byte {at} of a frame of {}", frame.len());
            assert!(report.records < truth.records);
            found += 1;
        }
    }
    assert_eq!(found, 12 * 8);
}

fn live_frames(dir: &Path) -> Vec<Vec<u8>> {
    let journal = open(dir).unwrap().journal;
    journal.records(1).unwrap().map(|r| r.unwrap().stored().to_vec()).collect()
}

#[test]
fn a_file_cut_at_any_length_is_damage_and_never_panics() {
    count_panics();
    let (dir, whole) = small();
    for len in (0..whole.len()).step_by(4099) {
        fs::write(store_path(dir.path()), &whole[..len]).unwrap();
        let got = checked(dir.path()).unwrap();
        assert!(!got.is_whole(), "cut at {len}: {got:?}");
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[test]
fn a_file_that_is_no_store_is_damage_and_is_left_alone() {
    let (dir, _) = small();
    for bytes in [b"not a store".to_vec(), vec![0; 100_000], vec![0xff; 5000]] {
        fs::write(store_path(dir.path()), &bytes).unwrap();
        let report = checked(dir.path()).unwrap();
        let damage = report.damage.unwrap();
        assert!(matches!(damage.kind, DamageKind::StoreUnreadable(_)), "{damage}");
        let error = open(dir.path()).map(|_| ()).unwrap_err();
        assert!(error.needs_a_person(), "{error}");
        assert_eq!(fs::read(store_path(dir.path())).unwrap(), bytes);
    }
}
