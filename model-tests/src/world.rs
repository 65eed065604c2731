//! Driver and host together: effects on their way to the host, observations on their way back, and
//! crashes in between.

use std::collections::BTreeSet;

use atenea_core::effect::{Effect, Lane};
use atenea_core::event::{Event, Period, Recorded};
use atenea_core::input::{Command, Input, Observation};
use atenea_core::run::{Outcome, Run, Workspace};
use atenea_core::{
    AccountName, Decision, Nanos, Phase, Refusal, RunId, Settings, State, apply, decide,
};

use crate::driver::{Died, Driver, Fuse};
use crate::host::{Crash, Fault, Host, step_of};

/// Everything.
#[derive(Clone, Debug)]
pub struct World {
    /// The supervisor.
    pub driver: Driver,
    /// The host.
    pub host: Host,
    /// Effects that are handed out and not executed.
    pub pending: Vec<Effect>,
    /// Observations that are not delivered.
    pub seen: Vec<Observation>,
    checked: usize,
}

/// The account all runs of the model share.
///
/// # Panics
/// Never: the name is a constant of the right form.
pub fn account() -> AccountName {
    AccountName::parse("default").expect("a plain name")
}

impl World {
    /// A started supervisor with an account of `limit`.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so.
    pub fn new(settings: Settings, fuse: Fuse, limit: Nanos) -> (World, Result<(), Died>) {
        let mut driver = Driver::new(settings);
        driver.fuse = fuse;
        let mut world = World {
            driver,
            host: Host::default(),
            pending: Vec::new(),
            seen: Vec::new(),
            checked: 0,
        };
        let born = world.start().and_then(|()| world.set_budget(limit).map(drop));
        (world, born)
    }

    fn start(&mut self) -> Result<(), Died> {
        let (boot, version) = (self.host.boot_id(), "0.1.0".to_owned());
        self.submit(Input::Command(Command::Start { boot, version })).map(drop)
    }

    /// Sets the limit of the account.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so.
    pub fn set_budget(&mut self, limit: Nanos) -> Result<Result<Decision, Refusal>, Died> {
        let per = Some(Period::Month);
        self.submit(Input::Command(Command::SetBudget { account: account(), limit, per }))
    }

    /// Gives the supervisor an input and hands out the effects it causes.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so or the commit fails.
    pub fn submit(&mut self, input: Input) -> Result<Result<Decision, Refusal>, Died> {
        let answer = self.driver.submit(input)?;
        self.pending.append(&mut self.driver.outbox);
        Ok(answer)
    }

    /// Positions in `pending` of effects that can be executed now.
    pub fn ready(&self) -> Vec<usize> {
        let mut busy = BTreeSet::new();
        let first = |(n, effect): (usize, &Effect)| {
            let (run, lane) = effect.lane();
            (lane == Lane::Urgent || busy.insert((run, lane))).then_some(n)
        };
        self.pending.iter().enumerate().filter_map(first).collect()
    }

    /// Executes one of the effects that are ready; false when there is none.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so, before or after the effect.
    pub fn perform(&mut self, n: usize, fault: Fault) -> Result<bool, Died> {
        let ready = self.ready();
        let Some(at) = ready.get(n % ready.len().max(1)).copied() else { return Ok(false) };
        self.driver.fuse.pass()?;
        let effect = self.pending.remove(at);
        if let Effect::AbortSteps { run } = &effect {
            self.abort(run);
        }
        let seen = self.host.perform(&effect, fault);
        self.driver.fuse.pass()?;
        self.seen.extend(seen);
        Ok(true)
    }

    /// Steps that were not begun are answered without being done.
    fn abort(&mut self, run: &RunId) {
        let (dropped, kept): (Vec<Effect>, Vec<Effect>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|e| step_of(e).is_some_and(|(of, _)| of == *run));
        self.pending = kept;
        self.seen.extend(dropped.iter().filter_map(crate::host::failure));
    }

    /// Delivers one observation, keeping a copy when it is to come again; false when there is none.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so or the commit fails.
    pub fn deliver(&mut self, n: usize, again: bool) -> Result<bool, Died> {
        if self.seen.is_empty() {
            return Ok(false);
        }
        let n = n % self.seen.len();
        let seen = if again { self.seen.get(n).cloned() } else { Some(self.seen.remove(n)) };
        if let Some(seen) = seen {
            let _ = self.submit(Input::Observation(seen))?;
        }
        Ok(true)
    }

    /// Moves the boot clock to the next deadline; false when there is none.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so or the commit fails.
    pub fn wait(&mut self) -> Result<bool, Died> {
        let Some(at) = self.driver.state.next_deadline() else { return Ok(false) };
        let passed = at.saturating_sub(self.driver.now.boot_ms);
        self.driver.now.boot_ms += passed;
        self.driver.now.wall_ms += passed;
        let _ = self.submit(Input::Advance)?;
        Ok(true)
    }

    /// The supervisor is gone, and a new one starts from the journal.
    ///
    /// # Errors
    /// [`Died`] when the fuse says so: a crash in recovery.
    pub fn crash(&mut self, crash: Crash) -> Result<(), Died> {
        self.host.crash(crash);
        if crash == Crash::Reboot {
            self.driver.now.boot_ms = 500;
        }
        self.pending.clear();
        self.seen.clear();
        self.driver.outbox.clear();
        self.driver.state = self.driver.fold();
        self.recovery_is_idempotent();
        let held = self.driver.state.ledger.clone();
        let born = self.start();
        // B3: what a crash leaves is not more than what was there.
        let settled = self.driver.journal.iter().rev().take_while(|r| !is_start(r));
        let spent = settled.into_iter().any(|r| matches!(r.event, Event::RunSettled { .. }));
        if born.is_ok() && !spent && self.driver.state.ledger != held {
            self.driver.watch.wrongs.push("B3: a start changed the ledger".to_owned());
        }
        born
    }

