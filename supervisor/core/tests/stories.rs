//! Whole lives of runs, told as the inputs that make them and the facts they leave.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

mod support;

use atenea_core::effect::Effect;
use atenea_core::event::{
    BoundaryInfo, Chore, CleanupStep, Exit, ExportTarget, Quality, RunSpec, Step,
};
use atenea_core::input::{Command, Input, Observation};
use atenea_core::run::Workspace;
use atenea_core::state::{KILL_WAIT_MS, RUN_EVENTS_MAX};
use atenea_core::{Code, Nanos, Outcome, Phase, RunId, RunName, can_wait};
use support::*;

const DOLLAR: u64 = 1_000_000_000;

fn labels(bench: &Bench) -> Vec<String> {
    bench.journal.iter().filter(|r| r.event.run().is_some()).map(|r| label(&r.event)).collect()
}

fn position(bench: &Bench, wanted: &str) -> usize {
    let found = labels(bench).iter().position(|l| l == wanted);
    found.unwrap_or_else(|| panic!("{wanted} is not in {:?}", labels(bench)))
}

fn step_failed(step: Step, code: Code) -> Input {
    seen(Observation::StepFailed { run: run_id(), step, refusal: refusal(code) })
}

fn cleanup_failed(step: CleanupStep) -> Input {
    let refusal = refusal(Code::ProcessCleanupStuck);
    seen(Observation::CleanupFailed { run: run_id(), step, refusal })
}

/// The run is over, has a receipt, and nothing of it is left or out.
fn assert_over(bench: &Bench, outcome: Outcome, status: i32) {
    let run = bench.run();
    assert_eq!((run.phase, run.outcome), (Phase::Ended, Some(outcome)));
    assert_eq!(run.client_status(), status);
    assert!(run.receipt.is_some() && run.leftovers().is_empty() && run.stuck().is_none());
    assert!(run.cleanup.values().all(|c| c.done));
    assert!(bench.out.is_empty(), "still out: {:?}", bench.out);
    assert_eq!(bench.state.ledger.check(), Ok(()));
}

#[test]
fn a_run_that_succeeds_passes_every_step_in_order_and_is_sealed() {
    // S1 C2 R1
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    assert_over(&bench, Outcome::Exited, 0);
    let wanted = "RunRequested RunAdmitted BudgetHeld StepIntended(Workspace) StepIntended(Group) \
        StepIntended(Policy) WorkspaceReady GroupReady PolicyReady StepIntended(Sandbox) \
        SandboxCreated StepIntended(Boundary) BoundaryReady StepIntended(Go) AgentStarted Exited \
        CleanupDone(Token) CleanupDone(Group) CleanupDone(Boundary) WorkspaceSealed RunSettled \
        ReceiptIssued";
    assert_eq!(labels(&bench).join(" "), wanted);
    assert_eq!(bench.run().workspace, Workspace::Sealed);
    assert!(!bench.state.busy());
}

#[test]
fn an_agent_that_returns_seven_makes_the_client_return_seven() {
    let mut bench = Bench::at(read_only(), Phase::Running);
    bench.tell(exited(Exit::Status(7)));
    bench.settle();
    assert_over(&bench, Outcome::Exited, 7);
    // B7: nothing priced was granted, so nothing is unknown and the hold is gone.
    assert_eq!(bench.money(), (0, 0));
    assert_eq!(bench.run().money.quality, Some(Quality::None));
}

#[test]
fn an_agent_that_dies_of_a_signal_is_not_taken_for_a_cancelled_one() {
    let mut bench = Bench::at(read_only(), Phase::Running);
    bench.tell(exited(Exit::Signal(11)));
    bench.settle();
    assert_over(&bench, Outcome::Signaled, 139);
}

#[test]
fn unreported_spend_of_a_priced_run_stays_held() {
    // B6
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    assert_eq!(bench.money(), (DOLLAR, 0));
    assert_eq!(bench.run().money.unknown, Nanos(DOLLAR));
}

