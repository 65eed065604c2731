//! S3: a run that claims an approval has a living one of exactly its manifest, and each use counts.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

mod support;

use atenea_core::event::{Event, RunSpec};
use atenea_core::input::{Command, Input};
use atenea_core::{Code, Digest, IdempotencyKey, Phase, RunId};
use support::*;

fn claiming() -> RunSpec {
    RunSpec { step: Some(step()), ..spec() }
}

/// Asks for run number `n`; the code of its refusal.
fn asks(bench: &mut Bench, n: u64, spec: RunSpec) -> Option<Code> {
    let run = RunId::from_random(n);
    let idempotency = Some(IdempotencyKey::parse(&format!("key-{n}")).unwrap());
    let spec = Box::new(RunSpec { idempotency, ..spec });
    let request = Command::Request { run: run.clone(), spec, refusal: None };
    let (events, _) = bench.give(Input::Command(request)).unwrap();
    let used = events.iter().filter(|e| matches!(e, Event::ApprovalUsed { .. })).count();
    let found = bench.state.run(&run).unwrap();
    assert_eq!(used, usize::from(found.approval.is_some()), "{events:?}");
    if found.phase == Phase::Refused {
        // B4: a refused request leaves no hold, and uses up nothing.
        assert_eq!((found.approval, bench.state.ledger.holds.contains_key(&run)), (None, false));
    }
    found.cause.as_ref().map(|(code, _)| *code)
}

#[test]
fn an_approved_manifest_runs_once_and_its_run_names_the_approval() {
    let mut bench = Bench::new();
    bench.tell(approve());
    let given = bench.state.seq;
    assert_eq!(asks(&mut bench, 1, claiming()), None);
    assert_eq!(bench.state.run(&RunId::from_random(1)).unwrap().approval, Some(given));
    assert_eq!(asks(&mut bench, 2, claiming()), Some(Code::ApprovalUsed));
    bench.tell(approve());
    assert_eq!(asks(&mut bench, 3, claiming()), None);
}

#[test]
fn one_changed_byte_of_the_manifest_refuses_the_run() {
    let mut bench = Bench::new();
    bench.tell(approve());
    let changed = RunSpec { manifest: Digest::of(b"manifesT"), ..claiming() };
    assert_eq!(asks(&mut bench, 1, changed), Some(Code::ApprovalMismatch));
    assert_eq!(asks(&mut bench, 2, claiming()), None, "and uses up nothing");
}

#[test]
fn a_step_that_nobody_approved_is_refused_and_an_unclaimed_one_only_where_approval_is_required() {
    let mut bench = Bench::new();
    assert_eq!(asks(&mut bench, 1, claiming()), Some(Code::ApprovalRequired));
    assert_eq!(asks(&mut bench, 2, spec()), None);
    bench.settings.approval_required = true;
    assert_eq!(asks(&mut bench, 3, spec()), Some(Code::ApprovalRequired));
    bench.tell(approve());
    assert_eq!(asks(&mut bench, 4, claiming()), None);
}

#[test]
fn a_run_that_its_account_cannot_pay_uses_no_approval() {
    let mut bench = Bench::new();
    bench.tell(approve());
    let mut dear = claiming();
    dear.budget.as_mut().unwrap().amount.0 = 20_000_000_000;
    assert_eq!(asks(&mut bench, 1, dear), Some(Code::BudgetInsufficient));
    assert_eq!(asks(&mut bench, 2, claiming()), None);
}

#[test]
fn a_repeated_request_uses_its_approval_once() {
    // B4
    let mut bench = Bench::new();
    bench.tell(approve());
    bench.tell(request(claiming()));
    assert!(bench.tell(request(claiming())).is_empty());
    assert_eq!(bench.state.approvals.steps[&step()].used, 1);
}

#[test]
fn an_approval_ends_on_the_boot_clock_whatever_the_wall_clock_says() {
    let mut bench = Bench::new();
    bench.tell(approve());
    bench.now.boot_ms += 60_000;
    bench.now.wall_ms -= 30_000;
    assert_eq!(asks(&mut bench, 1, claiming()), Some(Code::ApprovalExpired));
}

#[test]
fn an_approval_ends_on_the_wall_clock_after_a_reboot_and_does_not_come_back_with_it() {
    let mut bench = Bench::new();
    bench.tell(approve());
    bench.now.boot_ms = 0;
    bench.tell(Input::Command(Command::Start { boot: boot(2), version: "0.1.0".into() }));
    bench.now.wall_ms += 59_999;
    let mut lives = bench.clone();
    assert_eq!(asks(&mut lives, 1, claiming()), None, "the control");
    bench.now.wall_ms += 1;
    assert_eq!(asks(&mut bench, 1, claiming()), Some(Code::ApprovalExpired));
    // Somebody sets the clock back.
    bench.now.wall_ms -= 40_000;
    assert_eq!(asks(&mut bench, 2, claiming()), Some(Code::ApprovalExpired));
}

#[test]
fn what_has_ended_is_forgotten_and_the_number_of_living_ones_is_bounded() {
    // J7
    let mut bench = Bench::new();
    let give = |n: usize| {
        let step = atenea_core::StepName::parse(&format!("s{n}")).unwrap();
        let manifest = Digest::of(b"m");
        Input::Command(Command::Approve { step, manifest, by: 0, expires_ms: 60_000, uses: 1 })
    };
    for n in 0..atenea_core::approval::APPROVALS_MAX {
        let event = match give(n) {
            Input::Command(Command::Approve { step, manifest, by, expires_ms, uses }) => {
                Event::ApprovalGiven { step, manifest, by, expires_ms, uses }
            }
            _ => continue,
        };
        // Straight into the fold: deciding each would look at all of them.
        bench.record(vec![event]);
    }
    let more = bench.try_tell(give(20_000)).unwrap_err();
    assert_eq!(more.code, Code::ApprovalTooMany);
    bench.tell(give(0));
    bench.now.boot_ms += 60_000;
    bench.now.wall_ms += 60_000;
    bench.tell(give(20_000));
    assert_eq!(bench.state.approvals.steps.len(), 1);
}
