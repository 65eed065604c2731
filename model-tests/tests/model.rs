//! Random schedules: requests, cancels, effects in any order and with any fault, observations late
//! and twice, clocks, failing commits and crashes, also in recovery. The invariants hold after each
//! step, and at the end every run is over (C3, R1).
//!
//! `PROPTEST_CASES` runs more; a failing seed is printed and kept in `model.regressions.txt`.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

use std::collections::BTreeMap;

use atenea_core::event::{BudgetAsk, Exit, ExportTarget, Owner, RunSpec, Violation};
use atenea_core::input::{Command, Input, Observation};
use atenea_core::run::Workspace;
use atenea_core::{
    Code, Decision, Digest, IdempotencyKey, Limits, Nanos, Phase, Profile, Refusal, RunId,
    Settings, StepName,
};
use atenea_model_tests::driver::{Commit, Died, Fuse};
use atenea_model_tests::host::{Crash, Fault, Traits};
use atenea_model_tests::world::{World, account};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

/// Runs requested in one schedule: enough for a queue and shared money, few enough to read.
const RUNS_MAX: usize = 6;
/// Rounds after which a schedule that was left alone must have come to rest.
const ROUNDS_MAX: usize = 3_000;

#[derive(Clone, Debug)]
struct Ask {
    key: Option<u8>,
    profile: Profile,
    amount: Option<u64>,
    priced: bool,
    foreground: bool,
    traits: Traits,
    refused_by_host: bool,
    disk_full: bool,
    /// Claims the approval of the one step, with the approved manifest or another.
    claims: Option<bool>,
}

#[derive(Clone, Debug)]
enum Step {
    Request(Ask),
    Cancel {
        run: usize,
        kill: bool,
    },
    /// Effects are executed and answered in order, without a fault.
    Work {
        rounds: usize,
    },
    Perform {
        n: usize,
        fault: Fault,
    },
    Deliver {
        n: usize,
        again: bool,
    },
    AgentEnds {
        n: usize,
        exit: Exit,
    },
    Observe {
        run: usize,
        what: Odd,
    },
    Clock {
        boot_ms: u64,
        wall_days: i64,
    },
    Commit(Commit),
    Crash {
        crash: Crash,
        again_at: Option<u64>,
    },
    Export {
        run: usize,
    },
    Discard {
        run: usize,
    },
    Stop {
        now: bool,
    },
    Budget {
        limit: u64,
    },
    Approve {
        uses: u32,
    },
}

/// Observations that belong to no effect.
#[derive(Clone, Copy, Debug)]
enum Odd {
    Limit,
    Violation,
    ClientGone,
    Sealed,
    Receipt,
}

/// The model of the generator: how many runs were asked for. Everything else is judged by the
/// journal's own watch, which shares no code with the machine.
#[derive(Clone, Debug, Default)]
struct Asked {
    runs: usize,
}

struct Schedules;

fn ask() -> impl Strategy<Value = Ask> {
    let profile = prop_oneof![
        4 => Just(Profile::WorkspaceWrite),
        2 => Just(Profile::Read),
        1 => Just(Profile::TrustedHost)
    ];
    let traits = (any::<bool>(), prop::bool::weighted(0.1), 0u64..3);
    let claims = prop::option::weighted(0.3, prop::bool::weighted(0.8));
    let rest = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), any::<bool>(), claims);
    (prop::option::of(0u8..3), profile, prop::option::of(0u64..600), any::<bool>(), traits, rest)
        .prop_map(|(key, profile, amount, priced, (stubborn, missing, changes), rest)| Ask {
            key,
            profile,
            amount,
            priced: priced && amount.is_some(),
            foreground: rest.2,
            traits: Traits {
                writable: profile == Profile::WorkspaceWrite,
                enforced: profile.is_enforced(),
                stubborn,
                missing,
                changes,
            },
            refused_by_host: rest.0,
            disk_full: rest.1,
            claims: rest.3,
        })
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![20 => Just(Fault::None), 1 => Just(Fault::Fails), 1 => Just(Fault::DoneButFailed)]
}

fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![Just(Crash::HelperKills), Just(Crash::ProcessesSurvive), Just(Crash::Reboot)]
}

fn odd() -> impl Strategy<Value = Odd> {
    prop_oneof![
        Just(Odd::Limit),
        Just(Odd::Violation),
        Just(Odd::ClientGone),
        Just(Odd::Sealed),
        Just(Odd::Receipt)
    ]
}

fn exit() -> impl Strategy<Value = Exit> {
    prop_oneof![Just(Exit::Status(0)), Just(Exit::Status(7)), Just(Exit::Signal(11))]
}