#[test]
fn a_run_on_the_host_needs_no_workspace_policy_or_boundary() {
    let mut bench = Bench::at(trusted_host(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    assert_over(&bench, Outcome::Exited, 0);
    assert!(!labels(&bench).iter().any(|l| l.contains("Workspace") || l == "BoundaryReady"));
}

#[test]
fn a_cancel_before_the_agent_removes_the_workspace_nobody_saw() {
    // C3 B4
    for phase in [Phase::Queued, Phase::Preparing, Phase::Starting] {
        let mut bench = Bench::new();
        if phase == Phase::Queued {
            bench.settings.max_concurrent = 0;
        }
        bench.tell(request(spec()));
        bench.until(phase);
        bench.tell(cancel(false));
        bench.settle();
        assert_over(&bench, Outcome::Cancelled, 143);
        assert_eq!(bench.run().workspace, Workspace::None, "{phase:?}");
        assert_eq!(bench.money(), (0, 0), "{phase:?}");
        assert!(!labels(&bench).contains(&"AgentStarted".to_owned()));
    }
}

#[test]
fn a_cancel_while_go_is_out_asks_the_agent_to_stop_and_kills_it_after_the_grace() {
    let start = || {
        let mut bench = Bench::at(spec(), Phase::Starting);
        bench.until_out(Step::Go);
        bench.tell(cancel(false));
        assert_eq!(bench.run().phase, Phase::Stopping);
        assert_eq!(bench.take(), ["StartAgent", "TerminateAgent"]);
        bench
    };
    let mut polite = start();
    polite.tell(seen(Observation::AgentStarted { run: run_id() }));
    assert_eq!(polite.run().phase, Phase::Stopping);
    polite.tell(exited(Exit::Status(0)));
    polite.settle();
    assert_over(&polite, Outcome::Cancelled, 143);
    assert_eq!(polite.run().exit, Some(Exit::Status(0)));

    let mut never = start();
    let refusal = refusal(Code::ProcessNotFound);
    never.tell(seen(Observation::StepFailed { run: run_id(), step: Step::Go, refusal }));
    never.settle();
    assert_over(&never, Outcome::Cancelled, 143);

    let mut deaf = start();
    deaf.tell(seen(Observation::AgentStarted { run: run_id() }));
    deaf.now.boot_ms += deaf.run().spec.limits.grace_ms;
    deaf.tell(Input::Advance);
    assert_eq!(deaf.take(), ["KillGroup"]);
}

#[test]
fn a_kill_while_go_is_out_waits_for_its_answer_and_keeps_the_workspace() {
    // C4 S1
    let mut bench = Bench::at(spec(), Phase::Starting);
    bench.until_out(Step::Go);
    bench.tell(cancel(true));
    assert_eq!(bench.run().phase, Phase::Cleaning);
    assert_eq!(bench.take(), ["StartAgent", "AbortSteps", "KillGroup"]);
    assert!(bench.run().cleanup.values().all(|c| !c.started), "cleanup waits for the answer");
    bench.tell(exited(Exit::Signal(9)));
    bench.settle();
    assert_over(&bench, Outcome::Cancelled, 143);
    assert_eq!(bench.run().workspace, Workspace::Sealed);
}

#[test]
fn a_cancel_while_running_asks_first_and_kills_after_the_grace() {
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(cancel(false));
    assert_eq!(bench.take(), ["TerminateAgent"]);
    assert_eq!(bench.pass(4_999), Vec::<String>::new());
    assert_eq!(bench.pass(1), ["DeadlinePassed(Grace)"]);
    assert_eq!(bench.take(), ["KillGroup"]);
    bench.tell(exited(Exit::Signal(9)));
    bench.settle();
    assert_over(&bench, Outcome::Cancelled, 137);
}

#[test]
fn a_second_cancel_kills_at_once_and_a_third_changes_nothing() {
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(cancel(false));
    assert_eq!(bench.tell(cancel(false)), Vec::<String>::new());
    assert_eq!(bench.tell(cancel(true)), ["CancelRequested"]);
    assert_eq!(bench.tell(cancel(true)), Vec::<String>::new());
    assert_eq!(bench.take(), ["TerminateAgent", "KillGroup"]);
    bench.tell(exited(Exit::Signal(9)));
    bench.settle();
    assert_over(&bench, Outcome::Cancelled, 137);
}

#[test]
fn a_cancel_of_what_is_being_cleaned_or_over_is_accepted_and_does_nothing() {
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(3)));
    assert_eq!(bench.tell(cancel(true)), Vec::<String>::new());
    bench.settle();
    assert_eq!(bench.tell(cancel(true)), Vec::<String>::new());
    assert_over(&bench, Outcome::Exited, 3);
}

