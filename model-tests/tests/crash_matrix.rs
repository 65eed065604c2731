//! Every story, with a crash after every append and before and after every effect, for each kind of
//! crash, and with a second crash at every point of the recovery. All must converge (R1, R2, C3).

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

use atenea_core::effect::Effect;
use atenea_core::event::{BudgetAsk, Exit, ExportTarget, Owner, RunSpec};
use atenea_core::input::{Command, Input, Observation};
use atenea_core::run::Workspace;
use atenea_core::{
    Code, Digest, IdempotencyKey, Limits, Nanos, Outcome, Phase, Profile, Refusal, Run, RunId,
    Settings,
};
use atenea_model_tests::driver::{Died, Fuse};
use atenea_model_tests::host::{Crash, Fault, Traits};
use atenea_model_tests::world::{World, account};

const LIMIT: Nanos = Nanos(1_000);
const HOLD: Nanos = Nanos(400);
/// More steps than any story needs; a story that takes more does not converge.
const STEPS_MAX: usize = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    Success,
    ReadOnly,
    TrustedHost,
    Failure,
    NotFound,
    StepFails,
    Cancel,
    CancelEarly,
    Timeout,
    KillLost,
    Limit,
    Refused,
    Stuck,
    Unchanged,
    Export,
    Discard,
    ChoresFail,
}

const STORIES: [Story; 17] = [
    Story::Success,
    Story::ReadOnly,
    Story::TrustedHost,
    Story::Failure,
    Story::NotFound,
    Story::StepFails,
    Story::Cancel,
    Story::CancelEarly,
    Story::Timeout,
    Story::KillLost,
    Story::Limit,
    Story::Refused,
    Story::Stuck,
    Story::Unchanged,
    Story::Export,
    Story::Discard,
    Story::ChoresFail,
];

fn id() -> RunId {
    RunId::from_random(1)
}

impl Story {
    fn profile(self) -> Profile {
        match self {
            Story::ReadOnly => Profile::Read,
            Story::TrustedHost => Profile::TrustedHost,
            _ => Profile::WorkspaceWrite,
        }
    }

    fn traits(self) -> Traits {
        Traits {
            writable: self.profile() == Profile::WorkspaceWrite,
            enforced: self.profile().is_enforced(),
            stubborn: matches!(self, Story::Timeout | Story::KillLost),
            missing: self == Story::NotFound,
            changes: if self == Story::Unchanged { 0 } else { 2 },
        }
    }

    fn spec(self) -> RunSpec {
        let amount = if self == Story::Refused { Nanos(LIMIT.0 + 1) } else { HOLD };
        RunSpec {
            name: None,
            profile: self.profile(),
            manifest: Digest::of(b"m"),
            sealed: Digest::of(b"s"),
            program: "agent".into(),
            owner: Owner { uid: 1000, gid: 1000 },
            budget: Some(BudgetAsk { account: account(), amount }),
            priced: self == Story::Success,
            limits: Limits::default(),
            tty: false,
            foreground: false,
            idempotency: Some(IdempotencyKey::parse("key").unwrap()),
            request: Digest::of(b"r"),
            writable_workspace: self.traits().writable,
            step: None,
        }
    }

    /// What a person, a client or the agent does now; false when they wait.
    fn act(self, world: &mut World) -> Result<bool, Died> {
        let Some(run) = world.driver.state.runs.get(&id()) else {
            let spec = Box::new(self.spec());
            let request = Command::Request { run: id(), spec, refusal: None };
            return world.submit(Input::Command(request)).map(|_| true);
        };
        if self == Story::CancelEarly && run.phase == Phase::Preparing && run.outcome.is_none() {
            return cancel(world);
        }
        if run.phase == Phase::Running && run.outcome.is_none() {
            return self.act_running(world);
        }
        if run.phase == Phase::Ended && run.workspace == Workspace::Sealed && run.changed > 0 {
            return self.act_ended(world);
        }
        Ok(false)
    }

