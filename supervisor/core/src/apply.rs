//! `apply`: the state after an event, and the effects the event asks for.
//!
//! Total over recorded events: what was recorded happened. Legality is decided before, in
//! [`crate::decide`].

use crate::approval::Approval;
use crate::effect::Effect;
use crate::event::{
    Chore, CleanupStep, Deadline, Event, Exit, ExportTarget, Recorded, RunSpec, Stamp, Step,
};
use crate::run::{Amendment, Cleanup, Outcome, Phase, Run, Workspace};
use crate::state::{KILL_WAIT_MS, RETRY_MS_MAX, State};
use crate::{Code, RunId};

/// Violations kept with their subject for one run; further ones are only counted (E6).
const VIOLATIONS_KEPT_MAX: usize = 256;
/// First pause before a cleanup step or chore is tried again, milliseconds; doubles each time.
const RETRY_MS_FIRST: u64 = 200;

/// Applies one recorded event and returns what has to be done because of it.
pub fn apply(state: &mut State, recorded: &Recorded) -> Vec<Effect> {
    debug_assert_eq!(recorded.seq, state.seq + 1, "J2: records are contiguous");
    state.seq = recorded.seq;
    let latest = &mut state.approvals.latest_wall_ms;
    *latest = recorded.at.wall_ms.max(*latest);
    let Some(id) = recorded.event.run().cloned() else {
        return apply_global(state, recorded);
    };
    if let Event::RunRequested { spec, .. } = &recorded.event {
        request(state, &id, spec, recorded);
        return Vec::new();
    }
    apply_money(state, &id, recorded);
    let approval = match &recorded.event {
        Event::ApprovalUsed { step, .. } => state.approvals.use_one(step),
        _ => None,
    };
    let Some(run) = state.runs.get_mut(&id) else { return Vec::new() };
    run.approval = run.approval.or(approval);
    run.seq.1 = recorded.seq;
    run.events += 1;
    if let Event::RunAdmitted { run_uid, .. } = &recorded.event {
        state.last_uid = *run_uid;
    }
    let mut effects = apply_run(run, recorded);
    effects.extend(pump_cleanup(run));
    index(state, &id);
    effects
}

/// Keeps the indexes (`active`, `queue`) in step with the run's phase.
fn index(state: &mut State, id: &RunId) {
    let Some(run) = state.runs.get(id) else { return };
    let working = matches!(run.workspace, Workspace::Exporting { .. } | Workspace::Discarding);
    let unwatched = run.workspace == Workspace::Sealed && run.changed == 0;
    let over = run.phase == Phase::Ended && !working && !unwatched && run.leftovers().is_empty();
    let queued = run.phase == Phase::Queued;
    if over {
        state.active.remove(id);
    } else {
        state.active.insert(id.clone());
    }
    match (queued, state.queue.iter().position(|q| q == id)) {
        (true, None) => state.queue.push(id.clone()),
        (false, Some(at)) => drop(state.queue.remove(at)),
        _ => {}
    }
}

fn request(state: &mut State, id: &RunId, spec: &RunSpec, recorded: &Recorded) {
    if let Some(name) = &spec.name {
        state.names.insert(name.clone(), id.clone());
    }
    if let Some(key) = &spec.idempotency {
        let entry = (spec.request, id.clone());
        state.keys.entry((spec.owner.uid, key.clone())).or_insert(entry);
    }
    let mut run = Run::new(id.clone(), spec.clone(), recorded.seq, recorded.at);
    run.events = 1;
    state.runs.insert(id.clone(), run);
    state.active.insert(id.clone());
}

fn apply_money(state: &mut State, id: &RunId, recorded: &Recorded) {
    match &recorded.event {
        Event::BudgetHeld { account, amount, .. } => state.ledger.hold(id, account, *amount),
        Event::RunSettled { reported, unknown, .. } => {
            state.ledger.settle(id, *reported, *unknown);
        }
        _ => {}
    }
}

fn apply_global(state: &mut State, recorded: &Recorded) -> Vec<Effect> {
    match &recorded.event {
        Event::SupervisorStarted { generation, boot, .. } => {
            state.generation = *generation;
            state.boot = Some(boot.clone());
            state.stopping = false;
            return recover(state);
        }
        Event::StopRequested { .. } => state.stopping = true,
        Event::BudgetSet { account, limit, per, key } => {
            state.ledger.set(account, *limit, *per, key);
        }
        Event::PeriodOpened { account, key } => state.ledger.open_period(account, key),
        Event::ApprovalGiven { step, manifest, by, expires_ms, uses } => {
            let approval = Approval {
                seq: recorded.seq,
                manifest: *manifest,
                by: *by,
                given: recorded.at,
                boot: state.boot.clone(),
                expires_ms: *expires_ms,
                uses: *uses,
                used: 0,
            };
            state.approvals.give(step.clone(), approval);
        }
        _ => {}
    }
    Vec::new()
}

