//! A page that rotted on the disk: the first process that meets it says so, whichever it is. Every
//! panic counts, also one that was caught: a release build ends by it (`panic = "abort"`), before it
//! can say anything. Run in both lanes, since a debug build of the store asserts more.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use atenea_journal::{Journal, JournalError, verify};
use common::*;

const PAGE: usize = 4096;
const SEEDS: [u64; 3] = [1, 20_261_129, 0xdead_beef];
const RECORDS: u64 = 40;

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

/// One kind of rot in the page that starts at `page`.
type Rot = fn(&mut [u8], usize, &mut Rng);

const ROTS: [(&str, Rot); 6] = [
    ("a bit", |bytes, page, rng| {
        bytes[page + below(rng, PAGE)] ^= 1 << rng.below(8);
    }),
    ("a bit of the page's header", |bytes, page, rng| {
        bytes[page + below(rng, 16)] ^= 1 << rng.below(8);
    }),
    ("eight bytes of ones", |bytes, page, _| bytes[page..page + 8].fill(0xff)),
    ("zeros", |bytes, page, _| bytes[page..page + PAGE].fill(0)),
    ("noise", |bytes, page, rng| {
        bytes[page..page + PAGE].fill_with(|| rng.next().to_le_bytes()[0]);
    }),
    ("another page", |bytes, page, rng| {
        let from = below(rng, bytes.len() / PAGE) * PAGE;
        bytes.copy_within(from..from + PAGE, page);
    }),
];

fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}

fn read_all(dir: &Path) -> Result<u64, JournalError> {
    let journal = open(dir)?.journal;
    journal.records(1)?.try_fold(0, |n, record| record.map(|_| n + 1))
}

/// The refusals that say what is wrong: a person is needed, or a newer program.
fn is_plain_refusal(error: &JournalError) -> bool {
    error.needs_a_person() || error.code() == "journal.newer"
}

#[test]
fn the_first_open_of_a_journal_with_a_rotten_page_refuses_or_reads_the_true_records() {
    count_panics();
    let dir = journal_with(RECORDS);
    let store = store_path(dir.path());
    let anchor = fs::read(dir.path().join("anchor")).unwrap();
    let whole = fs::read(&store).unwrap();
    let (mut refused, mut harmless) = (0u32, 0u32);
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        for page in (0..whole.len()).step_by(PAGE) {
            if whole[page..page + PAGE].iter().all(|byte| *byte == 0) {
                continue;
            }
            for (kind, rot) in ROTS {
                let what = format!("seed {seed}: {kind} in page {}", page / PAGE);
                let mut bytes = whole.clone();
                rot(&mut bytes, page, &mut rng);
                fs::write(&store, &bytes).unwrap();
                fs::write(dir.path().join("anchor"), &anchor).unwrap();
                let before = PANICS.load(Ordering::SeqCst);
                match read_all(dir.path()) {
                    Ok(read) => {
                        assert_eq!(read, RECORDS, "{what}");
                        harmless += 1;
                    }
                    Err(error) => {
                        assert!(is_plain_refusal(&error), "{what}: {} {error}", error.code());
                        // J3: what a person will look at is what was there.
                        assert!(fs::read(&store).unwrap() == bytes, "{what}: the file changed");
                        refused += 1;
                    }
                }
                assert_eq!(PANICS.load(Ordering::SeqCst), before, "{what}: it panicked");
            }
        }
    }
    eprintln!("{refused} refused, {harmless} harmless");
    assert!(refused > 100 && harmless > 0, "{refused} refused, {harmless} harmless");
}

#[test]
fn verify_of_a_journal_with_a_rotten_page_reports_damage_or_the_true_records() {
    count_panics();
    let dir = journal_with(RECORDS);
    let store = store_path(dir.path());
    let whole = fs::read(&store).unwrap();
    let truth = verify(dir.path(), &options(), holder()).unwrap();
    let mut found = 0u32;
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        for page in (0..whole.len()).step_by(PAGE) {
            if whole[page..page + PAGE].iter().all(|byte| *byte == 0) {
                continue;
            }
            for (kind, rot) in ROTS {
                let what = format!("seed {seed}: {kind} in page {}", page / PAGE);
                let mut bytes = whole.clone();
                rot(&mut bytes, page, &mut rng);
                fs::write(&store, &bytes).unwrap();
                let before = PANICS.load(Ordering::SeqCst);
                match verify(dir.path(), &options(), holder()) {
                    Ok(report) if report.is_whole() => assert_eq!(report, truth, "{what}"),
                    Ok(report) => {
                        assert!(report.records <= truth.records, "{what}");
                        found += 1;
                    }
                    Err(error) => {
                        assert!(is_plain_refusal(&error), "{what}: {} {error}", error.code());
                        found += 1;
                    }
                }
                assert_eq!(PANICS.load(Ordering::SeqCst), before, "{what}: it panicked");
            }
        }
    }
    assert!(found > 100, "{found} found");
}

#[test]
fn a_page_that_rots_under_a_running_journal_is_reported_by_verify() {
    count_panics();
    let dir = journal_with(RECORDS);
    let journal = Journal::open(dir.path(), options(), holder()).unwrap().journal;
    assert!(journal.verify_live().unwrap().is_whole());
    let store = store_path(dir.path());
    let whole = fs::read(&store).unwrap();
    let before = PANICS.load(Ordering::SeqCst);
    let mut found = 0u32;
    for page in (0..whole.len()).step_by(PAGE) {
        if whole[page..page + PAGE].iter().all(|byte| *byte == 0) {
            continue;
        }
        write_at(&store, &[0xff; PAGE], page);
        match journal.verify_live() {
            Ok(report) => found += u32::from(!report.is_whole()),
            Err(error) => assert!(is_plain_refusal(&error), "page {}: {error}", page / PAGE),
        }
        write_at(&store, &whole[page..page + PAGE], page);
    }
    assert!(found > 1, "{found} found");
    assert_eq!(PANICS.load(Ordering::SeqCst), before);
    assert_eq!(put(&journal, "goes on").last, RECORDS + 1);
    assert!(journal.verify_live().unwrap().is_whole());
}

fn write_at(path: &Path, bytes: &[u8], at: usize) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at as u64).unwrap();
}
