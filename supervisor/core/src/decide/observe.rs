//! Observations: each is recorded in the phases in which it means something and decides nothing in
//! the others. Late and repeated ones are normal after a crash or a race.

use super::{Event, Exit, Observation, Phase, Run, State, Step, Workspace};
use crate::event::{Chore, CleanupStep, Usage, Violation};
use crate::state::RUN_EVENTS_MAX;
use crate::{Code, Refusal};

pub(super) fn observe(state: &State, seen: Observation) -> Vec<Event> {
    if let Observation::LeftoverRemoved { kind, name } = seen {
        return vec![Event::LeftoverRemoved { kind, name }];
    }
    let Some(run) = subject(&seen).and_then(|id| state.runs.get(id)) else { return Vec::new() };
    observe_run(run, seen).into_iter().collect()
}

fn subject(seen: &Observation) -> Option<&crate::RunId> {
    match seen {
        Observation::LeftoverRemoved { .. } => None,
        Observation::StepFailed { run, .. }
        | Observation::WorkspaceReady { run, .. }
        | Observation::GroupReady { run, .. }
        | Observation::PolicyReady { run, .. }
        | Observation::SandboxCreated { run, .. }
        | Observation::BoundaryReady { run }
        | Observation::AgentStarted { run }
        | Observation::Exited { run, .. }
        | Observation::LimitExceeded { run, .. }
        | Observation::Violation { run, .. }
        | Observation::ClientGone { run }
        | Observation::CleanupDone { run, .. }
        | Observation::CleanupFailed { run, .. }
        | Observation::WorkspaceSealed { run, .. }
        | Observation::WorkspaceRemoved { run }
        | Observation::ReceiptWritten { run, .. }
        | Observation::Exported { run, .. }
        | Observation::ExportFailed { run, .. }
        | Observation::Discarded { run }
        | Observation::ChoreFailed { run, .. } => Some(run),
    }
}

fn observe_run(run: &Run, seen: Observation) -> Option<Event> {
    match seen {
        // A step's answer is recorded when the step is out, whatever happened meanwhile.
        Observation::StepFailed { run: id, step, refusal: Refusal { code, cause, .. } } => {
            out(run, step).then_some(Event::StepFailed { run: id, step, code, cause })
        }
        Observation::WorkspaceReady { run: id, base_tree, base_commit } => {
            out(run, Step::Workspace).then_some(Event::WorkspaceReady {
                run: id,
                base_tree,
                base_commit,
            })
        }
        Observation::GroupReady { run: id, record } => {
            out(run, Step::Group).then_some(Event::GroupReady { run: id, record })
        }
        Observation::PolicyReady { run: id, token } => {
            out(run, Step::Policy).then_some(Event::PolicyReady { run: id, token })
        }
        Observation::SandboxCreated { run: id, identity, boundary, self_test } => {
            out(run, Step::Sandbox)
                .then_some(Event::SandboxCreated { run: id, identity, boundary, self_test })
                .map(|event| refuse_failed_self_test(run, event))
        }
        Observation::BoundaryReady { run: id } => {
            out(run, Step::Boundary).then_some(Event::BoundaryReady { run: id })
        }
        Observation::AgentStarted { run: id } => {
            out(run, Step::Go).then_some(Event::AgentStarted { run: id })
        }
        Observation::Exited { run: id, exit, usage } => exited(run, id, exit, usage),
        Observation::LimitExceeded { run: id, refusal } => {
            let live = matches!(run.phase, Phase::Starting | Phase::Running | Phase::Stopping);
            (live && run.outcome.is_none())
                .then_some(Event::LimitExceeded { run: id, code: refusal.code })
        }
        Observation::Violation { run: id, violation } => violation_event(run, id, violation),
        Observation::ClientGone { .. } => client_gone(run),
        other => observe_end(run, other),
    }
}

