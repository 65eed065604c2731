//! `decide`: what an input means in a state, as events to record, or why it is refused.
//!
//! This is the legality table: [`decide`] looks at the run's phase and the input and says what may
//! be recorded. Observations that no longer mean anything (late, repeated, reordered) decide
//! nothing; commands that cannot be obeyed are refused with a code.

mod advance;
mod observe;
mod request;
mod wait;

pub use wait::can_wait;

use crate::event::{Event, Exit, Period, Step};
use crate::input::{Command, Input, Now, Observation};
use crate::run::{Phase, Run, Workspace};
use crate::state::{RUN_EVENTS_MAX, Settings, State};
use crate::{Code, Generation, Refusal, RunId};

/// What an input leads to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Decision {
    /// Events to append, in this order, atomically.
    pub events: Vec<Event>,
    /// The run a repeated request stands for (B4).
    pub existing: Option<RunId>,
}

impl From<Vec<Event>> for Decision {
    fn from(events: Vec<Event>) -> Self {
        Decision { events, existing: None }
    }
}

/// Decides one input. Pure: the same arguments give the same answer.
///
/// # Errors
/// The refusal to give to whoever sent the command; observations are never refused.
pub fn decide(
    state: &State,
    settings: &Settings,
    now: Now,
    input: Input,
) -> Result<Decision, Refusal> {
    match input {
        Input::Advance => Ok(advance::advance(state, settings, now).into()),
        Input::Observation(seen) => Ok(observe::observe(state, seen).into()),
        Input::Command(command) => command_decision(state, settings, now, command),
    }
}

fn command_decision(
    state: &State,
    settings: &Settings,
    now: Now,
    command: Command,
) -> Result<Decision, Refusal> {
    let events = match command {
        Command::Start { boot, version } => {
            let generation = Generation(state.generation.0 + 1);
            vec![Event::SupervisorStarted { generation, boot, version }]
        }
        Command::Stop { now: at_once } => stop(state, at_once),
        Command::Stopped => vec![Event::SupervisorStopped],
        Command::SetBudget { account, limit, per } => {
            let kept = state.ledger.accounts.get(&account).map(|found| found.per);
            let per = per.or(kept).unwrap_or(Period::Total);
            let key = crate::ledger::period_key(per, now);
            let opens = state.ledger.check_set(&account, limit, per, &key)?;
            let opened = Event::PeriodOpened { account: account.clone(), key: key.clone() };
            let set = Event::BudgetSet { account, limit, per, key };
            opens.then_some(opened).into_iter().chain([set]).collect()
        }
        Command::Approve { step, manifest, by, expires_ms, uses } => {
            state.approvals.check_room(&step, state.boot.as_ref(), now)?;
            vec![Event::ApprovalGiven { step, manifest, by, expires_ms, uses }]
        }
        Command::Request { run, spec, refusal } => {
            return request::request(state, settings, now, run, spec, refusal);
        }
        Command::Cancel { run, reason, grace_ms, kill } => {
            let found = state.run(&run)?;
            cancel(found, reason, grace_ms, kill)
        }
        Command::Export { run, target } => {
            let found = state.run(&run)?;
            keeps_a_workspace(found)?;
            if !matches!(found.workspace, Workspace::Sealed | Workspace::Exported) {
                return Err(nothing_left(found));
            }
            // J7: an export that fails again and again is recorded a bounded number of times.
            if found.events >= RUN_EVENTS_MAX {
                return Err(Refusal::new(Code::LimitEvents, Code::LimitEvents.cause()));
            }
            vec![Event::ExportIntended { run, target, at_wall_ms: now.wall_ms }]
        }
        Command::Discard { run } => {
            let found = state.run(&run)?;
            keeps_a_workspace(found)?;
            match found.workspace {
                Workspace::Sealed | Workspace::Exported => vec![Event::DiscardIntended { run }],
                Workspace::Discarded | Workspace::Discarding => Vec::new(),
                _ => return Err(nothing_left(found)),
            }
        }
    };
    Ok(events.into())
}

fn keeps_a_workspace(run: &Run) -> Result<(), Refusal> {
    if run.phase == Phase::Ended {
        return Ok(());
    }
    let cause = format!("run {} is {}", run.id, run.phase.as_str());
    Err(Refusal::new(Code::ExportNotEnded, cause))
}

fn nothing_left(run: &Run) -> Refusal {
    if run.left_unchanged() {
        let cause = format!("run {} changed nothing, so its workspace was removed", run.id);
        return Refusal::new(Code::ExportNothing, cause);
    }
    let cause = format!("the workspace of run {} is {}", run.id, run.workspace.as_str());
    Refusal::new(Code::ExportNothing, cause)
}

fn stop(state: &State, at_once: bool) -> Vec<Event> {
    let mut events = vec![Event::StopRequested { now: at_once }];
    for id in state.active.iter().filter(|_| at_once) {
        if let Some(run) = state.runs.get(id) {
            events.extend(cancel(run, "the supervisor stops".to_owned(), None, false));
        }
    }
    events
}

/// A cancel in each phase; what is over or already being ended is left alone.
fn cancel(run: &Run, reason: String, grace_ms: Option<u64>, kill: bool) -> Vec<Event> {
    let wanted = match run.phase {
        Phase::Refused | Phase::Cleaning | Phase::Settling | Phase::Ended => false,
        Phase::Stopping => kill && !run.kill_ordered,
        Phase::Requested
        | Phase::Admitted
        | Phase::Queued
        | Phase::Preparing
        | Phase::Starting
        | Phase::Running => true,
    };
    if !wanted {
        return Vec::new();
    }
    let grace_ms = grace_ms.unwrap_or(run.spec.limits.grace_ms);
    vec![Event::CancelRequested { run: run.id.clone(), reason, grace_ms, kill }]
}
