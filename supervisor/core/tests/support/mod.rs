//! A bench for the state machine: decides, records and applies inputs the way the driver does, and
//! answers effects the way a host on which everything works does.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a module of test binaries, each of which uses a part of it"
)]

use atenea_core::effect::Effect;
use atenea_core::event::{
    BoundaryInfo, BudgetAsk, CleanupStep, Event, Exit, Owner, Period, ProcessIdentity, Recorded,
    RunSpec, SelfTestResult, Stamp, Step, Usage,
};
use atenea_core::input::{Command, Input, Observation};
use atenea_core::{
    AccountName, BootId, Code, Digest, IdempotencyKey, Limits, Nanos, Phase, Profile, Refusal, Run,
    RunId, Settings, State, StepName, apply, decide,
};

/// The run all tests talk about.
pub fn run_id() -> RunId {
    RunId::from_random(7)
}

pub fn account() -> AccountName {
    AccountName::parse("default").unwrap()
}

pub fn boot(n: u32) -> BootId {
    BootId(format!("boot-{n}"))
}

/// A writable run with a hold of one dollar.
pub fn spec() -> RunSpec {
    RunSpec {
        name: None,
        profile: Profile::WorkspaceWrite,
        manifest: Digest::of(b"manifest"),
        sealed: Digest::of(b"sealed"),
        program: "agent".into(),
        owner: Owner { uid: 1000, gid: 1000 },
        budget: Some(BudgetAsk { account: account(), amount: Nanos(1_000_000_000) }),
        priced: true,
        limits: Limits::default(),
        tty: false,
        foreground: true,
        idempotency: Some(IdempotencyKey::parse("key").unwrap()),
        request: Digest::of(b"request"),
        writable_workspace: true,
        step: None,
    }
}

pub fn read_only() -> RunSpec {
    RunSpec { profile: Profile::Read, writable_workspace: false, priced: false, ..spec() }
}

pub fn trusted_host() -> RunSpec {
    RunSpec { profile: Profile::TrustedHost, ..read_only() }
}

pub fn identity() -> ProcessIdentity {
    ProcessIdentity { boot: boot(1), pid: 4_242, start_ticks: 99, pidfd_inode: 7 }
}

pub fn self_test(refused: bool) -> Vec<SelfTestResult> {
    vec![SelfTestResult { name: "connect-outside".into(), refused }]
}

pub fn refusal(code: Code) -> Refusal {
    Refusal::new(code, "as the test wants")
}

pub fn request(spec: RunSpec) -> Input {
    Input::Command(Command::Request { run: run_id(), spec: Box::new(spec), refusal: None })
}

pub fn step() -> StepName {
    StepName::parse("workflow/step-1").unwrap()
}

/// Allows what [`spec`] asks for one run of [`step`], for a minute.
pub fn approve() -> Input {
    let manifest = spec().manifest;
    Input::Command(Command::Approve { step: step(), manifest, by: 0, expires_ms: 60_000, uses: 1 })
}

pub fn cancel(kill: bool) -> Input {
    let reason = "a person asked".to_owned();
    Input::Command(Command::Cancel { run: run_id(), reason, grace_ms: None, kill })
}

pub fn seen(observation: Observation) -> Input {
    Input::Observation(observation)
}

pub fn exited(exit: Exit) -> Input {
    seen(Observation::Exited { run: run_id(), exit, usage: Usage::default() })
}

/// The event's name, with the step it is about.
pub fn label(event: &Event) -> String {
    let name = event.name();
    match event {
        Event::StepIntended { step, .. } | Event::StepFailed { step, .. } => {
            format!("{name}({step:?})")
        }
        Event::CleanupDone { step, .. }
        | Event::CleanupFailed { step, .. }
        | Event::CleanupGivenUp { step, .. } => format!("{name}({step:?})"),
        Event::DeadlinePassed { deadline, .. } => format!("{name}({deadline:?})"),
        Event::ChoreFailed { chore, .. } => format!("{name}({chore:?})"),
        _ => name,
    }
}

/// The variant's name of anything with a derived `Debug`.
pub fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}

/// What a host answers on which everything works; nothing where an effect has no answer.
pub fn good_answer(effect: &Effect) -> Option<Observation> {
    let run = run_id();
    let done = |step| Some(Observation::CleanupDone { run: run_id(), step });
    match effect {
        Effect::PrepareWorkspace { .. } => {
            let (base_tree, base_commit) = (Some("t0".into()), Some("c0".into()));
            Some(Observation::WorkspaceReady { run, base_tree, base_commit })
        }
        Effect::MakeGroup { .. } => Some(Observation::GroupReady { run, record: "g".into() }),
        Effect::CompilePolicy { .. } => {
            Some(Observation::PolicyReady { run, token: Digest::of(b"token") })
        }
        Effect::CreateSandbox { .. } => Some(Observation::SandboxCreated {
            run,
            identity: identity(),
            boundary: BoundaryInfo::default(),
            self_test: self_test(true),
        }),
        Effect::BindBoundary { .. } => Some(Observation::BoundaryReady { run }),
        Effect::StartAgent { .. } => Some(Observation::AgentStarted { run }),
        Effect::RevokeToken { .. } => done(CleanupStep::Token),
        Effect::RemoveGroup { .. } => done(CleanupStep::Group),
        Effect::CloseBoundary { .. } => done(CleanupStep::Boundary),
        Effect::SealWorkspace { .. } => {
            let result_tree = Some("t1".into());
            Some(Observation::WorkspaceSealed { run, result_tree, changed: 3 })
        }
        Effect::RemoveWorkspace { .. } => Some(Observation::WorkspaceRemoved { run }),
        Effect::WriteReceipt { .. } => {
            Some(Observation::ReceiptWritten { run, digest: Digest::of(b"receipt") })
        }
        Effect::Export { .. } => Some(Observation::Exported { run, commit: Some("c1".into()) }),
        Effect::Discard { .. } => Some(Observation::Discarded { run }),
        Effect::AbortSteps { .. } | Effect::TerminateAgent { .. } | Effect::KillGroup { .. } => {
            None
        }
    }
}