    fn act_running(self, world: &mut World) -> Result<bool, Died> {
        let status = match self {
            Story::Failure => 7,
            Story::Cancel => return cancel(world),
            Story::Timeout | Story::KillLost => return Ok(false),
            Story::Limit => {
                let refusal = Refusal::new(Code::LimitMemory, "simulated");
                let limit = Observation::LimitExceeded { run: id(), refusal };
                return world.submit(Input::Observation(limit)).map(|_| true);
            }
            _ => 0,
        };
        let ended = world.host.agent_ends(&id(), Exit::Status(status));
        let acted = !ended.is_empty();
        world.seen.extend(ended);
        Ok(acted)
    }

    fn act_ended(self, world: &mut World) -> Result<bool, Died> {
        let command = match self {
            Story::Export => {
                let target = ExportTarget::Ref("refs/atenea/x".into());
                Command::Export { run: id(), target }
            }
            Story::Discard | Story::ChoresFail => {
                world.host.given_up.insert(id());
                Command::Discard { run: id() }
            }
            _ => return Ok(false),
        };
        world.submit(Input::Command(command)).map(|_| true)
    }

    /// Faults of effects: the first tries of one step fail.
    fn fault(self, world: &World, n: usize) -> Fault {
        let faulty = [Story::StepFails, Story::Stuck, Story::KillLost, Story::ChoresFail];
        if !faulty.contains(&self) {
            return Fault::None;
        }
        let effect = world.ready().get(n).and_then(|at| world.pending.get(*at)).cloned();
        let run = world.driver.state.runs.get(&id());
        let tries = run.map_or(0, |r| r.cleanup.values().map(|c| c.failures).max().unwrap_or(0));
        match (self, effect) {
            (Story::StepFails, Some(Effect::CreateSandbox { .. })) => Fault::DoneButFailed,
            (Story::KillLost, Some(Effect::KillGroup { .. })) => Fault::Fails,
            (Story::ChoresFail, Some(Effect::WriteReceipt { .. } | Effect::Discard { .. }))
                if run.is_some_and(|r| r.chore_failures < 2) =>
            {
                Fault::Fails
            }
            (Story::Stuck, Some(Effect::RemoveGroup { .. })) if tries < 7 => Fault::Fails,
            _ => Fault::None,
        }
    }

    /// Outcomes that a crash may lead to besides `lost` and `aborted`, and the one without a crash.
    fn outcome(self) -> Outcome {
        match self {
            Story::StepFails => Outcome::Aborted,
            Story::Cancel | Story::CancelEarly => Outcome::Cancelled,
            Story::Timeout | Story::KillLost => Outcome::TimedOut,
            Story::Limit => Outcome::Limit,
            Story::Refused => Outcome::Refused,
            _ => Outcome::Exited,
        }
    }
}

fn cancel(world: &mut World) -> Result<bool, Died> {
    let reason = "a person asked".to_owned();
    let cancel = Command::Cancel { run: id(), reason, grace_ms: None, kill: false };
    world.submit(Input::Command(cancel)).map(|_| true)
}

/// Plays a story to its end.
fn play(story: Story, world: &mut World) -> Result<(), Died> {
    for _ in 0..STEPS_MAX {
        let fault = story.fault(world, 0);
        let moved = story.act(world)?
            || world.perform(0, fault)?
            || world.deliver(0, false)?
            || world.wait()?;
        if !moved {
            return Ok(());
        }
    }
    panic!("{story:?} does not converge: {:?}", world.driver.journal.iter().rev().take(8));
}

fn fresh(fuse: Fuse, story: Story) -> (World, Result<(), Died>) {
    let (mut world, born) = World::new(Settings::default(), fuse, LIMIT);
    world.host.traits.insert(id(), story.traits());
    (world, born)
}

fn fuse(at: u64) -> Fuse {
    Fuse { at: Some(at), passed: 0 }
}

fn check(story: Story, world: &mut World, crashed: bool, point: &str) {
    if !world.driver.state.ledger.accounts.contains_key(&account()) {
        // The crash came before the person could set the budget.
        world.set_budget(LIMIT).unwrap().unwrap();
    }
    let mut wrongs = world.wrongs();
    wrongs.extend(world.unfinished());
    assert!(wrongs.is_empty(), "{story:?} {point}: {wrongs:#?}");
    let run = world.driver.state.run(&id()).unwrap();
    let outcome = run.outcome.unwrap();
    let by_crash = matches!(outcome, Outcome::Lost | Outcome::Aborted);
    assert!(outcome == story.outcome() || (crashed && by_crash), "{story:?} {point}: {outcome:?}");
    check_workspace(story, world, run, point);
    let held = world.driver.state.ledger.accounts[&account()].held;
    let unknown = if story.spec().priced && run.go_intended { HOLD } else { Nanos::ZERO };
    assert_eq!(held, unknown, "B6 B7 {story:?} {point}");
}

