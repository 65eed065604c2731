//! An independent look at the journal: a second, much smaller fold that knows the invariants and
//! nothing of how `decide` and `apply` uphold them.

use std::collections::{BTreeMap, BTreeSet};

use atenea_core::event::{CleanupStep, Event, Recorded, RunSpec, Step};
use atenea_core::state::RUN_EVENTS_MAX;
use atenea_core::{AccountName, Digest, RunId, State, StepName};

/// One run as the journal tells it.
#[derive(Clone, Debug)]
struct Life {
    spec: RunSpec,
    ready: BTreeSet<Step>,
    gone: bool,
    started: bool,
    held: Option<u64>,
    cleaned: BTreeSet<CleanupStep>,
    settled: bool,
    refused: bool,
    approved: bool,
    receipts: u32,
    exports: u32,
    exports_asked: u32,
    events: u64,
}

/// One account as the journal tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Books {
    limit: u64,
    spent: u64,
    held: u64,
}

/// Looks at every event once.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// What broke, with the invariant's id.
    pub wrongs: Vec<String>,
    lives: BTreeMap<RunId, Life>,
    accounts: BTreeMap<AccountName, Books>,
    /// Of each step: digest, end on the wall clock, runs that are left.
    approvals: BTreeMap<StepName, (Digest, u64, u32)>,
    latest_wall_ms: u64,
    seq: u64,
}

/// Events beyond the bound that what ends a run may still need.
const EVENTS_AFTER_BOUND: u64 = 16;

impl Watch {
    /// Looks at the next durable event.
    pub fn see(&mut self, recorded: &Recorded) {
        self.seq += 1;
        self.latest_wall_ms = self.latest_wall_ms.max(recorded.at.wall_ms);
        self.hold(recorded.seq == self.seq, "J2: sequence numbers have a gap", None);
        match &recorded.event {
            Event::SupervisorStarted { .. } => {
                // Effects of another generation are void: steps have to be done again.
                self.lives.values_mut().for_each(|life| life.ready.clear());
            }
            Event::BudgetSet { account, limit, .. } => {
                self.accounts.entry(account.clone()).or_default().limit = limit.0;
            }
            Event::PeriodOpened { account, .. } => {
                self.accounts.entry(account.clone()).or_default().spent = 0;
            }
            Event::ApprovalGiven { step, manifest, expires_ms, uses, .. } => {
                let end = recorded.at.wall_ms + expires_ms;
                self.approvals.insert(step.clone(), (*manifest, end, *uses));
            }
            Event::RunRequested { run, spec } => self.requested(run, spec),
            event => {
                if let Some(run) = event.run().cloned() {
                    self.see_run(&run, event);
                }
            }
        }
        let over = |b: &Books| b.spent + b.held > b.limit;
        let over: Vec<String> = self
            .accounts
            .iter()
            .filter(|(_, b)| over(b))
            .map(|(n, b)| format!("{n} {b:?}"))
            .collect();
        self.hold(over.is_empty(), &format!("B1: more than the limit: {over:?}"), None);
    }

    /// Compares the live ledger with this one.
    pub fn compare(&mut self, state: &State) {
        for (name, account) in &state.ledger.accounts {
            let live =
                Books { limit: account.limit.0, spent: account.spent.0, held: account.held.0 };
            let told = self.accounts.get(name).copied().unwrap_or_default();
            if live != told {
                self.wrongs
                    .push(format!("B3: account {name} is {live:?}, the journal says {told:?}"));
            }
        }
        if let Err(why) = state.ledger.check() {
            self.wrongs.push(format!("B4: {why}"));
        }
    }

    fn hold(&mut self, good: bool, what: &str, run: Option<&RunId>) {
        if !good {
            let run = run.map_or(String::new(), |run| format!(" ({run})"));
            self.wrongs.push(format!("{what}{run} at {}", self.seq));
        }
    }

    fn requested(&mut self, run: &RunId, spec: &RunSpec) {
        let life = Life {
            spec: spec.clone(),
            ready: BTreeSet::new(),
            gone: false,
            started: false,
            held: None,
            cleaned: BTreeSet::new(),
            settled: false,
            refused: false,
            approved: false,
            receipts: 0,
            exports: 0,
            exports_asked: 0,
            events: 1,
        };
        let fresh = self.lives.insert(run.clone(), life).is_none();
        self.hold(fresh, "B4: a run id is used twice", Some(run));
    }

    fn see_run(&mut self, run: &RunId, event: &Event) {
        let Some(mut life) = self.lives.get(run).cloned() else {
            return self.hold(false, "J2: an event of a run nobody requested", Some(run));
        };
        life.events += 1;
        let mut found = Vec::new();
        self.approval(&mut life, event, &mut found);
        before_agent(&mut life, event, &mut found);
        after_agent(&mut life, event, &mut found);
        self.money(&mut life, event, &mut found);
        if life.events > RUN_EVENTS_MAX + EVENTS_AFTER_BOUND {
            found.push("J7: a run has too many events");
        }
        for what in found {
            self.hold(false, what, Some(run));
        }
        self.lives.insert(run.clone(), life);
    }

    /// S3: a run that claims an approval is admitted with one of its manifest, which lives and is not used up.
    fn approval(&mut self, life: &mut Life, event: &Event, found: &mut Vec<&'static str>) {
        match event {
            Event::ApprovalUsed { step, .. } => {
                life.approved = true;
                let wall_ms = self.latest_wall_ms;
                match self.approvals.get_mut(step) {
                    Some((manifest, end, left))
                        if *manifest == life.spec.manifest && wall_ms < *end && *left > 0 =>
                    {
                        *left -= 1;
                    }
                    _ => found.push("S3: an approval is used that is none"),
                }
            }
            Event::RunAdmitted { .. } if life.spec.step.is_some() && !life.approved => {
                found.push("S3: a run of a step is admitted without its approval");
            }
            _ => {}
        }
    }