fn rare() -> impl Strategy<Value = Step> {
    let run = 0..RUNS_MAX;
    let clock = prop_oneof![Just(150u64), Just(6_000), Just(61_000), Just(7_200_000)];
    prop_oneof![
        2 => (run.clone(), any::<bool>()).prop_map(|(run, kill)| Step::Cancel { run, kill }),
        2 => (run.clone(), odd()).prop_map(|(run, what)| Step::Observe { run, what }),
        3 => (clock, -2i64..40).prop_map(|(boot_ms, wall_days)| Step::Clock { boot_ms, wall_days }),
        1 => prop_oneof![Just(Commit::Lost), Just(Commit::Kept)].prop_map(Step::Commit),
        2 => (crash(), prop::option::of(1u64..12))
            .prop_map(|(crash, again_at)| Step::Crash { crash, again_at }),
        2 => run.clone().prop_map(|run| Step::Export { run }),
        2 => run.prop_map(|run| Step::Discard { run }),
        1 => (0u64..1_500).prop_map(|limit| Step::Budget { limit }),
        1 => any::<bool>().prop_map(|now| Step::Stop { now }),
        3 => (1u32..3).prop_map(|uses| Step::Approve { uses }),
    ]
}

impl ReferenceStateMachine for Schedules {
    type State = Asked;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Asked> {
        Just(Asked::default()).boxed()
    }

    fn transitions(_: &Asked) -> BoxedStrategy<Step> {
        prop_oneof![
            8 => ask().prop_map(Step::Request),
            20 => (1usize..12).prop_map(|rounds| Step::Work { rounds }),
            20 => (0usize..8, fault()).prop_map(|(n, fault)| Step::Perform { n, fault }),
            20 => (0usize..8, prop::bool::weighted(0.15))
                .prop_map(|(n, again)| Step::Deliver { n, again }),
            12 => (0usize..4, exit()).prop_map(|(n, exit)| Step::AgentEnds { n, exit }),
            12 => rare(),
        ]
        .boxed()
    }

    fn preconditions(asked: &Asked, step: &Step) -> bool {
        !matches!(step, Step::Request(_)) || asked.runs < RUNS_MAX
    }

    fn apply(mut asked: Asked, step: &Step) -> Asked {
        asked.runs += usize::from(matches!(step, Step::Request(_)));
        asked
    }
}

struct Supervisor {
    world: World,
    ids: Vec<RunId>,
    keys: BTreeMap<u8, (Digest, RunId)>,
    faults: Vec<String>,
}

impl Supervisor {
    fn id(&self, n: usize) -> Option<RunId> {
        self.ids.get(n % self.ids.len().max(1)).cloned()
    }

    /// Does a step; the process may die in it.
    fn step(&mut self, step: Step) -> Result<(), Died> {
        match step {
            Step::Request(ask) => self.request(&ask)?,
            Step::Work { rounds } => {
                for _ in 0..rounds {
                    let _ = self.world.perform(0, Fault::None)? || self.world.deliver(0, false)?;
                }
            }
            Step::Perform { n, fault } => drop(self.world.perform(n, fault)?),
            Step::Deliver { n, again } => drop(self.world.deliver(n, again)?),
            Step::AgentEnds { n, exit } => {
                let agents = self.world.host.agents();
                if let Some(run) = agents.get(n % agents.len().max(1)) {
                    let seen = self.world.host.agent_ends(run, exit);
                    self.world.seen.extend(seen);
                }
            }
            Step::Clock { boot_ms, wall_days } => {
                let now = &mut self.world.driver.now;
                now.boot_ms += boot_ms;
                now.wall_ms = now.wall_ms.saturating_add_signed(wall_days * 86_400_000);
                let _ = self.world.submit(Input::Advance)?;
            }
            Step::Commit(commit) => self.world.driver.commit = commit,
            Step::Crash { crash, again_at } => {
                self.world.driver.fuse = Fuse { at: again_at, passed: 0 };
                self.crash(crash);
            }
            Step::Budget { limit } => drop(self.world.set_budget(Nanos(limit))?),
            Step::Stop { now } => self.command(Command::Stop { now })?,
            Step::Approve { uses } => {
                let (step, manifest) = (workflow_step(), Digest::of(b"m"));
                let expires_ms = 86_400_000;
                self.command(Command::Approve { step, manifest, by: 0, expires_ms, uses })?;
            }
            other => self.step_on_run(other)?,
        }
        Ok(())
    }