/// What the death of the last supervisor means for each run (R1, R2): effects of another
/// generation are void, an intent without an outcome may have happened (R3).
fn recover(state: &mut State) -> Vec<Effect> {
    let mut effects = Vec::new();
    for id in state.active.clone() {
        let Some(run) = state.runs.get_mut(&id) else { continue };
        run.in_flight.clear();
        run.deadline = None;
        run.chore_failed = None;
        for cleanup in run.cleanup.values_mut() {
            // R3 broken on purpose in a build that only scripts/broken makes: what was begun counts as done.
            cleanup.done |= cfg!(feature = "broken") && cleanup.started;
            cleanup.started = false;
        }
        effects.extend(recover_run(run));
        effects.extend(pump_cleanup(run));
        index(state, &id);
    }
    effects
}

fn recover_run(run: &mut Run) -> Vec<Effect> {
    let id = run.id.clone();
    match run.phase {
        Phase::Refused | Phase::Settling => return vec![Effect::WriteReceipt { run: id }],
        Phase::Cleaning => {}
        Phase::Ended => match run.workspace.clone() {
            Workspace::Exporting { target, at_wall_ms } => {
                return vec![Effect::Export { run: id, target, at_wall_ms }];
            }
            Workspace::Discarding => return vec![Effect::Discard { run: id }],
            _ => {}
        },
        _ => {
            let (outcome, code) = if run.go_intended {
                run.exit.get_or_insert(Exit::Unknown);
                (Outcome::Lost, Code::RecoveryLost)
            } else {
                (Outcome::Aborted, Code::RecoveryAborted)
            };
            run.conclude(outcome, Some((code, code.cause().to_owned())));
            begin_cleanup(run);
        }
    }
    Vec::new()
}

fn apply_run(run: &mut Run, recorded: &Recorded) -> Vec<Effect> {
    let at = recorded.at;
    match &recorded.event {
        Event::RunAdmitted { run_uid, .. } => admitted(run, *run_uid),
        Event::RunRefused { code, cause, .. } => {
            run.phase = Phase::Refused;
            run.settled_seq = Some(recorded.seq);
            run.conclude(Outcome::Refused, Some((*code, cause.clone())));
            return vec![Effect::WriteReceipt { run: run.id.clone() }];
        }
        Event::BudgetHeld { amount, .. } => {
            run.phase = Phase::Queued;
            run.money.held = *amount;
            run.money.held_at_start = *amount;
        }
        Event::StepIntended { step, .. } => return step_intended(run, *step, at),
        Event::StepFailed { step, code, cause, .. } => {
            return step_failed(run, *step, *code, cause);
        }
        Event::CancelRequested { reason, grace_ms, kill, .. } => {
            return cancel(run, reason, *grace_ms, *kill, at);
        }
        Event::LimitExceeded { code, .. } => {
            run.conclude(Outcome::Limit, Some((*code, code.cause().to_owned())));
            return kill(run, at);
        }
        Event::DeadlinePassed { deadline, .. } => return deadline_passed(run, *deadline, at),
        Event::Exited { exit, usage, .. } => return exited(run, *exit, usage),
        Event::ViolationRecorded { violation, .. } => {
            let count = run.denials.entry(violation.code).or_insert(0);
            *count = count.saturating_add(violation.count);
            if run.violations.len() < VIOLATIONS_KEPT_MAX {
                run.violations.push((recorded.seq, violation.clone()));
            }
        }
        Event::RunSettled { reported, unknown, quality, .. } => {
            run.phase = Phase::Settling;
            run.settled_seq = Some(recorded.seq);
            run.money.reported = *reported;
            run.money.unknown = *unknown;
            run.money.held = *unknown;
            run.money.quality = Some(*quality);
            return vec![Effect::WriteReceipt { run: run.id.clone() }];
        }
        Event::ReceiptIssued { digest, .. } => {
            run.phase = Phase::Ended;
            run.chore_failures = 0;
            run.chore_failed = None;
            run.receipt = Some(*digest);
            run.ended_at = Some(at);
        }
        _ => return apply_ready_and_workspace(run, recorded),
    }
    Vec::new()
}

