//! A host that exists only as sets: workspaces, groups, processes, tokens, listeners, refs and
//! receipts. It does what effects say, remembers what no effect may do, and loses at a crash what a
//! real host loses.

use std::collections::{BTreeMap, BTreeSet};

use atenea_core::effect::Effect;
use atenea_core::event::{
    BoundaryInfo, Chore, CleanupStep, Exit, ExportTarget, ProcessIdentity, SelfTestResult, Step,
    Usage,
};
use atenea_core::input::Observation;
use atenea_core::{BootId, Code, Digest, Refusal, RunId};

/// How an effect goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not.
    None,
    /// Nothing is done and failure is reported.
    Fails,
    /// It is done and failure is reported.
    DoneButFailed,
}

/// What dies with the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The helper sees EOF and kills every group.
    HelperKills,
    /// Helper and supervisor are killed together; processes stay until somebody kills them.
    ProcessesSurvive,
    /// The machine restarts: only files are left.
    Reboot,
}

/// What is particular about a run's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// It gets a private clone.
    pub writable: bool,
    /// It is contained.
    pub enforced: bool,
    /// It does not react to SIGTERM.
    pub stubborn: bool,
    /// It does not exist inside the sandbox.
    pub missing: bool,
    /// Files it changes as soon as it runs.
    pub changes: u64,
}

/// A private clone.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tree {
    /// An agent ran with it.
    pub saw_agent: bool,
    /// Files that differ from the base.
    pub changed: u64,
}

/// What exists of one run.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// Its private clone, whole or half-made.
    pub tree: Option<Tree>,
    /// Its control group.
    pub group: bool,
    /// Its token is valid.
    pub token: bool,
    /// `atenea-init` lives.
    pub sandbox: bool,
    /// The agent lives.
    pub agent: bool,
    /// Its listeners are served.
    pub boundary: bool,
    /// Its receipt is on disk.
    pub receipt: bool,
    /// Refs written for it, with their commits.
    pub refs: BTreeMap<String, String>,
}

/// The host.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// What exists.
    pub places: BTreeMap<RunId, Place>,
    /// Programs.
    pub traits: BTreeMap<RunId, Traits>,
    /// Runs whose workspace a person gave up.
    pub given_up: BTreeSet<RunId>,
    /// Acts that break an invariant, with its id.
    pub wrongs: Vec<String>,
    /// The boot.
    pub boot: u32,
}

impl Host {
    /// Something of a run, made when it is first touched.
    pub fn place(&mut self, run: &RunId) -> &mut Place {
        self.places.entry(run.clone()).or_default()
    }

    /// Runs whose agent lives.
    pub fn agents(&self) -> Vec<RunId> {
        self.places.iter().filter(|(_, p)| p.agent).map(|(id, _)| id.clone()).collect()
    }

    /// The id of this boot.
    pub fn boot_id(&self) -> BootId {
        BootId(format!("boot-{}", self.boot))
    }

    /// What is left of the host after a crash of the supervisor.
    pub fn crash(&mut self, crash: Crash) {
        for place in self.places.values_mut() {
            place.token = false;
            place.boundary = false;
            if crash != Crash::ProcessesSurvive {
                place.agent = false;
                place.sandbox = false;
            }
            if crash == Crash::Reboot {
                place.group = false;
            }
        }
        if crash == Crash::Reboot {
            self.boot += 1;
        }
    }

    /// The agent ends by itself.
    pub fn agent_ends(&mut self, run: &RunId, exit: Exit) -> Vec<Observation> {
        let place = self.place(run);
        if !place.agent {
            return Vec::new();
        }
        place.agent = false;
        place.sandbox = false;
        vec![Observation::Exited { run: run.clone(), exit, usage: Usage::default() }]
    }

    /// Executes an effect.
    pub fn perform(&mut self, effect: &Effect, fault: Fault) -> Vec<Observation> {
        if fault != Fault::Fails {
            let answer = self.act(effect);
            if fault == Fault::None {
                return answer;
            }
        } else if let Effect::PrepareWorkspace { run } = effect {
            self.make_tree(run);
        }
        failure(effect).into_iter().collect()
    }

    fn wrong(&mut self, run: &RunId, what: &str) {
        self.wrongs.push(format!("{what} ({run})"));
    }