#[test]
fn a_foreground_run_whose_client_goes_away_is_cancelled_and_a_detached_one_is_not() {
    for (foreground, events) in [(true, 1), (false, 0)] {
        let mut wanted = spec();
        wanted.foreground = foreground;
        let mut bench = Bench::at(wanted, Phase::Running);
        let gone = seen(Observation::ClientGone { run: run_id() });
        assert_eq!(bench.tell(gone).len(), events);
    }
}

#[test]
fn a_run_whose_time_is_out_is_asked_then_killed_then_given_up_on() {
    // C3: each wait is bounded, also when nothing is ever reported.
    let mut bench = Bench::at(spec(), Phase::Running);
    let limits = bench.run().spec.limits.clone();
    assert_eq!(bench.pass(limits.duration_ms), ["DeadlinePassed(Duration)"]);
    assert_eq!(bench.pass(limits.grace_ms), ["DeadlinePassed(Grace)"]);
    assert_eq!(bench.take(), ["TerminateAgent", "KillGroup"]);
    assert_eq!(bench.pass(KILL_WAIT_MS), ["DeadlinePassed(Retry)"]);
    assert_eq!(bench.run().exit, Some(Exit::Unknown));
    bench.settle();
    assert_over(&bench, Outcome::TimedOut, 124);
    assert_eq!(bench.run().cause.as_ref().unwrap().0, Code::LimitTime);
}

#[test]
fn a_run_over_a_limit_is_killed_and_says_which() {
    let mut bench = Bench::at(spec(), Phase::Running);
    let refusal = refusal(Code::LimitMemory);
    bench.tell(seen(Observation::LimitExceeded { run: run_id(), refusal }));
    assert_eq!(bench.take(), ["KillGroup"]);
    bench.tell(exited(Exit::Signal(9)));
    bench.settle();
    assert_over(&bench, Outcome::Limit, 137);
    assert_eq!(bench.run().cause.as_ref().unwrap().0, Code::LimitMemory);
}

#[test]
fn a_run_the_account_cannot_cover_is_refused_with_a_receipt_and_leaves_no_hold() {
    // B1 B2 B4
    let mut wanted = spec();
    wanted.budget.as_mut().unwrap().amount = Nanos(11 * DOLLAR);
    let mut bench = Bench::new();
    assert_eq!(bench.tell(request(wanted.clone())), ["RunRequested", "RunRefused"]);
    bench.settle();
    let run = bench.run();
    assert_eq!((run.phase, run.outcome), (Phase::Ended, Some(Outcome::Refused)));
    assert_eq!(run.cause.as_ref().unwrap().0, Code::BudgetInsufficient);
    assert_eq!(run.client_status(), 125);
    assert!(run.receipt.is_some());
    assert_eq!(bench.money(), (0, 0));
    // B4: the same request again is the same run, with the same outcome.
    assert_eq!(bench.tell(request(wanted)), Vec::<String>::new());
}

#[test]
fn what_the_host_checks_refuse_is_recorded_as_a_refused_run() {
    let mut bench = Bench::new();
    let none = Some(refusal(Code::HostNoBubblewrap));
    let spec = Box::new(spec());
    bench.tell(Input::Command(Command::Request { run: run_id(), spec, refusal: none }));
    bench.settle();
    assert_eq!(bench.run().outcome, Some(Outcome::Refused));
    assert_eq!(bench.money(), (0, 0));
}

