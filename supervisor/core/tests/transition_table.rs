//! Every phase times every input: what is recorded or refused, where it leads and what it causes.
//!
//! The table is `transition_table.golden.txt`; `UPDATE_GOLDEN=1` writes it anew, and the difference
//! is what a reviewer reads.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use atenea_core::event::{
    BoundaryInfo, Chore, CleanupStep, Exit, ExportTarget, Period, Step, Usage, Violation,
};
use atenea_core::input::{Command, Input, Observation};
use atenea_core::{Code, Digest, IdempotencyKey, Nanos, Phase};
use support::*;

const GOLDEN: &str = "tests/transition_table.golden.txt";
const STEPS: [Step; 6] =
    [Step::Workspace, Step::Group, Step::Policy, Step::Sandbox, Step::Boundary, Step::Go];

/// Every state a run can be in, as far as it changes what an input means.
fn states() -> Vec<(&'static str, Bench)> {
    let mut states = vec![("no such run", Bench::new())];
    states.extend(young());
    for phase in [Phase::Preparing, Phase::Starting, Phase::Running] {
        states.push((phase.as_str(), Bench::at(spec(), phase)));
        if phase == Phase::Starting {
            states.push(("starting, go is out", going()));
        }
    }
    states.extend(old());
    states
}

fn young() -> Vec<(&'static str, Bench)> {
    let record = |count: usize| {
        let mut decided = Bench::new();
        let (events, _) = decided.give(request(spec())).unwrap();
        let mut bench = Bench::new();
        bench.record(events.into_iter().take(count).collect());
        bench
    };
    let mut refused = Bench::new();
    let none = Some(refusal(Code::HostNoBubblewrap));
    let spec = Box::new(spec());
    refused.give(Input::Command(Command::Request { run: run_id(), spec, refusal: none })).unwrap();
    let young = vec![
        ("requested", record(1)),
        ("admitted", record(2)),
        ("queued", record(3)),
        ("refused", refused),
    ];
    for (name, bench) in &young {
        assert_eq!(bench.run().phase.as_str(), *name);
    }
    young
}

fn going() -> Bench {
    let mut bench = Bench::at(spec(), Phase::Starting);
    bench.until_out(Step::Go);
    bench
}

fn old() -> Vec<(&'static str, Bench)> {
    let running = Bench::at(spec(), Phase::Running);
    let after = |bench: &Bench, input: Input| {
        let mut bench = bench.clone();
        bench.tell(input);
        bench
    };
    let mut aborting = Bench::at(spec(), Phase::Preparing);
    aborting.tell(cancel(false));
    let cleaning = after(&running, exited(Exit::Status(0)));
    let mut sealing = cleaning.clone();
    sealing.until_cleaning(CleanupStep::Workspace);
    let stuck = after(&cleaning, failed(CleanupStep::Token));
    let mut settling = cleaning.clone();
    settling.until(Phase::Settling);
    let no_receipt = after(&settling, chore_failed(Chore::Receipt));
    let mut sealed = settling.clone();
    sealed.until(Phase::Ended);
    let exporting = after(&sealed, export());
    let exported = after(&exporting, seen(Observation::Exported { run: run_id(), commit: None }));
    let discarding = after(&sealed, discard());
    let discarded = after(&discarding, seen(Observation::Discarded { run: run_id() }));
    vec![
        ("stopping", after(&running, cancel(false))),
        ("stopping, killed", after(&running, cancel(true))),
        ("cleaning, steps are out", aborting),
        ("cleaning", cleaning.clone()),
        ("cleaning, workspace is being sealed", sealing),
        ("cleaning, stuck", stuck),
        ("settling", settling),
        ("settling, no receipt", no_receipt),
        ("ended, sealed", sealed),
        ("ended, exporting", exporting),
        ("ended, exported", exported),
        ("ended, discarding", discarding.clone()),
        ("ended, discarding failed", after(&discarding, chore_failed(Chore::Discard))),
        ("ended, discarded", discarded),
        ("ended, leftovers", with_leftovers(cleaning)),
    ]
}

fn with_leftovers(mut bench: Bench) -> Bench {
    bench.settings.cleanup_tries = 1;
    bench.tell(failed(CleanupStep::Token));
    bench.until(Phase::Ended);
    bench
}

fn failed(step: CleanupStep) -> Input {
    let refusal = refusal(Code::ProcessCleanupStuck);
    seen(Observation::CleanupFailed { run: run_id(), step, refusal })
}

fn chore_failed(chore: Chore) -> Input {
    seen(Observation::ChoreFailed { run: run_id(), chore, refusal: refusal(Code::FsDiskFull) })
}

fn export() -> Input {
    let target = ExportTarget::Ref("refs/atenea/x".into());
    Input::Command(Command::Export { run: run_id(), target })
}

fn discard() -> Input {
    Input::Command(Command::Discard { run: run_id() })
}