/// State, journal and effects that are out.
#[derive(Clone)]
pub struct Bench {
    pub state: State,
    pub settings: Settings,
    pub now: Stamp,
    pub journal: Vec<Recorded>,
    pub out: Vec<Effect>,
}

impl Bench {
    /// A started supervisor with an account of ten dollars.
    pub fn new() -> Self {
        let mut bench = Bench {
            state: State::default(),
            settings: Settings::default(),
            now: Stamp { wall_ms: 1_795_910_400_000, boot_ms: 1_000 },
            journal: Vec::new(),
            out: Vec::new(),
        };
        let start = Command::Start { boot: boot(1), version: "0.1.0".into() };
        bench.tell(Input::Command(start));
        bench.tell(Input::Command(Command::SetBudget {
            account: account(),
            limit: Nanos(10_000_000_000),
            per: Some(Period::Month),
        }));
        bench
    }

    /// A bench whose run was requested and whose effects are answered until it is in `phase`.
    pub fn at(spec: RunSpec, phase: Phase) -> Self {
        let mut bench = Bench::new();
        bench.tell(request(spec));
        bench.until(phase);
        bench
    }

    /// Records events as they are, without asking `decide`.
    pub fn record(&mut self, events: Vec<Event>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            let recorded = Recorded { seq: self.state.seq + 1, at: self.now, event };
            effects.extend(apply(&mut self.state, &recorded));
            self.journal.push(recorded);
        }
        self.out.extend(effects.iter().cloned());
        effects
    }

    /// One input and nothing that follows from it by itself.
    pub fn give(&mut self, input: Input) -> Result<(Vec<Event>, Vec<Effect>), Refusal> {
        let events = decide(&self.state, &self.settings, self.now, input)?.events;
        let effects = self.record(events.clone());
        Ok((events, effects))
    }

    /// One input and all that follows from it by itself; answers with the labels of the events.
    pub fn tell(&mut self, input: Input) -> Vec<String> {
        self.try_tell(input).unwrap()
    }

    /// The same, with the refusal when there is one.
    pub fn try_tell(&mut self, input: Input) -> Result<Vec<String>, Refusal> {
        let (mut events, _) = self.give(input)?;
        for _ in 0..1_000 {
            let (more, _) = self.give(Input::Advance)?;
            if more.is_empty() {
                return Ok(events.iter().map(label).collect());
            }
            events.extend(more);
        }
        panic!("Advance never ends: {:?}", self.journal.iter().rev().take(5).collect::<Vec<_>>());
    }

    /// Moves both clocks.
    pub fn pass(&mut self, ms: u64) -> Vec<String> {
        self.now.boot_ms += ms;
        self.now.wall_ms += ms;
        self.tell(Input::Advance)
    }

    /// Takes the effects that are out.
    pub fn take(&mut self) -> Vec<String> {
        self.out.drain(..).map(|e| variant(&e)).collect()
    }

    /// Answers effects that are out, oldest first, until the run is in `phase`.
    pub fn until(&mut self, phase: Phase) {
        while self.run().phase != phase {
            assert!(!self.out.is_empty(), "nothing is out in {:?}", self.run().phase);
            let effect = self.out.remove(0);
            if let Some(answer) = good_answer(&effect) {
                self.tell(seen(answer));
            }
        }
    }

    /// Answers effects that are out, oldest first, until `step` is out.
    pub fn until_out(&mut self, step: Step) {
        while !self.run().in_flight.contains(&step) {
            let effect = self.out.remove(0);
            self.tell(seen(good_answer(&effect).expect("a step has an answer")));
        }
    }

    /// Answers effects that are out, oldest first, until this cleanup step is out.
    pub fn until_cleaning(&mut self, step: CleanupStep) {
        while !self.run().cleanup.get(&step).is_some_and(|c| c.started) {
            let effect = self.out.remove(0);
            self.tell(seen(good_answer(&effect).expect("a cleanup step has an answer")));
        }
    }

    /// Answers everything until nothing is out.
    pub fn settle(&mut self) {
        while !self.out.is_empty() {
            let effect = self.out.remove(0);
            if let Some(answer) = good_answer(&effect) {
                self.tell(seen(answer));
            }
        }
    }

    /// The supervisor is gone; the next one folds the journal and starts.
    pub fn crash(&mut self) -> Vec<String> {
        let mut state = State::default();
        for recorded in &self.journal {
            apply(&mut state, recorded);
        }
        assert_eq!(state, self.state, "R2: the fold is the state");
        self.state = state;
        self.out.clear();
        self.tell(Input::Command(Command::Start { boot: boot(2), version: "0.1.0".into() }))
    }

    pub fn run(&self) -> &Run {
        self.state.run(&run_id()).unwrap()
    }

    /// Held and spent of the account.
    pub fn money(&self) -> (u64, u64) {
        let account = &self.state.ledger.accounts[&account()];
        (account.held.0, account.spent.0)
    }
}