#[test]
fn a_command_that_does_not_exist_is_127_and_one_that_cannot_be_executed_126() {
    for (code, status) in [(Code::ProcessNotFound, 127), (Code::ProcessNotExecutable, 126)] {
        let mut bench = Bench::at(spec(), Phase::Starting);
        bench.until_out(Step::Go);
        bench.take();
        bench.tell(step_failed(Step::Go, code));
        bench.settle();
        assert_over(&bench, Outcome::Exited, status);
    }
}

#[test]
fn a_step_that_fails_ends_the_run_aborted_with_its_code_and_cleans_up_everything() {
    // C1 C3: whatever the step half made is removed by the same cleanup.
    for step in [Step::Workspace, Step::Group, Step::Policy, Step::Sandbox, Step::Boundary] {
        let mut bench = Bench::new();
        bench.tell(request(spec()));
        bench.until_out(step);
        bench.out.retain(|effect| !is_effect_of(effect, step));
        bench.tell(step_failed(step, Code::ProcessLaunchFailed));
        bench.settle();
        assert_over(&bench, Outcome::Aborted, 125);
        assert_eq!(bench.run().cause.as_ref().unwrap().0, Code::ProcessLaunchFailed);
        assert_eq!(bench.run().workspace, Workspace::None);
        assert_eq!(bench.money(), (0, 0));
    }
}

fn is_effect_of(effect: &Effect, step: Step) -> bool {
    let name = match step {
        Step::Workspace => "PrepareWorkspace",
        Step::Group => "MakeGroup",
        Step::Policy => "CompilePolicy",
        Step::Sandbox => "CreateSandbox",
        Step::Boundary => "BindBoundary",
        Step::Go => "StartAgent",
    };
    variant(effect) == name
}

#[test]
fn a_sandbox_that_ends_before_go_aborts_the_run_and_its_status_is_no_result() {
    // S1: nothing of the agent ran, so `exited 0` would be a lie.
    let mut bench = Bench::at(spec(), Phase::Starting);
    bench.until_out(Step::Boundary);
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    assert_over(&bench, Outcome::Aborted, 125);
    assert_eq!(bench.run().exit, None);
    assert_eq!(bench.run().workspace, Workspace::None);
}

#[test]
fn a_sandbox_whose_self_test_fails_or_is_missing_never_starts_the_agent() {
    // S4
    for results in [self_test(false), Vec::new()] {
        let mut bench = Bench::at(spec(), Phase::Starting);
        bench.take();
        bench.tell(seen(Observation::SandboxCreated {
            run: run_id(),
            identity: identity(),
            boundary: BoundaryInfo::default(),
            self_test: results,
        }));
        bench.settle();
        assert_over(&bench, Outcome::Aborted, 125);
        assert_eq!(bench.run().cause.as_ref().unwrap().0, Code::ProcessSelfTestFailed);
        assert!(!labels(&bench).contains(&"StepIntended(Go)".to_owned()));
    }
}

#[test]
fn a_stuck_cleanup_is_visible_given_up_settled_and_amended_when_it_is_clean() {
    // C1 C2 C3
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.until_cleaning(CleanupStep::Group);
    bench.take();
    for n in 1..=bench.settings.cleanup_tries {
        bench.tell(cleanup_failed(CleanupStep::Group));
        assert_eq!(bench.run().stuck().unwrap().0, Code::ProcessCleanupStuck);
        if n < bench.settings.cleanup_tries {
            bench.pass(60_000);
            assert_eq!(bench.take(), ["RemoveGroup"]);
        }
    }
    assert_eq!(bench.run().phase, Phase::Settling);
    let given_up = [CleanupStep::Group, CleanupStep::Boundary, CleanupStep::Workspace];
    assert_eq!(bench.run().leftovers(), given_up);
    bench.until(Phase::Ended);
    assert!(bench.run().receipt.is_some() && bench.run().amendments.is_empty());
    assert!(bench.state.active.contains(&run_id()), "it is still tried");
    bench.pass(60_000);
    bench.settle();
    assert_over(&bench, Outcome::Exited, 0);
    assert_eq!(
        bench.run().amendments.iter().map(|a| a.kind.as_str()).collect::<Vec<_>>(),
        ["cleaned"]
    );
    assert_eq!(bench.run().workspace, Workspace::Sealed);
    assert!(position(&bench, "CleanupDone(Token)") < position(&bench, "CleanupDone(Group)"));
}