fn commands() -> Vec<(String, Input)> {
    let mut other = spec();
    other.request = Digest::of(b"another");
    let mut fresh = spec();
    fresh.idempotency = Some(IdempotencyKey::parse("other").unwrap());
    let start = Command::Start { boot: boot(2), version: "0.1.0".into() };
    let set = |limit| {
        let (account, per) = (account(), Some(Period::Month));
        Input::Command(Command::SetBudget { account, limit: Nanos(limit), per })
    };
    [
        ("crash: Start", Input::Command(start)),
        ("Stop", Input::Command(Command::Stop { now: false })),
        ("Stop now", Input::Command(Command::Stop { now: true })),
        ("Stopped", Input::Command(Command::Stopped)),
        ("SetBudget more", set(20_000_000_000)),
        ("SetBudget nothing", set(0)),
        ("Request again", request(spec())),
        ("Request, other content", request(other)),
        ("Request, same id", request(fresh)),
        ("Cancel", cancel(false)),
        ("Cancel, kill", cancel(true)),
        ("Approve", approve()),
        ("Export", export()),
        ("Discard", discard()),
    ]
    .map(|(name, input)| (name.to_owned(), input))
    .into()
}

fn observations() -> Vec<(String, Input)> {
    let run = run_id;
    let mut all: Vec<Observation> = STEPS
        .iter()
        .map(|step| Observation::StepFailed {
            run: run(),
            step: *step,
            refusal: refusal(Code::ProcessLaunchFailed),
        })
        .collect();
    all.extend([
        Observation::StepFailed {
            run: run(),
            step: Step::Go,
            refusal: refusal(Code::ProcessNotFound),
        },
        Observation::WorkspaceReady { run: run(), base_tree: None, base_commit: None },
        Observation::GroupReady { run: run(), record: "g".into() },
        Observation::PolicyReady { run: run(), token: Digest::of(b"token") },
        sandbox(true),
        sandbox(false),
        Observation::BoundaryReady { run: run() },
        Observation::AgentStarted { run: run() },
        Observation::LimitExceeded { run: run(), refusal: refusal(Code::LimitMemory) },
        Observation::Violation { run: run(), violation: violation() },
        Observation::ClientGone { run: run() },
    ]);
    for exit in [Exit::Status(7), Exit::Signal(9), Exit::Unknown] {
        all.push(Observation::Exited { run: run(), exit, usage: Usage::default() });
    }
    for step in CleanupStep::ALL {
        let refusal = refusal(Code::ProcessCleanupStuck);
        all.push(Observation::CleanupDone { run: run(), step });
        all.push(Observation::CleanupFailed { run: run(), step, refusal });
    }
    all.extend([
        Observation::WorkspaceSealed { run: run(), result_tree: None, changed: 3 },
        Observation::WorkspaceSealed { run: run(), result_tree: None, changed: 0 },
        Observation::WorkspaceRemoved { run: run() },
        Observation::ReceiptWritten { run: run(), digest: Digest::of(b"receipt") },
        Observation::Exported { run: run(), commit: None },
        Observation::ExportFailed { run: run(), refusal: refusal(Code::ExportRefExists) },
        Observation::Discarded { run: run() },
        Observation::LeftoverRemoved { kind: "group".into(), name: "x".into() },
    ]);
    for chore in [Chore::Receipt, Chore::Discard] {
        let refusal = refusal(Code::FsDiskFull);
        all.push(Observation::ChoreFailed { run: run(), chore, refusal });
    }
    all.into_iter().map(|o| (observation_name(&o), seen(o))).collect()
}

fn sandbox(refused: bool) -> Observation {
    Observation::SandboxCreated {
        run: run_id(),
        identity: identity(),
        boundary: BoundaryInfo::default(),
        self_test: self_test(refused),
    }
}

fn violation() -> Violation {
    Violation {
        phase: "egress".into(),
        code: Code::EgressNotGranted,
        subject: "example.test:443".into(),
        count: 1,
        killed_run: false,
    }
}

fn observation_name(seen: &Observation) -> String {
    let name = variant(seen);
    match seen {
        Observation::StepFailed { step, refusal, .. } => {
            format!("{name} {step:?} {}", refusal.code)
        }
        Observation::Exited { exit, .. } => format!("{name} {exit:?}"),
        Observation::CleanupDone { step, .. } | Observation::CleanupFailed { step, .. } => {
            format!("{name} {step:?}")
        }
        Observation::ChoreFailed { chore, .. } => format!("{name} {chore:?}"),
        Observation::WorkspaceSealed { changed, .. } => format!("{name}, {changed} changed"),
        Observation::SandboxCreated { self_test, .. } if self_test.iter().any(|t| !t.refused) => {
            format!("{name}, self-test failed")
        }
        _ => name,
    }
}