    fn make_tree(&mut self, run: &RunId) {
        if self.traits.get(run).is_some_and(|t| t.writable) {
            self.place(run).tree.get_or_insert_default();
        }
    }

    fn act(&mut self, effect: &Effect) -> Vec<Observation> {
        match effect.clone() {
            Effect::PrepareWorkspace { run } => {
                self.make_tree(&run);
                let base_tree = Some("base".to_owned());
                vec![Observation::WorkspaceReady { run, base_tree, base_commit: None }]
            }
            Effect::MakeGroup { run } => {
                self.place(&run).group = true;
                vec![Observation::GroupReady { record: format!("group of {run}"), run }]
            }
            Effect::CompilePolicy { run } => {
                self.place(&run).token = true;
                vec![Observation::PolicyReady { token: Digest::of(run.as_str().as_bytes()), run }]
            }
            Effect::CreateSandbox { run } => self.create_sandbox(run),
            Effect::BindBoundary { run } => {
                self.place(&run).boundary = true;
                vec![Observation::BoundaryReady { run }]
            }
            Effect::StartAgent { run } => self.start_agent(run),
            Effect::TerminateAgent { run } => {
                let stubborn = self.traits.get(&run).is_some_and(|t| t.stubborn);
                if stubborn { Vec::new() } else { self.agent_ends(&run, Exit::Signal(15)) }
            }
            Effect::KillGroup { run } => self.kill(&run),
            Effect::AbortSteps { .. } => Vec::new(),
            other => self.act_late(other),
        }
    }

    fn create_sandbox(&mut self, run: RunId) -> Vec<Observation> {
        if !self.place(&run).group {
            self.wrong(&run, "S1: a sandbox without a control group");
        }
        self.place(&run).sandbox = true;
        let identity =
            ProcessIdentity { boot: self.boot_id(), pid: 7, start_ticks: 1, pidfd_inode: 1 };
        let self_test = vec![SelfTestResult { name: "connect-outside".into(), refused: true }];
        let boundary = BoundaryInfo::default();
        vec![Observation::SandboxCreated { run, identity, boundary, self_test }]
    }

    fn start_agent(&mut self, run: RunId) -> Vec<Observation> {
        let Some(traits) = self.traits.get(&run).copied() else { return Vec::new() };
        let place = self.place(&run);
        let whole = place.token && place.boundary && (place.tree.is_some() || !traits.writable);
        let ready = place.group && (whole || !traits.enforced);
        if place.sandbox && !ready {
            self.wrong(&run, "S1: an agent before everything around it is in place");
        }
        let place = self.place(&run);
        let code = match (place.sandbox, traits.missing) {
            (false, _) => Code::ProcessLaunchFailed,
            (true, true) => Code::ProcessNotFound,
            (true, false) => {
                place.agent = true;
                if let Some(tree) = &mut place.tree {
                    tree.saw_agent = true;
                    tree.changed = traits.changes;
                }
                return vec![Observation::AgentStarted { run }];
            }
        };
        place.sandbox = false;
        let refusal = Refusal::new(code, "simulated");
        vec![Observation::StepFailed { run, step: Step::Go, refusal }]
    }

    fn kill(&mut self, run: &RunId) -> Vec<Observation> {
        let place = self.place(run);
        if !place.agent && !place.sandbox {
            return Vec::new();
        }
        place.agent = false;
        place.sandbox = false;
        let exit = Exit::Signal(9);
        vec![Observation::Exited { run: run.clone(), exit, usage: Usage::default() }]
    }

    fn act_late(&mut self, effect: Effect) -> Vec<Observation> {
        let done = |run, step| vec![Observation::CleanupDone { run, step }];
        match effect {
            Effect::RevokeToken { run } => {
                self.place(&run).token = false;
                done(run, CleanupStep::Token)
            }
            Effect::RemoveGroup { run } => {
                if self.place(&run).token {
                    self.wrong(&run, "C2: a cleanup step while the token is valid");
                }
                let mut seen = self.kill(&run);
                self.place(&run).group = false;
                seen.extend(done(run, CleanupStep::Group));
                seen
            }
            Effect::CloseBoundary { run } => {
                self.place(&run).boundary = false;
                done(run, CleanupStep::Boundary)
            }
            Effect::SealWorkspace { run } => self.seal(run),
            Effect::RemoveWorkspace { run } => {
                if self.place(&run).tree.as_ref().is_some_and(|t| t.saw_agent) {
                    self.wrong(&run, "C4: a workspace that an agent saw is removed");
                }
                self.place(&run).tree = None;
                vec![Observation::WorkspaceRemoved { run }]
            }
            Effect::WriteReceipt { run } => {
                self.place(&run).receipt = true;
                let digest = Digest::of(format!("receipt of {run}").as_bytes());
                vec![Observation::ReceiptWritten { run, digest }]
            }
            Effect::Export { run, target, at_wall_ms } => self.export(run, &target, at_wall_ms),
            Effect::Discard { run } => self.discard(run),
            _ => Vec::new(),
        }
    }