#[test]
fn a_cleanup_that_fails_for_weeks_stops_being_recorded_and_is_tried_by_the_next_start() {
    // J7
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.until_cleaning(CleanupStep::Group);
    for _ in 0..RUN_EVENTS_MAX {
        bench.tell(cleanup_failed(CleanupStep::Group));
        if bench.run().phase == Phase::Settling {
            bench.until(Phase::Ended);
        }
        bench.pass(60_000);
    }
    assert!(bench.run().events <= RUN_EVENTS_MAX + 1);
    bench.take();
    bench.crash();
    assert_eq!(bench.take(), ["RemoveGroup"]);
    bench.tell(seen(Observation::CleanupDone { run: run_id(), step: CleanupStep::Group }));
    bench.settle();
    assert_over(&bench, Outcome::Exited, 0);
}

#[test]
fn a_receipt_that_cannot_be_written_is_tried_again_until_it_is() {
    // C3 R1
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.until(Phase::Settling);
    for _ in 0..3 {
        assert_eq!(bench.take(), ["WriteReceipt"]);
        let (chore, refusal) = (Chore::Receipt, refusal(Code::FsDiskFull));
        bench.tell(seen(Observation::ChoreFailed { run: run_id(), chore, refusal }));
        assert_eq!(bench.run().stuck().unwrap().0, Code::FsDiskFull);
        bench.pass(60_000);
    }
    bench.settle();
    assert_over(&bench, Outcome::Exited, 0);
}

#[test]
fn a_receipt_that_is_out_leaves_no_failed_try_behind() {
    // C3: the report of a failure came twice, before the try that succeeded was answered.
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.until(Phase::Settling);
    bench.take();
    let failed = || {
        let (chore, refusal) = (Chore::Receipt, refusal(Code::FsIo));
        seen(Observation::ChoreFailed { run: run_id(), chore, refusal })
    };
    bench.tell(failed());
    bench.pass(60_000);
    bench.tell(failed());
    bench.settle();
    assert_over(&bench, Outcome::Exited, 0);
    assert_eq!(bench.run().stuck(), None);
}

fn sealed() -> Bench {
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    bench
}

fn export() -> Input {
    let target = ExportTarget::Ref("refs/atenea/x".into());
    Input::Command(Command::Export { run: run_id(), target })
}

fn discard() -> Input {
    Input::Command(Command::Discard { run: run_id() })
}

#[test]
fn an_export_is_amended_to_the_receipt_with_its_ref_and_only_one_is_out_at_a_time() {
    // R3
    let mut bench = sealed();
    bench.tell(export());
    assert_eq!(bench.try_tell(export()).unwrap_err().code, Code::ExportNothing);
    bench.settle();
    let amended = &bench.run().amendments[0];
    assert_eq!(
        (amended.kind.as_str(), amended.reference.as_deref()),
        ("exported", Some("refs/atenea/x"))
    );
    assert_eq!(bench.run().workspace, Workspace::Exported);
}

#[test]
fn a_crash_during_an_export_repeats_it_with_the_same_date_so_that_it_is_the_same_commit() {
    // R2 R3
    let mut bench = sealed();
    bench.tell(export());
    let before = bench.out.clone();
    bench.now.wall_ms += 5_000;
    bench.crash();
    assert_eq!(bench.out, before);
    bench.settle();
    assert_eq!(bench.run().workspace, Workspace::Exported);
}