fn apply_ready_and_workspace(run: &mut Run, recorded: &Recorded) -> Vec<Effect> {
    match &recorded.event {
        Event::WorkspaceReady { base_tree, base_commit, .. } => {
            run.base_tree.clone_from(base_tree);
            run.base_commit.clone_from(base_commit);
            step_done(run, Step::Workspace);
        }
        Event::GroupReady { record, .. } => {
            run.group = Some(record.clone());
            step_done(run, Step::Group);
        }
        Event::PolicyReady { token, .. } => {
            run.token = Some(*token);
            step_done(run, Step::Policy);
        }
        Event::SandboxCreated { identity, boundary, self_test, .. } => {
            run.identity = Some(identity.clone());
            run.boundary = boundary.clone();
            run.self_test.clone_from(self_test);
            step_done(run, Step::Sandbox);
        }
        Event::BoundaryReady { .. } => step_done(run, Step::Boundary),
        Event::AgentStarted { .. } => {
            step_done(run, Step::Go);
            run.started_at = Some(recorded.at);
            if run.phase == Phase::Starting {
                run.phase = Phase::Running;
            }
        }
        Event::CleanupDone { step, .. } => cleanup_done(run, *step, recorded.seq),
        Event::CleanupFailed { step, code, cause, .. } => {
            cleanup_failed(run, *step, *code, cause, recorded.at);
        }
        Event::CleanupGivenUp { step, .. } => {
            run.cleanup.entry(*step).or_default().given_up = true;
        }
        _ => return apply_workspace(run, recorded),
    }
    Vec::new()
}

fn apply_workspace(run: &mut Run, recorded: &Recorded) -> Vec<Effect> {
    let id = run.id.clone();
    match &recorded.event {
        Event::WorkspaceSealed { result_tree, changed, .. } => {
            run.workspace = Workspace::Sealed;
            run.result_tree.clone_from(result_tree);
            run.changed = *changed;
            cleanup_done(run, CleanupStep::Workspace, recorded.seq);
        }
        Event::WorkspaceRemoved { .. } => {
            run.workspace = Workspace::None;
            cleanup_done(run, CleanupStep::Workspace, recorded.seq);
        }
        Event::ExportIntended { target, at_wall_ms, .. } => {
            let (target, at_wall_ms) = (target.clone(), *at_wall_ms);
            run.workspace = Workspace::Exporting { target: target.clone(), at_wall_ms };
            return vec![Effect::Export { run: id, target, at_wall_ms }];
        }
        Event::Exported { target, commit, .. } => {
            run.workspace = Workspace::Exported;
            run.exported = Some((target.clone(), commit.clone()));
            let reference = match target {
                ExportTarget::Ref(name) => Some(name.clone()),
                ExportTarget::Patch => None,
            };
            amend(run, recorded.seq, "exported", reference);
        }
        // What was taken once stays taken.
        Event::ExportFailed { .. } if run.exported.is_some() => run.workspace = Workspace::Exported,
        Event::ExportFailed { .. } => run.workspace = Workspace::Sealed,
        Event::DiscardIntended { .. } => {
            run.workspace = Workspace::Discarding;
            return vec![Effect::Discard { run: id }];
        }
        Event::Discarded { .. } => {
            run.workspace = Workspace::Discarded;
            run.chore_failed = None;
            amend(run, recorded.seq, "discarded", None);
        }
        Event::ChoreFailed { chore, code, cause, .. } => {
            run.chore_failed = Some((*chore, (*code, cause.clone())));
            run.chore_failures = run.chore_failures.saturating_add(1);
            retry_later(run, run.chore_failures, recorded.at);
        }
        _ => {}
    }
    Vec::new()
}

fn admitted(run: &mut Run, run_uid: u32) {
    run.run_uid = Some(run_uid);
    run.phase = if run.spec.budget.is_some() { Phase::Admitted } else { Phase::Queued };
}

fn step_intended(run: &mut Run, step: Step, at: Stamp) -> Vec<Effect> {
    let id = run.id.clone();
    run.in_flight.insert(step);
    run.phase = match step {
        Step::Workspace | Step::Group | Step::Policy => Phase::Preparing,
        Step::Sandbox | Step::Boundary | Step::Go => Phase::Starting,
    };
    let effect = match step {
        Step::Workspace => {
            if run.spec.writable_workspace {
                run.workspace = Workspace::Made;
            }
            Effect::PrepareWorkspace { run: id }
        }
        Step::Group => Effect::MakeGroup { run: id },
        Step::Policy => Effect::CompilePolicy { run: id },
        Step::Sandbox => Effect::CreateSandbox { run: id },
        Step::Boundary => Effect::BindBoundary { run: id },
        Step::Go => {
            run.go_intended = true;
            let end = at.boot_ms.saturating_add(run.spec.limits.duration_ms);
            run.deadline = Some((end, Deadline::Duration));
            Effect::StartAgent { run: id }
        }
    };
    vec![effect]
}