    fn step_on_run(&mut self, step: Step) -> Result<(), Died> {
        let n = match &step {
            Step::Cancel { run, .. }
            | Step::Observe { run, .. }
            | Step::Export { run }
            | Step::Discard { run } => *run,
            _ => return Ok(()),
        };
        let Some(run) = self.id(n) else { return Ok(()) };
        match step {
            Step::Cancel { kill, .. } => {
                let reason = "a person asked".to_owned();
                self.command(Command::Cancel { run, reason, grace_ms: None, kill })
            }
            Step::Observe { what, .. } => self.observe(run, what),
            Step::Export { .. } => {
                let target = ExportTarget::Ref(format!("refs/atenea/{run}"));
                self.command(Command::Export { run, target })
            }
            Step::Discard { .. } => {
                let sealed = self.world.driver.state.runs.get(&run).is_some_and(|r| {
                    r.phase == Phase::Ended
                        && matches!(r.workspace, Workspace::Sealed | Workspace::Exported)
                });
                if sealed {
                    self.world.host.given_up.insert(run.clone());
                }
                self.command(Command::Discard { run })
            }
            _ => Ok(()),
        }
    }

    fn command(&mut self, command: Command) -> Result<(), Died> {
        self.world.submit(Input::Command(command)).map(drop)
    }

    fn observe(&mut self, run: RunId, what: Odd) -> Result<(), Died> {
        let seen = match what {
            Odd::Limit => {
                let refusal = Refusal::new(Code::LimitMemory, "simulated");
                Observation::LimitExceeded { run, refusal }
            }
            Odd::Violation => Observation::Violation {
                run,
                violation: Violation {
                    phase: "egress".into(),
                    code: Code::EgressNotGranted,
                    subject: "x".into(),
                    count: 1,
                    killed_run: false,
                },
            },
            Odd::ClientGone => Observation::ClientGone { run },
            // Nobody would report these; that they come from nowhere must change nothing.
            Odd::Sealed => {
                let step = atenea_core::event::CleanupStep::Workspace;
                Observation::CleanupDone { run, step }
            }
            Odd::Receipt => Observation::Exported { run, commit: None },
        };
        if matches!(what, Odd::Receipt) {
            let exporting =
                |r: &atenea_core::Run| matches!(r.workspace, Workspace::Exporting { .. });
            let id = self.world.driver.state.runs.values().find(|r| exporting(r));
            if id.is_some() {
                return Ok(());
            }
        }
        self.world.submit(Input::Observation(seen)).map(drop)
    }

    fn request(&mut self, ask: &Ask) -> Result<(), Died> {
        let id = RunId::from_random(self.ids.len() as u64 + 1);
        self.ids.push(id.clone());
        // J9: what the full disk refuses is refused before it is recorded.
        if ask.disk_full {
            return Ok(());
        }
        self.world.host.traits.insert(id.clone(), ask.traits);
        let spec = spec(ask);
        let (digest, held) = (spec.request, self.world.driver.state.ledger.clone());
        let refusal = ask.refused_by_host.then(|| Refusal::new(Code::HostNoBubblewrap, "no"));
        let command = Command::Request { run: id.clone(), spec: Box::new(spec), refusal };
        let answer = self.world.submit(Input::Command(command))?;
        self.check_key(ask, digest, id, &answer);
        if answer.is_err() && self.world.driver.state.ledger != held {
            self.faults.push("B4: a refused request changed the ledger".into());
        }
        Ok(())
    }

    /// B4: a key stands for the first run that was recorded with it.
    fn check_key(
        &mut self,
        ask: &Ask,
        digest: Digest,
        id: RunId,
        answer: &Result<Decision, Refusal>,
    ) {
        let Some(key) = ask.key else { return };
        // A commit that failed may have been kept: the state knows, the client does not.
        let known = self.world.driver.state.keys.iter().find(|((_, k), _)| k.as_str() == name(key));
        let recorded = known.map(|(_, entry)| entry.clone());
        match self.keys.get(&key) {
            None => {
                if let Some(entry) = recorded {
                    self.keys.insert(key, entry);
                }
            }
            Some((of, run)) => {
                let same = recorded.as_ref() == Some(&(*of, run.clone()));
                let right = match answer {
                    Ok(decision) if *of == digest => decision.existing.as_ref() == Some(run),
                    Ok(_) => false,
                    Err(refusal) => {
                        *of != digest && refusal.code == Code::ProcessIdempotencyMismatch
                    }
                };
                if !same || !right || self.world.driver.state.runs.contains_key(&id) {
                    self.faults.push(format!("B4: key {key} of {run} was answered {answer:?}"));
                }
            }
        }
    }