#[test]
fn an_export_or_discard_that_was_begun_is_waited_for_and_one_that_hangs_is_not() {
    let mut bench = sealed();
    bench.tell(export());
    assert!(bench.state.busy());
    bench.settle();
    assert!(!bench.state.busy());
    bench.tell(Input::Command(Command::Discard { run: run_id() }));
    assert!(bench.state.busy());
    let refusal = refusal(Code::ProcessCleanupStuck);
    let (run, chore) = (run_id(), Chore::Discard);
    bench.tell(seen(Observation::ChoreFailed { run, chore, refusal }));
    assert!(!bench.state.busy(), "a deletion that hangs must not keep a supervisor");
}

#[test]
fn an_export_that_fails_leaves_the_workspace_sealed_for_another_try() {
    let mut bench = sealed();
    bench.tell(export());
    bench.take();
    let refusal = refusal(Code::ExportRefExists);
    bench.tell(seen(Observation::ExportFailed { run: run_id(), refusal }));
    assert_eq!(bench.run().workspace, Workspace::Sealed);
    bench.tell(export());
    bench.settle();
    assert_eq!(bench.run().workspace, Workspace::Exported);
}

#[test]
fn after_a_discard_intent_only_deletion_is_left_also_after_a_crash() {
    // C4
    let mut bench = sealed();
    bench.tell(discard());
    assert_eq!(bench.try_tell(export()).unwrap_err().code, Code::ExportNothing);
    bench.crash();
    assert_eq!(bench.take(), ["Discard"]);
    bench.tell(seen(Observation::Discarded { run: run_id() }));
    assert_eq!(bench.run().workspace, Workspace::Discarded);
    assert_eq!(bench.tell(discard()), Vec::<String>::new());
}

#[test]
fn a_workspace_in_which_nothing_was_written_goes_by_itself_and_one_with_work_never() {
    // C4
    for (changed, workspace) in [(0, Workspace::Discarded), (1, Workspace::Sealed)] {
        let mut bench = Bench::at(spec(), Phase::Running);
        bench.tell(exited(Exit::Status(0)));
        bench.until_cleaning(CleanupStep::Workspace);
        bench.out.retain(|e| variant(e) != "SealWorkspace");
        bench.tell(seen(Observation::WorkspaceSealed {
            run: run_id(),
            result_tree: None,
            changed,
        }));
        bench.settle();
        assert_eq!(bench.run().workspace, workspace);
        bench.crash();
        bench.settle();
        assert_eq!(bench.run().workspace, workspace);
    }
}

#[test]
fn a_crash_loses_the_run_keeps_its_hold_and_its_workspace() {
    // B3 B6 C4 R1
    let mut bench = Bench::at(spec(), Phase::Running);
    let held = bench.money();
    bench.crash();
    assert_eq!(bench.money(), held);
    bench.settle();
    assert_over(&bench, Outcome::Lost, 125);
    assert_eq!(bench.money(), (DOLLAR, 0));
    assert_eq!(bench.run().workspace, Workspace::Sealed);
}

#[test]
fn a_limit_without_a_period_keeps_the_one_the_account_has() {
    use atenea_core::event::Period;
    let mut bench = Bench::new();
    let mut set = |name: &str, per| {
        let account = atenea_core::AccountName::parse(name).unwrap();
        let limit = Nanos(20 * DOLLAR);
        bench.tell(Input::Command(Command::SetBudget { account: account.clone(), limit, per }));
        let found = &bench.state.ledger.accounts[&account];
        (found.per, found.limit)
    };
    assert_eq!(set("mine", Some(Period::Day)), (Period::Day, Nanos(20 * DOLLAR)));
    assert_eq!(set("mine", None), (Period::Day, Nanos(20 * DOLLAR)));
    assert_eq!(set("mine", Some(Period::Month)).0, Period::Month);
    // Nobody said anything about a new one.
    assert_eq!(set("new", None).0, Period::Total);
}