fn step_done(run: &mut Run, step: Step) {
    run.in_flight.remove(&step);
    run.done.insert(step);
}

fn step_failed(run: &mut Run, step: Step, code: Code, cause: &str) -> Vec<Effect> {
    run.in_flight.remove(&step);
    let cause = Some((code, cause.to_owned()));
    match code {
        Code::ProcessNotFound if step == Step::Go => {
            run.exit = Some(Exit::Status(127));
            run.conclude(Outcome::Exited, cause);
        }
        Code::ProcessNotExecutable if step == Step::Go => {
            run.exit = Some(Exit::Status(126));
            run.conclude(Outcome::Exited, cause);
        }
        _ => run.conclude(Outcome::Aborted, cause),
    }
    begin_cleanup(run)
}

fn cancel(run: &mut Run, reason: &str, grace_ms: u64, hard: bool, at: Stamp) -> Vec<Effect> {
    run.cancel_reason.get_or_insert_with(|| reason.to_owned());
    run.conclude(Outcome::Cancelled, None);
    // The word to start is out: the agent may run and is asked to stop after it has started.
    let may_run = run.phase == Phase::Starting && run.in_flight.contains(&Step::Go) && !hard;
    match run.phase {
        Phase::Running | Phase::Stopping if hard => kill(run, at),
        Phase::Running | Phase::Starting if may_run || run.phase == Phase::Running => {
            run.phase = Phase::Stopping;
            run.deadline = Some((at.boot_ms.saturating_add(grace_ms), Deadline::Grace));
            vec![Effect::TerminateAgent { run: run.id.clone() }]
        }
        Phase::Stopping | Phase::Cleaning | Phase::Settling | Phase::Ended => Vec::new(),
        _ => begin_cleanup(run),
    }
}

/// Orders the kill of everything in the run's group and waits a bounded time for the report.
fn kill(run: &mut Run, at: Stamp) -> Vec<Effect> {
    if matches!(run.phase, Phase::Cleaning | Phase::Settling | Phase::Ended) {
        return Vec::new();
    }
    run.phase = Phase::Stopping;
    run.kill_ordered = true;
    run.deadline = Some((at.boot_ms.saturating_add(KILL_WAIT_MS), Deadline::Retry));
    vec![Effect::KillGroup { run: run.id.clone() }]
}

fn deadline_passed(run: &mut Run, deadline: Deadline, at: Stamp) -> Vec<Effect> {
    run.deadline = None;
    match (deadline, run.phase) {
        (Deadline::Duration, Phase::Running | Phase::Starting) => {
            let code = Code::LimitTime;
            run.conclude(Outcome::TimedOut, Some((code, code.cause().to_owned())));
            run.phase = Phase::Stopping;
            let end = at.boot_ms.saturating_add(run.spec.limits.grace_ms);
            run.deadline = Some((end, Deadline::Grace));
            vec![Effect::TerminateAgent { run: run.id.clone() }]
        }
        (Deadline::Grace, Phase::Stopping) => kill(run, at),
        (Deadline::Retry, Phase::Stopping) => {
            // C3: killed, but nobody reported its end: cleanup finds out what is left.
            run.exit.get_or_insert(Exit::Unknown);
            run.in_flight.clear();
            begin_cleanup(run)
        }
        (Deadline::Retry, _) => retry_chore(run),
        _ => Vec::new(),
    }
}

fn retry_chore(run: &mut Run) -> Vec<Effect> {
    let id = run.id.clone();
    match run.chore_failed.take() {
        Some((Chore::Receipt, _)) => vec![Effect::WriteReceipt { run: id }],
        Some((Chore::Discard, _)) => vec![Effect::Discard { run: id }],
        None => Vec::new(),
    }
}