/// C4: work is there, exported or given up by a person; nothing else is kept.
fn check_workspace(story: Story, world: &World, run: &Run, point: &str) {
    let place = world.host.places.get(&id()).cloned().unwrap_or_default();
    let wrote = run.changed > 0;
    let wanted = match (story, wrote) {
        (Story::Export, true) => Workspace::Exported,
        (Story::Discard | Story::ChoresFail, true) => Workspace::Discarded,
        (_, true) => Workspace::Sealed,
        (_, false) if run.go_intended && story.traits().writable => Workspace::Discarded,
        (_, false) => Workspace::None,
    };
    assert_eq!(run.workspace, wanted, "C4 {story:?} {point}");
    let refs = usize::from(wanted == Workspace::Exported);
    assert_eq!(place.refs.len(), refs, "R3 {story:?} {point}");
}

/// Starts the supervisor again until nothing kills it any more, then plays on.
fn recover(story: Story, world: &mut World, crash: Crash) {
    let born = world.crash(crash);
    if born.is_err() {
        world.driver.fuse = Fuse::default();
        world.crash(crash).unwrap();
    }
    ensure_account(world);
    if play(story, world).is_err() {
        world.driver.fuse = Fuse::default();
        world.crash(crash).unwrap();
        ensure_account(world);
        play(story, world).unwrap();
    }
}

/// A person whose `budget set` was not answered repeats it.
fn ensure_account(world: &mut World) {
    if !world.driver.state.ledger.accounts.contains_key(&account())
        && world.set_budget(LIMIT).is_err()
    {
        world.driver.fuse = Fuse::default();
        world.crash(Crash::ProcessesSurvive).unwrap();
    }
    if !world.driver.state.ledger.accounts.contains_key(&account()) {
        world.set_budget(LIMIT).unwrap().unwrap();
    }
}

/// Points of a story that nothing disturbs.
fn points(story: Story) -> u64 {
    let (mut world, born) = fresh(Fuse::default(), story);
    born.unwrap();
    play(story, &mut world).unwrap();
    check(story, &mut world, false, "undisturbed");
    world.driver.fuse.passed
}

#[test]
fn every_story_converges_after_a_crash_at_every_point() {
    let mut total = 0;
    for story in STORIES {
        let points = points(story);
        for at in 1..=points {
            for crash in [Crash::HelperKills, Crash::ProcessesSurvive, Crash::Reboot] {
                let (mut world, born) = fresh(fuse(at), story);
                let died = born.and_then(|()| play(story, &mut world));
                assert_eq!(died, Err(Died), "{story:?} has a point {at}");
                world.driver.fuse = Fuse::default();
                recover(story, &mut world, crash);
                check(story, &mut world, true, &format!("{crash:?} at {at}"));
                world.check_stored().unwrap_or_else(|why| panic!("{story:?} at {at}: {why}"));
                total += 1;
            }
        }
        println!("{story:?}: {points} points");
    }
    println!("{total} crashes");
}

#[test]
fn every_story_converges_after_a_second_crash_at_every_point_of_recovery() {
    let mut total = 0;
    for story in STORIES {
        let mut crashes = 0;
        for at in 1..=points(story) {
            let (mut first, born) = fresh(fuse(at), story);
            assert!(born.and_then(|()| play(story, &mut first)).is_err());
            for again in 1.. {
                let mut world = first.clone();
                world.driver.fuse = fuse(again);
                recover(story, &mut world, Crash::ProcessesSurvive);
                let burnt = world.driver.fuse.at.is_none();
                check(story, &mut world, true, &format!("at {at}, again at {again}"));
                if !burnt {
                    break;
                }
                crashes += 1;
            }
        }
        println!("{story:?}: {crashes} double crashes");
        total += crashes;
    }
    println!("{total} double crashes");
}