#[test]
fn a_limit_below_what_is_held_is_refused_and_says_what_can_be_set() {
    // B1
    let mut bench = Bench::at(spec(), Phase::Running);
    let set = |limit| {
        let (account, per) = (account(), None);
        Input::Command(Command::SetBudget { account, limit: Nanos(limit), per })
    };
    let refusal = bench.try_tell(set(DOLLAR - 1)).unwrap_err();
    assert_eq!(refusal.code, Code::BudgetBelowUsed);
    assert!(refusal.help.contains("set $1 or more"), "{}", refusal.help);
    assert_eq!(bench.tell(set(DOLLAR)), ["BudgetSet"]);
}

#[test]
fn only_a_step_that_is_done_while_others_are_out_waits_for_the_next_input() {
    let mut bench = Bench::new();
    bench.tell(request(spec()));
    assert_eq!(bench.take(), ["PrepareWorkspace", "MakeGroup", "CompilePolicy"]);
    let answers: Vec<Input> = [
        Effect::PrepareWorkspace { run: run_id() },
        Effect::MakeGroup { run: run_id() },
        Effect::CompilePolicy { run: run_id() },
    ]
    .iter()
    .filter_map(good_answer)
    .map(seen)
    .collect();
    for one in &answers {
        assert!(can_wait(&bench.state, [one]), "{one:?}");
    }
    assert!(can_wait(&bench.state, &answers[..2]));
    assert!(!can_wait(&bench.state, &answers), "the sandbox can be made");
    let failed = Observation::StepFailed {
        run: run_id(),
        step: Step::Group,
        refusal: refusal(Code::ProcessLaunchFailed),
    };
    assert!(!can_wait(&bench.state, [&seen(failed)]), "the others must be stopped");
    assert!(!can_wait(&bench.state, [&cancel(false)]), "somebody waits for the answer");
    assert!(!can_wait(&bench.state, [&answers[0], &exited(Exit::Status(0))]));
    bench.tell(cancel(false));
    assert!(!can_wait(&bench.state, &answers[..1]), "cleanup waits for it");
}

#[test]
fn a_name_belongs_to_one_living_run_at_a_time() {
    let named = || RunSpec {
        name: Some(RunName::parse("mine").unwrap()),
        idempotency: None,
        ..read_only()
    };
    let other = RunId::from_random(8);
    let ask = || {
        let (run, spec) = (other.clone(), Box::new(named()));
        Input::Command(Command::Request { run, spec, refusal: None })
    };
    let mut bench = Bench::at(named(), Phase::Running);
    let refused = bench.try_tell(ask()).unwrap_err();
    assert_eq!(refused.code, Code::ProcessNameTaken);
    assert!(!bench.state.runs.contains_key(&other), "it was recorded");
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    bench.try_tell(ask()).unwrap();
    assert_eq!(bench.state.find("mine").unwrap().id, other);
}

#[test]
fn a_name_is_never_taken_for_an_id() {
    let mut bench = Bench::at(read_only(), Phase::Running);
    for name in [run_id().to_string(), "r_".to_owned(), "r_mine".to_owned()] {
        let spec = RunSpec {
            name: Some(RunName::parse(&name).unwrap()),
            idempotency: None,
            ..read_only()
        };
        let (run, spec) = (RunId::from_random(8), Box::new(spec));
        let ask = Input::Command(Command::Request { run, spec, refusal: None });
        assert_eq!(bench.try_tell(ask).unwrap_err().code, Code::ManifestBadValue, "{name}");
    }
    assert_eq!(bench.state.find(run_id().as_str()).unwrap().id, run_id());
}

#[test]
fn an_export_may_be_followed_by_another() {
    let mut bench = Bench::at(spec(), Phase::Running);
    bench.tell(exited(Exit::Status(0)));
    bench.settle();
    let to = |target| Input::Command(Command::Export { run: run_id(), target });
    bench.tell(to(ExportTarget::Patch));
    bench.settle();
    assert_eq!(bench.run().workspace, Workspace::Exported);
    bench.tell(to(ExportTarget::Ref("refs/atenea/x".into())));
    bench.settle();
    assert_eq!(bench.run().workspace, Workspace::Exported);
    assert_eq!(bench.run().amendments.len(), 2);
}