    fn seal(&mut self, run: RunId) -> Vec<Observation> {
        if self.place(&run).agent || self.place(&run).group {
            self.wrong(&run, "C1: a workspace is sealed while its group exists");
        }
        let changed = self.place(&run).tree.as_ref().map_or(0, |t| t.changed);
        vec![Observation::WorkspaceSealed { run, result_tree: Some("result".into()), changed }]
    }

    /// A compare-and-swap of one ref; the commit depends on the run and the recorded date only.
    fn export(&mut self, run: RunId, target: &ExportTarget, at_wall_ms: u64) -> Vec<Observation> {
        if self.place(&run).tree.is_none() {
            self.wrong(&run, "C4: an export of a workspace that is gone");
        }
        let commit = format!("commit of {run} at {at_wall_ms}");
        if let ExportTarget::Ref(name) = target {
            let found = self.place(&run).refs.get(name).cloned();
            // R3: only the same commit again is taken for done; a person who asks anew is told.
            if found.is_some_and(|old| old != commit) {
                let refusal = Refusal::new(Code::ExportRefExists, "simulated");
                return vec![Observation::ExportFailed { run, refusal }];
            }
            self.place(&run).refs.insert(name.clone(), commit.clone());
        }
        vec![Observation::Exported { run, commit: Some(commit) }]
    }

    fn discard(&mut self, run: RunId) -> Vec<Observation> {
        let changed = self.place(&run).tree.as_ref().map_or(0, |t| t.changed);
        if changed > 0 && !self.given_up.contains(&run) {
            self.wrong(&run, "C4: work that nobody gave up is deleted");
        }
        self.place(&run).tree = None;
        vec![Observation::Discarded { run }]
    }
}

/// The step that an effect on the way to an agent belongs to.
pub fn step_of(effect: &Effect) -> Option<(RunId, Step)> {
    let (run, step) = match effect {
        Effect::PrepareWorkspace { run } => (run, Step::Workspace),
        Effect::MakeGroup { run } => (run, Step::Group),
        Effect::CompilePolicy { run } => (run, Step::Policy),
        Effect::CreateSandbox { run } => (run, Step::Sandbox),
        Effect::BindBoundary { run } => (run, Step::Boundary),
        Effect::StartAgent { run } => (run, Step::Go),
        _ => return None,
    };
    Some((run.clone(), step))
}

/// What is reported when an effect fails; nothing for those that have no answer.
pub fn failure(effect: &Effect) -> Option<Observation> {
    let refusal = Refusal::new(Code::FsIo, "simulated");
    if let Some((run, step)) = step_of(effect) {
        return Some(Observation::StepFailed { run, step, refusal });
    }
    let (run, step) = match effect {
        Effect::RevokeToken { run } => (run, CleanupStep::Token),
        Effect::RemoveGroup { run } => (run, CleanupStep::Group),
        Effect::CloseBoundary { run } => (run, CleanupStep::Boundary),
        Effect::SealWorkspace { run } | Effect::RemoveWorkspace { run } => {
            (run, CleanupStep::Workspace)
        }
        Effect::WriteReceipt { run } => {
            let (run, chore) = (run.clone(), Chore::Receipt);
            return Some(Observation::ChoreFailed { run, chore, refusal });
        }
        Effect::Discard { run } => {
            let (run, chore) = (run.clone(), Chore::Discard);
            return Some(Observation::ChoreFailed { run, chore, refusal });
        }
        Effect::Export { run, .. } => {
            return Some(Observation::ExportFailed { run: run.clone(), refusal });
        }
        _ => return None,
    };
    Some(Observation::CleanupFailed { run: run.clone(), step, refusal })
}
