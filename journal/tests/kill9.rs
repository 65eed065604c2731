//! J1: SIGKILL at random points; what was acknowledged is there. Runs without the usual harness,
//! because it starts itself as the process that is killed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use atenea_journal::{Journal, Priority, verify};
use common::*;

const CHILD: &str = "ATENEA_JOURNAL_TEST_CHILD";
const ROUNDS: u64 = 20;
const THREADS: u64 = 4;

fn main() {
    match std::env::var_os(CHILD) {
        Some(dir) => append_for_ever(Path::new(&dir)),
        None => {
            println!("acknowledged_records_survive_sigkill_at_{ROUNDS}_random_points ...");
            acknowledged_records_survive_sigkill();
            println!("ok");
        }
    }
}

/// The child: several appenders, each prints what was acknowledged to it.
fn append_for_ever(dir: &Path) {
    println!("start");
    let opened = open(dir).unwrap();
    let journal = opened.journal;
    journal.set_holder(holder()).unwrap();
    println!("open");
    let round = opened.head.seq;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let journal = &journal;
            scope.spawn(move || append_and_tell(journal, round, thread));
        }
    });
}

fn append_and_tell(journal: &Journal, round: u64, thread: u64) {
    for n in 0.. {
        let name = format!("{round}/{thread}/{n}");
        // A batch of two: both or none must survive.
        let batch = vec![record(format!("{name}/a")), record(format!("{name}/b"))];
        let place = journal.append(batch, Priority::Normal).unwrap();
        println!("ack {} {name}", place.last);
    }
}

fn acknowledged_records_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let seed = 20_261_129;
    let mut rng = Rng(seed);
    let mut acked: HashMap<u64, String> = HashMap::new();
    let mut before = 0;
    for round in 0..ROUNDS {
        let what = format!("seed {seed}, round {round}");
        // Every fifth round dies while it opens, the others after a random acknowledgement.
        let after = if round % 5 == 4 { 0 } else { 3 + rng.below(150) };
        for (seq, name) in run_and_kill(dir.path(), after) {
            assert!(acked.insert(seq, name).is_none(), "{what}: {seq} was acknowledged twice");
        }
        before = check(dir.path(), &acked, before, &what);
    }
    assert!(acked.len() > 200, "only {} acknowledged", acked.len());
}

/// Starts the child, kills it after `after` acknowledgements, returns all that it printed.
fn run_and_kill(dir: &Path, after: u64) -> Vec<(u64, String)> {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut acks = Vec::new();
    let mut line = String::new();
    let mut killed = false;
    // What is still in the pipe after the kill was acknowledged before it.
    while out.read_line(&mut line).unwrap() > 0 {
        // A last line without its end may have lost digits.
        if let Some(text) = line.strip_suffix('\n').and_then(|l| l.strip_prefix("ack ")) {
            let (seq, name) = text.split_once(' ').unwrap();
            acks.push((seq.parse().unwrap(), name.to_owned()));
        }
        if acks.len() as u64 >= after && !killed {
            child.kill().unwrap();
            killed = true;
        }
        line.clear();
    }
    let end = child.wait().unwrap();
    assert!(killed, "the child ended by itself: {end:?}");
    assert_eq!(end.signal(), Some(9));
    acks
}

/// Returns the number of records.
fn check(dir: &Path, acked: &HashMap<u64, String>, before: u64, what: &str) -> u64 {
    if !store_path(dir).exists() {
        // Killed before the journal was made: nothing can have been acknowledged.
        assert!(acked.is_empty(), "{what}");
        return 0;
    }
    let report = verify(dir, &options(), holder()).unwrap();
    assert!(report.is_whole(), "{what}: {report:?}");
    let opened = open(dir).unwrap();
    let records = payloads(&opened.journal);
    let there = records.len() as u64;
    assert!(there >= before, "{what}: shorter than before");
    for (seq, name) in acked {
        let at = usize::try_from(seq - 1).unwrap();
        assert_eq!(records.get(at), Some(&format!("{name}/b")), "{what}: {seq}");
    }
    // Batches are whole, and each appender's records are a prefix of what it sent.
    let mut next: HashMap<&str, u64> = HashMap::new();
    for pair in records.chunks(2) {
        let (name, _) = pair[0].rsplit_once('/').unwrap();
        assert_eq!(pair, [format!("{name}/a"), format!("{name}/b")], "{what}");
        let (appender, n) = name.rsplit_once('/').unwrap();
        let expect = next.entry(appender).or_default();
        assert_eq!(n.parse(), Ok(*expect), "{what}: {appender}");
        *expect += 1;
    }
    there
}