    fn money(&mut self, life: &mut Life, event: &Event, found: &mut Vec<&'static str>) {
        match event {
            Event::BudgetHeld { account, amount, .. } => {
                if life.held.replace(amount.0).is_some() || life.refused {
                    found.push("B4: a second hold, or one of a refused run");
                }
                self.accounts.entry(account.clone()).or_default().held += amount.0;
            }
            Event::RunRefused { .. } => {
                life.refused = true;
                if life.held.is_some() {
                    found.push("B4: a refused run has a hold");
                }
            }
            Event::RunSettled { reported, unknown, .. } => {
                if std::mem::replace(&mut life.settled, true) {
                    found.push("B4: a hold is resolved twice");
                }
                let held = life.held.unwrap_or(0);
                let may_have_spent = life.spec.priced && life.gone;
                if may_have_spent && reported.0 + unknown.0 != held {
                    found.push("B6: unknown spend does not stay held");
                }
                if !may_have_spent && (reported.0, unknown.0) != (0, 0) {
                    found.push("B7: a run that can spend nothing has spent");
                }
                if let Some(ask) = &life.spec.budget {
                    let books = self.accounts.entry(ask.account.clone()).or_default();
                    books.held = books.held.saturating_sub(held.saturating_sub(unknown.0));
                    books.spent += reported.0;
                }
            }
            _ => {}
        }
    }
}

/// S1, B2, R3: what has to be there before a step is even intended.
fn before_agent(life: &mut Life, event: &Event, found: &mut Vec<&'static str>) {
    let ready = match event {
        Event::StepIntended { step, .. } => {
            if life.spec.budget.is_some() && life.held.is_none() {
                found.push("B2: a step without a hold");
            }
            if !needs(*step, &life.spec).iter().all(|s| life.ready.contains(s)) {
                found.push("S1: a step before those it needs");
            }
            if *step == Step::Go && std::mem::replace(&mut life.gone, true) {
                found.push("R3: an agent is started twice");
            }
            return;
        }
        Event::WorkspaceReady { .. } => Step::Workspace,
        Event::GroupReady { .. } => Step::Group,
        Event::PolicyReady { .. } => Step::Policy,
        Event::SandboxCreated { self_test, .. } => {
            let enforced = life.spec.profile.is_enforced();
            let bad = self_test.iter().any(|t| !t.refused) || (enforced && self_test.is_empty());
            if bad {
                found.push("S4: a sandbox whose self-test failed");
            }
            Step::Sandbox
        }
        Event::BoundaryReady { .. } => Step::Boundary,
        Event::AgentStarted { .. } => {
            if !needs(Step::Go, &life.spec).iter().all(|s| life.ready.contains(s)) || !life.gone {
                found.push("S1: an agent before everything around it is journalled");
            }
            life.started = true;
            Step::Go
        }
        _ => return,
    };
    life.ready.insert(ready);
}

fn needs(step: Step, spec: &RunSpec) -> &'static [Step] {
    let enforced = spec.profile.is_enforced();
    match step {
        Step::Workspace | Step::Group | Step::Policy => &[],
        Step::Sandbox if enforced => &[Step::Workspace, Step::Group, Step::Policy],
        Step::Sandbox => &[Step::Group],
        Step::Boundary => &[Step::Workspace, Step::Group, Step::Policy, Step::Sandbox],
        Step::Go if enforced => {
            &[Step::Workspace, Step::Group, Step::Policy, Step::Sandbox, Step::Boundary]
        }
        Step::Go => &[Step::Group, Step::Sandbox],
    }
}

/// C1, C2, C4, R1: the order of the end.
fn after_agent(life: &mut Life, event: &Event, found: &mut Vec<&'static str>) {
    let step = match event {
        Event::CleanupDone { step, .. } => *step,
        Event::WorkspaceSealed { .. } => CleanupStep::Workspace,
        Event::WorkspaceRemoved { .. } => {
            if life.gone {
                found.push("C4: a workspace that an agent may have written to is removed");
            }
            CleanupStep::Workspace
        }
        Event::ReceiptIssued { .. } => {
            life.receipts += 1;
            if life.receipts > 1 || !(life.settled || life.refused) {
                found.push("R1: a second receipt, or one before settlement");
            }
            return;
        }
        Event::Exported { .. } => {
            // A person may ask again, for another ref; nobody else may.
            life.exports += 1;
            if life.exports > life.exports_asked {
                found.push("R3: a workspace is exported more often than it was asked for");
            }
            return;
        }
        Event::ExportIntended { .. } | Event::DiscardIntended { .. } => {
            life.exports_asked += u32::from(matches!(event, Event::ExportIntended { .. }));
            if !life.cleaned.contains(&CleanupStep::Workspace) || life.receipts == 0 {
                found.push("C4: a workspace is given away before it is sealed");
            }
            return;
        }
        _ => return,
    };
    life.cleaned.insert(step);
    if !life.cleaned.contains(&CleanupStep::Token) {
        found.push("C2: a cleanup step is done before the token is revoked");
    }
    if step == CleanupStep::Workspace && !life.cleaned.contains(&CleanupStep::Group) {
        found.push("C1: a workspace is closed before its group is gone");
    }
}