fn inputs() -> Vec<(String, Option<u64>, Input)> {
    let plain = commands().into_iter().chain(observations());
    let mut inputs: Vec<_> = plain.map(|(name, input)| (name, None, input)).collect();
    inputs.push(("Advance".into(), None, Input::Advance));
    inputs.push(("Advance, an hour later".into(), Some(3_600_000), Input::Advance));
    inputs
}

/// One line: the events or the code, the state after them, the effects.
fn cell(bench: &Bench, later: Option<u64>, input: Input) -> String {
    let mut bench = bench.clone();
    bench.now.boot_ms += later.unwrap_or(0);
    let (events, effects) = match bench.give(input) {
        Ok(found) => found,
        Err(refusal) => return format!("refused {}", refusal.code),
    };
    if events.is_empty() {
        return "-".to_owned();
    }
    let mut line = events.iter().map(label).collect::<Vec<_>>().join(" ");
    if let Ok(run) = bench.state.run(&run_id()) {
        let outcome = run.outcome.map_or(String::new(), |o| format!(" {}", o.as_str()));
        let _ = write!(line, " => {}{outcome}, {}", run.phase.as_str(), run.workspace.as_str());
    }
    if !effects.is_empty() {
        let effects: Vec<String> = effects.iter().map(variant).collect();
        let _ = write!(line, " | {}", effects.join(" "));
    }
    line
}

fn table() -> String {
    let mut text = String::from(
        "# input: events => phase outcome, workspace | effects   (\"-\": decides nothing)\n",
    );
    for (name, bench) in states() {
        let _ = writeln!(text, "\n[{name}]");
        for (input_name, later, input) in inputs() {
            let _ = writeln!(text, "{input_name}: {}", cell(&bench, later, input));
        }
    }
    text
}

#[test]
fn every_phase_and_input_do_what_the_golden_table_says() {
    let found = table();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &found).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    let mut section = "";
    for (n, (is, was)) in found.lines().zip(golden.lines()).enumerate() {
        if is.starts_with('[') {
            section = is;
        }
        assert_eq!(is, was, "line {} in {section}; UPDATE_GOLDEN=1 accepts it", n + 1);
    }
    assert_eq!(found.lines().count(), golden.lines().count());
}

#[test]
fn the_table_has_every_phase() {
    let phases: BTreeSet<Phase> =
        states().iter().filter_map(|(_, b)| b.state.run(&run_id()).ok()).map(|r| r.phase).collect();
    assert_eq!(phases, Phase::ALL.into_iter().collect());
}

/// A number for each kind of input; a new kind does not compile until it is listed here, and the
/// test below fails until the table has it.
const fn number(input: &Input) -> usize {
    match input {
        Input::Advance => 0,
        Input::Command(command) => match command {
            Command::Start { .. } => 1,
            Command::Stop { .. } => 2,
            Command::Stopped => 3,
            Command::SetBudget { .. } => 4,
            Command::Request { .. } => 5,
            Command::Cancel { .. } => 6,
            Command::Export { .. } => 7,
            Command::Discard { .. } => 8,
            Command::Approve { .. } => 29,
        },
        Input::Observation(seen) => match seen {
            Observation::StepFailed { .. } => 9,
            Observation::WorkspaceReady { .. } => 10,
            Observation::GroupReady { .. } => 11,
            Observation::PolicyReady { .. } => 12,
            Observation::SandboxCreated { .. } => 13,
            Observation::BoundaryReady { .. } => 14,
            Observation::AgentStarted { .. } => 15,
            Observation::Exited { .. } => 16,
            Observation::LimitExceeded { .. } => 17,
            Observation::Violation { .. } => 18,
            Observation::ClientGone { .. } => 19,
            Observation::CleanupDone { .. } => 20,
            Observation::CleanupFailed { .. } => 21,
            Observation::WorkspaceSealed { .. } => 22,
            Observation::WorkspaceRemoved { .. } => 23,
            Observation::ReceiptWritten { .. } => 24,
            Observation::Exported { .. } => 25,
            Observation::ExportFailed { .. } => 26,
            Observation::Discarded { .. } => 27,
            Observation::ChoreFailed { .. } => 28,
            Observation::LeftoverRemoved { .. } => LAST,
        },
    }
}

const LAST: usize = 30;

#[test]
fn the_table_has_every_kind_of_input() {
    let found: BTreeSet<usize> = inputs().iter().map(|(_, _, input)| number(input)).collect();
    assert_eq!(found, (0..=LAST).collect());
}

#[test]
fn no_observation_is_ever_refused_and_none_changes_money_before_settlement() {
    // B4: only BudgetHeld and RunSettled move money, whatever is observed when.
    for (name, bench) in states() {
        for (input_name, input) in observations() {
            let mut after = bench.clone();
            assert!(after.give(input).is_ok(), "{input_name} in {name}");
            assert_eq!(after.state.ledger, bench.state.ledger, "{input_name} in {name}");
        }
    }
}