    /// R2: recovery twice is recovery once.
    fn recovery_is_idempotent(&mut self) {
        let start = |state: &mut State| {
            let (boot, version) = (self.host.boot_id(), "0.1.0".to_owned());
            let input = Input::Command(Command::Start { boot, version });
            let events = decide(state, &self.driver.settings, self.driver.now, input)
                .map(|d| d.events)
                .unwrap_or_default();
            let mut effects = Vec::new();
            for event in events {
                let recorded = Recorded { seq: state.seq + 1, at: self.driver.now, event };
                effects.extend(apply(state, &recorded));
            }
            effects
        };
        let mut once = self.driver.state.clone();
        let first = start(&mut once);
        let mut twice = once.clone();
        let second = start(&mut twice);
        let same = (&once.runs, &once.active, &once.queue, &once.ledger)
            == (&twice.runs, &twice.active, &twice.queue, &twice.ledger);
        if !same || first != second {
            let wrong = format!("R2: a second recovery differs: {first:?} then {second:?}");
            self.driver.watch.wrongs.push(wrong);
        }
    }

    /// Everything that was done wrong, and what of the state is inconsistent now.
    pub fn wrongs(&mut self) -> Vec<String> {
        self.driver.watch.compare(&self.driver.state);
        let mut wrongs = self.driver.watch.wrongs.clone();
        wrongs.extend(self.host.wrongs.iter().cloned());
        wrongs.extend(self.state_wrongs());
        wrongs
    }

    fn state_wrongs(&self) -> Vec<String> {
        let state = &self.driver.state;
        let mut wrongs = Vec::new();
        let working = |p: Phase| {
            matches!(p, Phase::Preparing | Phase::Starting | Phase::Running | Phase::Stopping)
        };
        let places = state.runs.values().filter(|r| working(r.phase)).count();
        if places > self.driver.settings.max_concurrent {
            wrongs.push(format!("{places} runs at once"));
        }
        let mut uids = BTreeSet::new();
        // A workspace that is being deleted has no processes: its uid may have gone to another run.
        let alive = |run: &&Run| run.phase != Phase::Ended || !run.leftovers().is_empty();
        let active = state.active.iter().filter_map(|id| state.runs.get(id));
        for run in active.filter(alive) {
            let own = run.spec.profile.is_enforced() && self.driver.settings.uid_range.is_some();
            if own && run.run_uid.is_some_and(|uid| uid == 0 || !uids.insert(uid)) {
                wrongs.push(format!("S2: {} shares its uid or is root", run.id));
            }
        }
        for (run, place) in &self.host.places {
            let lives = place.agent || place.sandbox || place.group || place.token;
            if lives && !state.active.contains(run) {
                wrongs.push(format!("C1: {run} is not watched any more but left {place:?}"));
            }
        }
        wrongs
    }

    /// Checks that the journal alone gives the live state, and that state and journal survive
    /// their stored form.
    ///
    /// # Errors
    /// What differs.
    pub fn check_stored(&mut self) -> Result<(), String> {
        if self.driver.fold() != self.driver.state {
            return Err("R2: the fold of the journal is not the live state".to_owned());
        }
        let bytes = rmp_serde::to_vec_named(&self.driver.state).map_err(|e| e.to_string())?;
        let back: State = rmp_serde::from_slice(&bytes).map_err(|e| e.to_string())?;
        if back != self.driver.state {
            return Err("J6: a stored state comes back different".to_owned());
        }
        for recorded in self.driver.journal.iter().skip(self.checked) {
            let bytes = rmp_serde::to_vec_named(recorded).map_err(|e| e.to_string())?;
            let back: Recorded = rmp_serde::from_slice(&bytes).map_err(|e| e.to_string())?;
            if back != *recorded {
                return Err(format!("J8: a stored event comes back different: {recorded:?}"));
            }
        }
        self.checked = self.driver.journal.len();
        Ok(())
    }

    /// What is missing at the end, when nothing can happen any more.
    pub fn unfinished(&self) -> Vec<String> {
        let mut wrongs = Vec::new();
        for run in self.driver.state.runs.values() {
            let id = &run.id;
            if run.phase != Phase::Ended || run.receipt.is_none() {
                wrongs.push(format!("R1: {id} is {} without end or receipt", run.phase.as_str()));
            }
            if !run.leftovers().is_empty() || run.stuck().is_some() {
                wrongs.push(format!("C3: {id} has leftovers {:?}", run.leftovers()));
            }
            let refused = run.outcome == Some(Outcome::Refused);
            let place = self.host.places.get(id).cloned().unwrap_or_default();
            if place.agent || place.sandbox || place.group || place.boundary || place.token {
                wrongs.push(format!("C1: {id} left {place:?}"));
            }
            if !place.receipt {
                wrongs.push(format!("R1: {id} has no receipt on disk"));
            }
            if refused && self.driver.state.ledger.holds.contains_key(id) {
                wrongs.push(format!("B4: {id} was refused and has a hold"));
            }
            let kept = matches!(run.workspace, Workspace::Sealed | Workspace::Exported);
            if kept != place.tree.is_some() {
                wrongs.push(format!("C4: {id} is {:?} but has {:?}", run.workspace, place.tree));
            }
        }
        wrongs
    }
}

fn is_start(recorded: &Recorded) -> bool {
    matches!(recorded.event, Event::SupervisorStarted { .. })
}
