//! Measures the journal against the disk it is on. One table, each row a ratio to something
//! measured in the same run.
//!
//! `cargo run --release -p atenea-journal --example append_bench [-- DIR]`

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measuring program: it reads the clock and stops at the first error"
)]

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atenea_journal::{Holder, Journal, NewRecord, Options, Priority};

const SINGLE: usize = 400;
const THREADS: u64 = 64;
const PER_THREAD: u64 = 60;
const PAYLOAD: usize = 200;
const CHILD: &str = "ATENEA_JOURNAL_BENCH_CHILD";

fn main() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return fill_and_hang(Path::new(&dir));
    }
    let base = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(base).unwrap();
    single_append(dir.path());
    group_commit(dir.path());
    for records in [10_000, 100_000] {
        open_after_kill(dir.path(), records);
    }
}

fn holder() -> Holder {
    Holder::this_process("append_bench", 0)
}

fn open(dir: &Path) -> Journal {
    let journal = Journal::open(dir, Options::default(), holder()).unwrap().journal;
    journal.set_holder(holder()).unwrap();
    journal
}

fn record() -> NewRecord {
    NewRecord { kind: 1, schema: 1, payload: vec![0x5a; PAYLOAD] }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn timed(n: usize, mut work: impl FnMut()) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..n)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// One durable append against what it cannot be faster than: two writes with their syncs (the
/// commit's phases); it also writes the anchor, which is a third.
fn single_append(dir: &Path) {
    let raw = raw_file(&dir.join("raw"));
    let block = [0x5a; 4096];
    let mut at = 0;
    let mut raw_times = |syncs: usize| {
        timed(SINGLE, || {
            for _ in 0..syncs {
                raw.write_all_at(&block, at % (4 << 20)).unwrap();
                raw.sync_data().unwrap();
                at += 4096;
            }
        })
    };
    let two = raw_times(2);
    let three = raw_times(3);
    let journal = open(&dir.join("single"));
    let append = timed(SINGLE, || {
        black_box(journal.append(vec![record()], Priority::Normal).unwrap());
    });
    println!("{:<34} {:>12} {:>12}", "single durable operation", "p50", "p99");
    for (name, times) in [
        ("2 x (4 KiB write + fdatasync)", &two),
        ("3 x (4 KiB write + fdatasync)", &three),
        ("journal append (1 record)", &append),
    ] {
        let (p50, p99) = (percentile(times, 50), percentile(times, 99));
        println!("{name:<34} {p50:>12.2?} {p99:>12.2?}");
    }
    let (p50, p99) = (
        ratio(percentile(&append, 50), percentile(&two, 50)),
        ratio(percentile(&append, 99), percentile(&two, 99)),
    );
    println!("{:<34} {p50:>11.2}x {p99:>11.2}x\n", "append / two raw syncs");
}

fn raw_file(path: &Path) -> File {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    // Written blocks, so that the syncs below carry no allocation.
    file.write_all_at(&vec![0; (4 << 20) + 4096], 0).unwrap();
    file.sync_all().unwrap();
    file
}

fn group_commit(dir: &Path) {
    let one = appenders(&dir.join("one"), 1, PER_THREAD * 8);
    let many = appenders(&dir.join("many"), THREADS, PER_THREAD);
    println!("{:<34} {:>12} {:>12}", "appenders", "records/s", "commits");
    for (name, (rate, commits)) in [("1", one), ("64", many)] {
        println!("{name:<34} {rate:>12.0} {commits:>12}");
    }
    println!("{:<34} {:>11.2}x\n", "64 / 1", many.0 / one.0);
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn appenders(dir: &Path, threads: u64, each: u64) -> (f64, u64) {
    let journal = open(dir);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..each {
                    journal.append(vec![record()], Priority::Normal).unwrap();
                }
            });
        }
    });
    ((threads * each) as f64 / start.elapsed().as_secs_f64(), journal.commits())
}

/// The child: fills a journal, says so, keeps appending until it is killed.
fn fill_and_hang(dir: &Path) {
    let journal = open(dir);
    let target: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    while journal.head().seq < target {
        journal.append(vec![record(); 500], Priority::Normal).unwrap();
    }
    println!("full");
    loop {
        journal.append(vec![record()], Priority::Normal).unwrap();
    }
}

fn open_after_kill(dir: &Path, records: u64) {
    let dir = dir.join(format!("kill-{records}"));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(records.to_string())
        .env(CHILD, &dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "full\n");
    let start = Instant::now();
    let journal = open(&dir);
    let opened = start.elapsed();
    let start = Instant::now();
    let read = journal.records(1).unwrap().inspect(|r| assert!(r.is_ok())).count();
    let folded = start.elapsed();
    let mib = fs::metadata(dir.join("journal.redb")).unwrap().len() >> 20;
    println!(
        "after SIGKILL, {read} records, {mib} MiB: open {opened:.2?}, read and verify all {folded:.2?}"
    );
}
