//! What goes on by itself: the next step of each run, freed places, passed deadlines, settlement.

use crate::Nanos;
use crate::event::{CleanupStep, Event, Quality, Step};
use crate::input::Now;
use crate::run::{Phase, Run, Workspace};
use crate::state::{Settings, State};

/// The next events that follow from the state and the clock alone; none when nothing does. The
/// driver repeats this until it is empty, so one call needs to find only the next layer.
pub(super) fn advance(state: &State, settings: &Settings, now: Now) -> Vec<Event> {
    let mut events = Vec::new();
    for (run, deadline) in state.passed(now.boot_ms) {
        events.push(Event::DeadlinePassed { run, deadline });
    }
    if !events.is_empty() {
        return events;
    }
    for id in &state.active {
        if let Some(run) = state.runs.get(id) {
            events.extend(next_of(run, settings));
        }
    }
    let free = settings.max_concurrent.saturating_sub(state.places_taken());
    for id in state.queue.iter().take(free) {
        if let Some(run) = state.runs.get(id) {
            events.extend(first_steps(run));
        }
    }
    events
}

/// Steps that need nothing from each other start together.
fn first_steps(run: &Run) -> Vec<Event> {
    let first = [Step::Workspace, Step::Group, Step::Policy];
    let needed = run.steps_needed().iter().filter(|s| first.contains(s));
    needed.map(|step| Event::StepIntended { run: run.id.clone(), step: *step }).collect()
}

fn next_of(run: &Run, settings: &Settings) -> Vec<Event> {
    match run.phase {
        Phase::Preparing | Phase::Starting => next_step(run).into_iter().collect(),
        Phase::Cleaning => after_cleanup(run, settings),
        Phase::Ended => after_end(run),
        _ => Vec::new(),
    }
}

/// S1: a step is intended only when every earlier one is done and journalled.
fn next_step(run: &Run) -> Option<Event> {
    if !run.in_flight.is_empty() || run.outcome.is_some() {
        return None;
    }
    let step = *run.steps_needed().iter().find(|s| !run.done.contains(s))?;
    Some(Event::StepIntended { run: run.id.clone(), step })
}

fn after_cleanup(run: &Run, settings: &Settings) -> Vec<Event> {
    if !run.in_flight.is_empty() {
        return Vec::new();
    }
    let hopeless = |c: &crate::run::Cleanup| c.failures >= settings.cleanup_tries;
    // C3: settlement waits a bounded number of tries; what waits for a hopeless step is given up
    // with it, and both are tried on later.
    let blocked = run.cleanup.values().any(|c| !c.done && hopeless(c));
    let open: Vec<CleanupStep> =
        run.cleanup.iter().filter(|(_, c)| !c.done && !c.given_up).map(|(step, _)| *step).collect();
    if !open.is_empty() {
        let give_up = |step: &CleanupStep| {
            let c = run.cleanup.get(step)?;
            let idle = !c.started;
            (hopeless(c) || (blocked && idle))
                .then(|| Event::CleanupGivenUp { run: run.id.clone(), step: *step })
        };
        return open.iter().filter_map(give_up).collect();
    }
    vec![settle(run)]
}

/// B6, B7: nothing priced was granted, or no agent ever ran: zero by construction. Otherwise what
/// nobody reported stays held.
fn settle(run: &Run) -> Event {
    let reported = run.money.reported;
    let may_have_spent = run.spec.priced && run.go_intended;
    let unknown = if may_have_spent {
        run.money.held.checked_sub(reported).unwrap_or(Nanos::ZERO)
    } else {
        Nanos::ZERO
    };
    Event::RunSettled { run: run.id.clone(), reported, unknown, quality: Quality::None }
}

/// C4: a workspace in which nothing was written is nobody's work.
fn after_end(run: &Run) -> Vec<Event> {
    if run.workspace == Workspace::Sealed && run.changed == 0 {
        return vec![Event::DiscardIntended { run: run.id.clone() }];
    }
    Vec::new()
}
