//! A request: the same one again, refused, or admitted with its money held.

use super::Decision;
use crate::event::{Event, RunSpec};
use crate::input::Now;
use crate::state::{Settings, State};
use crate::{Code, Phase, Refusal, RunId};

pub(super) fn request(
    state: &State,
    settings: &Settings,
    now: Now,
    run: RunId,
    spec: Box<RunSpec>,
    refusal: Option<Refusal>,
) -> Result<Decision, Refusal> {
    if let Some(existing) = repeated(state, &spec)? {
        return Ok(Decision { events: Vec::new(), existing: Some(existing) });
    }
    if state.stopping {
        return Err(Refusal::new(Code::ProcessStopping, Code::ProcessStopping.cause()));
    }
    check_name(state, &spec)?;
    if state.runs.contains_key(&run) {
        return Err(Refusal::new(Code::ProcessBusy, format!("the id {run} is taken"))
            .with_help("send the request again"));
    }
    if state.queue.len() >= settings.queue_max {
        let cause = format!("{} runs are waiting already", state.queue.len());
        return Err(Refusal::new(Code::ProcessBusy, cause));
    }
    let judged = refusal.map_or_else(|| admit(state, settings, now, &run, &spec), Err);
    let mut events = vec![Event::RunRequested { run: run.clone(), spec }];
    match judged {
        Ok(more) => events.extend(more),
        // B4: a refused request leaves no hold.
        Err(Refusal { code, cause, .. }) => events.push(Event::RunRefused { run, code, cause }),
    }
    Ok(events.into())
}

/// A name addresses one run for as long as it lives, and is never taken for an id: cancel, export
/// and discard would otherwise reach another run than the one that was meant.
fn check_name(state: &State, spec: &RunSpec) -> Result<(), Refusal> {
    let Some(name) = &spec.name else { return Ok(()) };
    if name.as_str().starts_with(RunId::PREFIX) {
        let cause = format!("the name {name} looks like the id of a run");
        return Err(Refusal::new(Code::ManifestBadValue, cause)
            .with_help("choose a name that does not start with r_"));
    }
    let other = state.names.get(name).and_then(|id| state.runs.get(id));
    match other.filter(|other| other.phase != Phase::Ended) {
        Some(other) => {
            let cause = format!("run {} is called {name} and has not ended", other.id);
            Err(Refusal::new(Code::ProcessNameTaken, cause).with_help(format!(
                "use another --name, or wait for that run to end: atenea-sup wait {name}"
            )))
        }
        None => Ok(()),
    }
}

/// B4: a repeated key stands for the run it made, and never for another request.
fn repeated(state: &State, spec: &RunSpec) -> Result<Option<RunId>, Refusal> {
    let Some(key) = &spec.idempotency else { return Ok(None) };
    match state.keys.get(&(spec.owner.uid, key.clone())) {
        None => Ok(None),
        Some((digest, run)) if *digest == spec.request => Ok(Some(run.clone())),
        Some((_, run)) => {
            let cause = format!("the key {key} belongs to another request, run {run}");
            Err(Refusal::new(Code::ProcessIdempotencyMismatch, cause))
        }
    }
}

fn admit(
    state: &State,
    settings: &Settings,
    now: Now,
    run: &RunId,
    spec: &RunSpec,
) -> Result<Vec<Event>, Refusal> {
    check_approval(state, settings, now, spec)?;
    let run_uid = run_uid(state, settings, spec)?;
    let used = spec.step.clone().map(|step| Event::ApprovalUsed { run: run.clone(), step });
    let mut events: Vec<Event> = used.into_iter().collect();
    events.push(Event::RunAdmitted { run: run.clone(), run_uid });
    if let Some(ask) = &spec.budget {
        // B2: nothing is made before this succeeded.
        let opens = state.ledger.check_hold(&ask.account, ask.amount, now)?;
        let account = ask.account.clone();
        if let Some(key) = opens {
            events.push(Event::PeriodOpened { account: account.clone(), key });
        }
        events.push(Event::BudgetHeld { run: run.clone(), account, amount: ask.amount });
    }
    Ok(events)
}

/// S3: a run that claims an approval has one, and with `approval.required` every run claims one.
fn check_approval(
    state: &State,
    settings: &Settings,
    now: Now,
    spec: &RunSpec,
) -> Result<(), Refusal> {
    match &spec.step {
        Some(step) => state.approvals.check(step, spec.manifest, state.boot.as_ref(), now),
        None if settings.approval_required => {
            Err(Refusal::new(Code::ApprovalRequired, "the manifest names no approved step"))
        }
        None => Ok(()),
    }
}

/// A host uid no other live run has; never 0.
fn run_uid(state: &State, settings: &Settings, spec: &RunSpec) -> Result<u32, Refusal> {
    let Some((start, count)) = settings.uid_range.filter(|_| spec.profile.is_enforced()) else {
        return Ok(spec.owner.uid);
    };
    let taken: Vec<u32> =
        state.active.iter().filter_map(|id| state.runs.get(id)).filter_map(|r| r.run_uid).collect();
    let first = if (start..start.saturating_add(count)).contains(&state.last_uid) {
        state.last_uid - start + 1
    } else {
        0
    };
    (0..count)
        .map(|n| start + (first + n) % count)
        .find(|uid| *uid != 0 && !taken.contains(uid))
        .ok_or_else(|| {
            let cause = format!("all {count} uids from {start} are in use");
            Refusal::new(Code::HostNoUidRange, cause)
        })
}