    /// Crashes until the supervisor stays up.
    fn crash(&mut self, crash: Crash) {
        while self.world.crash(crash).is_err() {
            self.world.driver.fuse = Fuse::default();
        }
        if self.world.driver.state.ledger.accounts.is_empty() {
            let _ = self.world.set_budget(LIMIT);
        }
    }

    /// Everything is answered, clocks go on, agents end by their limits.
    fn come_to_rest(&mut self) {
        self.world.driver.fuse = Fuse::default();
        self.world.driver.commit = Commit::Good;
        for _ in 0..ROUNDS_MAX {
            let moved = self.world.perform(0, Fault::None).unwrap()
                || self.world.deliver(0, false).unwrap()
                || self.world.wait().unwrap();
            if !moved {
                return;
            }
        }
        panic!("C3: the schedule never comes to rest");
    }
}

const LIMIT: Nanos = Nanos(1_000);

fn workflow_step() -> StepName {
    StepName::parse("step").unwrap()
}

fn name(key: u8) -> String {
    format!("key-{key}")
}

fn spec(ask: &Ask) -> RunSpec {
    let what = format!("{:?} {:?} {} {:?}", ask.profile, ask.amount, ask.priced, ask.claims);
    RunSpec {
        name: None,
        profile: ask.profile,
        manifest: Digest::of(if ask.claims == Some(false) { b"n" } else { b"m" }),
        sealed: Digest::of(b"s"),
        program: "agent".into(),
        owner: Owner { uid: 1000, gid: 1000 },
        budget: ask.amount.map(|n| BudgetAsk { account: account(), amount: Nanos(n) }),
        priced: ask.priced,
        limits: Limits::default(),
        tty: false,
        foreground: ask.foreground,
        idempotency: ask.key.map(|key| IdempotencyKey::parse(&name(key)).unwrap()),
        request: Digest::of(what.as_bytes()),
        writable_workspace: ask.traits.writable,
        step: ask.claims.map(|_| workflow_step()),
    }
}

struct Machine;

impl StateMachineTest for Machine {
    type SystemUnderTest = Supervisor;
    type Reference = Schedules;

    fn init_test(_: &Asked) -> Supervisor {
        let settings = Settings {
            max_concurrent: 2,
            queue_max: 3,
            uid_range: Some((60_000, 5)),
            ..Settings::default()
        };
        let (world, born) = World::new(settings, Fuse::default(), LIMIT);
        born.unwrap();
        Supervisor { world, ids: Vec::new(), keys: BTreeMap::new(), faults: Vec::new() }
    }

    fn apply(mut supervisor: Supervisor, _: &Asked, step: Step) -> Supervisor {
        if supervisor.step(step).is_err() {
            // J5: the process stops; reopening tells what happened.
            supervisor.crash(Crash::HelperKills);
        }
        supervisor
    }

    fn check_invariants(supervisor: &Supervisor, _: &Asked) {
        let mut world = supervisor.world.clone();
        let mut wrongs = world.wrongs();
        wrongs.extend(supervisor.faults.iter().cloned());
        wrongs.extend(world.check_stored().err());
        assert!(wrongs.is_empty(), "{wrongs:#?}\n{}", tail(&world));
    }

    fn teardown(mut supervisor: Supervisor, asked: Asked) {
        supervisor.come_to_rest();
        Self::check_invariants(&supervisor, &asked);
        let unfinished = supervisor.world.unfinished();
        assert!(unfinished.is_empty(), "{unfinished:#?}\n{}", tail(&supervisor.world));
    }
}

/// The end of the journal, for the reader of a failure.
fn tail(world: &World) -> String {
    let skip = world.driver.journal.len().saturating_sub(40);
    let line = |r: &atenea_core::event::Recorded| {
        let text: String = format!("{:?}", r.event).chars().take(140).collect();
        format!("{} {text}\n", r.seq)
    };
    world.driver.journal.iter().skip(skip).map(line).collect()
}

fn config() -> Config {
    // What a program broken on purpose does is no regression to keep.
    let seeds = if cfg!(feature = "broken") {
        FileFailurePersistence::Off
    } else {
        FileFailurePersistence::Direct("tests/model.regressions.txt")
    };
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { 64 };
    Config { cases, failure_persistence: Some(Box::new(seeds)), ..Config::default() }
}

proptest_state_machine::prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn every_schedule_keeps_the_invariants_and_comes_to_rest(sequential 20..160 => Machine);
}
