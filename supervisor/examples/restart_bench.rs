//! How long a restart takes: journal opened and folded, for 10,000 and 100,000 events, with and
//! without a snapshot, against reading the same file once. Prints a table.

use std::path::Path;
use std::time::Instant;

use atenea_core::event::{
    CleanupStep, Event, Exit, Owner, Quality, Recorded, RunSpec, Stamp, Step, Usage,
};
use atenea_core::{BootId, Digest, Generation, Limits, Nanos, Profile, RunId, State, apply};
use atenea_journal::{Holder, Journal, Options, Priority};
use atenea_sup::driver::record;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "  {:<34} {:>10} {:>12} {:>12}",
        "restart with", "open+fold", "with snapshot", "plain read"
    );
    for events in [10_000, 100_000] {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("journal");
        fill(&path, events)?;
        let cold = restart(&path)?;
        snapshot(&path)?;
        let warm = restart(&path)?;
        let read = read_once(&path)?;
        println!(
            "  {:<34} {cold:>7.1} ms {warm:>9.1} ms {read:>9.1} ms   {:.1} x a plain read",
            format!("{events} events"),
            cold / read
        );
    }
    Ok(())
}

fn open(path: &Path) -> Result<Journal, Box<dyn std::error::Error>> {
    let holder = Holder::this_process("bench", 0);
    Ok(Journal::open(path, Options::default(), holder)?.journal)
}

fn fill(path: &Path, events: u64) -> Result<(), Box<dyn std::error::Error>> {
    let journal = open(path)?;
    let mut batch = Vec::new();
    let mut state = State::default();
    let mut run = 0;
    while state.seq < events {
        run += 1;
        for event in story(run) {
            let recorded = Recorded { seq: state.seq + 1, at: Stamp::default(), event };
            drop(apply(&mut state, &recorded));
            batch.push(recorded);
        }
        if batch.len() >= 500 || state.seq >= events {
            for chunk in record::encode_all(&batch)? {
                journal.append(chunk, Priority::Normal)?;
            }
            batch.clear();
        }
    }
    journal.close()?;
    Ok(())
}

fn story(number: u64) -> Vec<Event> {
    let run = RunId::from_random(number);
    let digest = Digest::of(&number.to_le_bytes());
    let spec = RunSpec {
        name: None,
        profile: Profile::Read,
        manifest: digest,
        sealed: digest,
        program: "true".to_owned(),
        owner: Owner { uid: 1000, gid: 1000 },
        budget: None,
        priced: false,
        limits: Limits::default(),
        tty: false,
        foreground: false,
        idempotency: None,
        request: digest,
        writable_workspace: false,
        step: None,
    };
    let step = |step| Event::StepIntended { run: run.clone(), step };
    let done = |step| Event::CleanupDone { run: run.clone(), step };
    vec![
        Event::SupervisorStarted {
            generation: Generation(number),
            boot: BootId("bench".to_owned()),
            version: "bench".to_owned(),
        },
        Event::RunRequested { run: run.clone(), spec: Box::new(spec) },
        Event::RunAdmitted { run: run.clone(), run_uid: 700_000 },
        step(Step::Workspace),
        step(Step::Group),
        step(Step::Policy),
        Event::WorkspaceReady { run: run.clone(), base_tree: None, base_commit: None },
        Event::GroupReady { run: run.clone(), record: "{}".to_owned() },
        Event::PolicyReady { run: run.clone(), token: digest },
        step(Step::Go),
        Event::AgentStarted { run: run.clone() },
        Event::Exited { run: run.clone(), exit: Exit::Status(0), usage: Usage::default() },
        done(CleanupStep::Token),
        done(CleanupStep::Group),
        done(CleanupStep::Boundary),
        Event::RunSettled {
            run: run.clone(),
            reported: Nanos::ZERO,
            unknown: Nanos::ZERO,
            quality: Quality::None,
        },
        Event::ReceiptIssued { run, digest },
    ]
}

fn restart(path: &Path) -> Result<f64, Box<dyn std::error::Error>> {
    let began = now();
    let journal = open(path)?;
    let state = record::fold(&journal)?;
    let taken = began.elapsed().as_secs_f64() * 1_000.0;
    assert!(state.seq >= 10_000, "the journal was folded");
    journal.set_holder(Holder::this_process("bench", 0))?;
    journal.close()?;
    Ok(taken)
}

fn snapshot(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let journal = open(path)?;
    let state = record::fold(&journal)?;
    record::put_snapshot(&journal, &state)?;
    journal.set_holder(Holder::this_process("bench", 0))?;
    journal.close()?;
    Ok(())
}

fn read_once(path: &Path) -> Result<f64, Box<dyn std::error::Error>> {
    let began = now();
    let bytes = std::fs::read(path.join("journal.redb"))?;
    let taken = began.elapsed().as_secs_f64() * 1_000.0;
    assert!(!bytes.is_empty());
    Ok(taken)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}