fn observe_end(run: &Run, seen: Observation) -> Option<Event> {
    match seen {
        // What became of the workspace is said by `WorkspaceSealed` or `WorkspaceRemoved` only.
        Observation::CleanupDone { step: CleanupStep::Workspace, .. } => None,
        Observation::CleanupDone { run: id, step } => {
            cleaning(run, step).then_some(Event::CleanupDone { run: id, step })
        }
        Observation::CleanupFailed { run: id, step, refusal: Refusal { code, cause, .. } } => {
            (cleaning(run, step) && fits(run)).then_some(Event::CleanupFailed {
                run: id,
                step,
                code,
                cause,
            })
        }
        Observation::ChoreFailed { run: id, chore, refusal: Refusal { code, cause, .. } } => {
            (chore_out(run, chore) && fits(run)).then_some(Event::ChoreFailed {
                run: id,
                chore,
                code,
                cause,
            })
        }
        Observation::WorkspaceSealed { run: id, result_tree, changed } => {
            cleaning(run, CleanupStep::Workspace).then_some(Event::WorkspaceSealed {
                run: id,
                result_tree,
                changed,
            })
        }
        Observation::WorkspaceRemoved { run: id } => {
            cleaning(run, CleanupStep::Workspace).then_some(Event::WorkspaceRemoved { run: id })
        }
        Observation::ReceiptWritten { run: id, digest } => {
            matches!(run.phase, Phase::Refused | Phase::Settling)
                .then_some(Event::ReceiptIssued { run: id, digest })
        }
        Observation::Exported { run: id, commit } => match &run.workspace {
            Workspace::Exporting { target, .. } => {
                Some(Event::Exported { run: id, target: target.clone(), commit })
            }
            _ => None,
        },
        Observation::ExportFailed { run: id, refusal: Refusal { code, cause, .. } } => {
            matches!(run.workspace, Workspace::Exporting { .. }).then_some(Event::ExportFailed {
                run: id,
                code,
                cause,
            })
        }
        Observation::Discarded { run: id } => {
            (run.workspace == Workspace::Discarding).then_some(Event::Discarded { run: id })
        }
        _ => None,
    }
}

fn out(run: &Run, step: Step) -> bool {
    run.in_flight.contains(&step)
}

fn cleaning(run: &Run, step: CleanupStep) -> bool {
    run.cleanup.get(&step).is_some_and(|c| c.started && !c.done)
}

fn chore_out(run: &Run, chore: Chore) -> bool {
    let doing = match chore {
        Chore::Receipt => matches!(run.phase, Phase::Refused | Phase::Settling),
        Chore::Discard => run.workspace == Workspace::Discarding,
    };
    doing && run.chore_failed.is_none()
}

/// J7: a failure that repeats for weeks stops being recorded and is tried once by each next start.
fn fits(run: &Run) -> bool {
    run.events < RUN_EVENTS_MAX
}

/// S4: one forbidden act that succeeded is enough: the agent is never started.
fn refuse_failed_self_test(run: &Run, event: Event) -> Event {
    let Event::SandboxCreated { self_test, .. } = &event else { return event };
    let passed: Vec<&str> =
        self_test.iter().filter(|t| !t.refused).map(|t| t.name.as_str()).collect();
    let enforced = run.spec.profile.is_enforced();
    if passed.is_empty() && (!enforced || !self_test.is_empty()) {
        return event;
    }
    let cause = if passed.is_empty() {
        "the sandbox reported no self-test".to_owned()
    } else {
        format!("these acts succeeded inside: {}", passed.join(", "))
    };
    let code = Code::ProcessSelfTestFailed;
    Event::StepFailed { run: run.id.clone(), step: Step::Sandbox, code, cause }
}

fn exited(run: &Run, id: crate::RunId, exit: Exit, usage: Usage) -> Option<Event> {
    match run.phase {
        Phase::Starting | Phase::Running | Phase::Stopping => {}
        // It was cancelled while `go` was out: the exit still belongs into the receipt.
        Phase::Cleaning if run.go_intended && run.exit.is_none() => {}
        _ => return None,
    }
    Some(Event::Exited { run: id, exit, usage })
}

/// E6, J7: what a guest can cause is bounded.
fn violation_event(run: &Run, id: crate::RunId, violation: Violation) -> Option<Event> {
    let live = !matches!(run.phase, Phase::Settling | Phase::Ended | Phase::Refused);
    (live && run.events < RUN_EVENTS_MAX / 2)
        .then_some(Event::ViolationRecorded { run: id, violation })
}

fn client_gone(run: &Run) -> Option<Event> {
    if !run.spec.foreground {
        return None;
    }
    super::cancel(run, "its client went away".to_owned(), None, false).into_iter().next()
}