fn exited(run: &mut Run, exit: Exit, usage: &crate::event::Usage) -> Vec<Effect> {
    run.usage = *usage;
    run.in_flight.remove(&Step::Go);
    if !run.go_intended {
        // What ended is the sandbox, not the command: its status is nobody's result.
        let cause = "the sandbox ended before the agent was started".to_owned();
        run.conclude(Outcome::Aborted, Some((Code::ProcessLaunchFailed, cause)));
        return begin_cleanup(run);
    }
    run.exit = Some(exit);
    match exit {
        Exit::Status(_) => run.conclude(Outcome::Exited, None),
        Exit::Signal(_) => run.conclude(Outcome::Signaled, None),
        Exit::Unknown => {
            let code = Code::RecoveryLost;
            run.conclude(Outcome::Lost, Some((code, "the sandbox ended without a report".into())));
        }
    }
    begin_cleanup(run)
}

/// Enters `Cleaning`. Steps that are still out are told to stop; cleanup starts when they have
/// answered, so that nothing is made behind its back.
fn begin_cleanup(run: &mut Run) -> Vec<Effect> {
    if matches!(run.phase, Phase::Cleaning | Phase::Settling | Phase::Ended) {
        return Vec::new();
    }
    run.phase = Phase::Cleaning;
    run.deadline = None;
    for step in CleanupStep::ALL {
        let own = run.workspace != Workspace::None;
        if step != CleanupStep::Workspace || own {
            run.cleanup.entry(step).or_default();
        }
    }
    if run.in_flight.is_empty() {
        return Vec::new();
    }
    vec![Effect::AbortSteps { run: run.id.clone() }, Effect::KillGroup { run: run.id.clone() }]
}

/// Starts every cleanup step whose turn it is.
fn pump_cleanup(run: &mut Run) -> Vec<Effect> {
    let cleaning = run.phase == Phase::Cleaning;
    let late = run.phase == Phase::Ended && !run.leftovers().is_empty();
    if !(cleaning || late) || !run.in_flight.is_empty() || run.deadline.is_some() {
        return Vec::new();
    }
    let mut effects = Vec::new();
    for step in CleanupStep::ALL {
        let before = match step {
            CleanupStep::Token => None,
            CleanupStep::Group => Some(CleanupStep::Token),
            CleanupStep::Boundary | CleanupStep::Workspace => Some(CleanupStep::Group),
        };
        // C2, C1: revoked before anything, dead before anything that needs it dead.
        let ready = before.is_none_or(|b| run.cleanup.get(&b).is_none_or(|c| c.done));
        let Some(cleanup) = run.cleanup.get_mut(&step) else { continue };
        if ready && !cleanup.done && !cleanup.started {
            cleanup.started = true;
            effects.push(cleanup_effect(run, step));
        }
    }
    effects
}

fn cleanup_effect(run: &Run, step: CleanupStep) -> Effect {
    let id = run.id.clone();
    match step {
        CleanupStep::Token => Effect::RevokeToken { run: id },
        CleanupStep::Group => Effect::RemoveGroup { run: id },
        CleanupStep::Boundary => Effect::CloseBoundary { run: id },
        // C4: a workspace an agent may have written to is kept, one that no agent saw is not.
        CleanupStep::Workspace if run.go_intended => Effect::SealWorkspace { run: id },
        CleanupStep::Workspace => Effect::RemoveWorkspace { run: id },
    }
}

fn cleanup_done(run: &mut Run, step: CleanupStep, seq: u64) {
    let late = run.settled_seq.is_some();
    let cleanup = run.cleanup.entry(step).or_default();
    *cleanup = Cleanup { done: true, failures: cleanup.failures, ..Cleanup::default() };
    if late && run.leftovers().is_empty() {
        amend(run, seq, "cleaned", None);
    }
}

fn cleanup_failed(run: &mut Run, step: CleanupStep, code: Code, cause: &str, at: Stamp) {
    let cleanup = run.cleanup.entry(step).or_default();
    cleanup.started = false;
    cleanup.failures = cleanup.failures.saturating_add(1);
    cleanup.reason = Some((code, cause.to_owned()));
    let failures = cleanup.failures;
    retry_later(run, failures, at);
}

fn retry_later(run: &mut Run, failures: u32, at: Stamp) {
    let doublings = failures.clamp(1, 10) - 1;
    let pause = RETRY_MS_FIRST.saturating_mul(1 << doublings).min(RETRY_MS_MAX);
    run.deadline = Some((at.boot_ms.saturating_add(pause), Deadline::Retry));
}

fn amend(run: &mut Run, seq: u64, kind: &str, reference: Option<String>) {
    run.amendments.push(Amendment { seq, kind: kind.to_owned(), reference });
}
