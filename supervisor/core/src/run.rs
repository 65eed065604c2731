//! One run as the fold sees it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{
    BoundaryInfo, Chore, CleanupStep, Deadline, Exit, ExportTarget, ProcessIdentity, Quality,
    RunSpec, SelfTestResult, Stamp, Step, Usage, Violation,
};
use crate::{Code, Digest, Nanos, RunId};

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Has an id, not judged yet.
    Requested,
    /// Judged and refused; its receipt is not written yet.
    Refused,
    /// Judged and good; money is not held yet.
    Admitted,
    /// Money is held; waits for a free place.
    Queued,
    /// Workspace, group and policy are being made.
    Preparing,
    /// The sandbox is being made; the agent does not run.
    Starting,
    /// The agent may run.
    Running,
    /// It was told to stop.
    Stopping,
    /// It ended; what it used is being removed.
    Cleaning,
    /// Clean; the receipt is being written.
    Settling,
    /// Over.
    Ended,
}

impl Phase {
    /// All phases, in the order of a life.
    pub const ALL: [Phase; 11] = [
        Phase::Requested,
        Phase::Refused,
        Phase::Admitted,
        Phase::Queued,
        Phase::Preparing,
        Phase::Starting,
        Phase::Running,
        Phase::Stopping,
        Phase::Cleaning,
        Phase::Settling,
        Phase::Ended,
    ];

    /// The name used in status and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Requested => "requested",
            Phase::Refused => "refused",
            Phase::Admitted => "admitted",
            Phase::Queued => "queued",
            Phase::Preparing => "preparing",
            Phase::Starting => "starting",
            Phase::Running => "running",
            Phase::Stopping => "stopping",
            Phase::Cleaning => "cleaning",
            Phase::Settling => "settling",
            Phase::Ended => "ended",
        }
    }

    /// Whether the run takes one of the places that `max_concurrent` counts.
    pub const fn takes_a_place(self) -> bool {
        matches!(
            self,
            Phase::Preparing | Phase::Starting | Phase::Running | Phase::Stopping | Phase::Cleaning
        )
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The agent returned a status.
    Exited,
    /// The agent died of a signal nobody here sent.
    Signaled,
    /// Its time ran out.
    TimedOut,
    /// Another limit killed it.
    Limit,
    /// A person or client ended it.
    Cancelled,
    /// A guard killed it.
    Killed,
    /// It was never admitted.
    Refused,
    /// It never got as far as an agent.
    Aborted,
    /// The supervisor died while the agent ran.
    Lost,
}

impl Outcome {
    /// The name used in status and receipt.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Exited => "exited",
            Outcome::Signaled => "signaled",
            Outcome::TimedOut => "timed_out",
            Outcome::Limit => "limit",
            Outcome::Cancelled => "cancelled",
            Outcome::Killed => "killed",
            Outcome::Refused => "refused",
            Outcome::Aborted => "aborted",
            Outcome::Lost => "lost",
        }
    }
}

/// What became of the run's own workspace.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    /// There is none: not made yet, read-only, or removed unseen.
    #[default]
    None,
    /// It may exist, complete or half-made.
    Made,
    /// Complete, nobody writes, somebody may miss it (C4).
    Sealed,
    /// An export is on its way; recovery reads the ref.
    Exporting {
        /// Where to.
        target: ExportTarget,
        /// Commit date, so that a repeated export makes the same commit.
        at_wall_ms: u64,
    },
    /// Accepted.
    Exported,
    /// Only deletion is left.
    Discarding,
    /// Deleted.
    Discarded,
}

impl Workspace {
    /// The name used in status.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Workspace::None => "none",
            Workspace::Made => "made",
            Workspace::Sealed => "sealed",
            Workspace::Exporting { .. } => "exporting",
            Workspace::Exported => "exported",
            Workspace::Discarding => "discarding",
            Workspace::Discarded => "discarded",
        }
    }
}

/// One cleanup step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cleanup {
    /// Done for good.
    pub done: bool,
    /// An effect is out.
    pub started: bool,
    /// Tries that failed.
    pub failures: u32,
    /// The last failure.
    pub reason: Option<(Code, String)>,
    /// Settlement does not wait for it any more.
    pub given_up: bool,
}

/// Money of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunMoney {
    /// Held now; after settlement what is still unknown.
    pub held: Nanos,
    /// Held at first.
    pub held_at_start: Nanos,
    /// Reported and spent.
    pub reported: Nanos,
    /// May have been spent; stays held until reconciled (B6).
    pub unknown: Nanos,
    /// How well `reported` is known; `None` before settlement.
    pub quality: Option<Quality>,
}

/// Something that became true after the receipt was issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Amendment {
    /// Sequence of the event.
    pub seq: u64,
    /// `exported`, `discarded` or `cleaned`.
    pub kind: String,
    /// The ref, for an export to one.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none", default)]
    pub reference: Option<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What was asked.
    pub spec: RunSpec,
    /// Where it is.
    pub phase: Phase,
    /// Host uid of its processes.
    pub run_uid: Option<u32>,
    /// Why it ended or will end; set once.
    pub outcome: Option<Outcome>,
    /// The code behind the outcome.
    pub cause: Option<(Code, String)>,
    /// Effects that are out.
    pub in_flight: BTreeSet<Step>,
    /// Steps that are done.
    pub done: BTreeSet<Step>,
    /// The agent may have run (intent of `go` is journalled).
    pub go_intended: bool,
    /// Control group, as the reaper recorded it.
    pub group: Option<String>,
    /// Hash of the token.
    pub token: Option<Digest>,
    /// The sandbox's process.
    pub identity: Option<ProcessIdentity>,
    /// What contains it.
    pub boundary: BoundaryInfo,
    /// Self-test of this very sandbox (S4).
    pub self_test: Vec<SelfTestResult>,
    /// How the agent ended.
    pub exit: Option<Exit>,
    /// Totals and peaks.
    pub usage: Usage,
    /// The next deadline on the boot clock, and what it is.
    pub deadline: Option<(u64, Deadline)>,
    /// Cleanup steps.
    pub cleanup: BTreeMap<CleanupStep, Cleanup>,
    /// Its own workspace.
    pub workspace: Workspace,
    /// Tree it started from.
    pub base_tree: Option<String>,
    /// Commit it started from.
    pub base_commit: Option<String>,
    /// Tree it left.
    pub result_tree: Option<String>,
    /// Files that differ.
    pub changed: u64,
    /// Commit and ref of the export.
    pub exported: Option<(ExportTarget, Option<String>)>,
    /// Money.
    pub money: RunMoney,
    /// Digest of the receipt.
    pub receipt: Option<Digest>,
    /// What happened after the receipt.
    pub amendments: Vec<Amendment>,
    /// Refusals by code.
    pub denials: BTreeMap<Code, u64>,
    /// Recorded violations, oldest first, bounded.
    pub violations: Vec<(u64, Violation)>,
    /// The chore that failed and waits for its next try.
    pub chore_failed: Option<(Chore, (Code, String))>,
    /// Chores that failed so far; the pauses between tries grow with it.
    pub chore_failures: u32,
    /// Sequence of the approval that it used.
    #[serde(default)]
    pub approval: Option<u64>,
    /// Reason of a cancel.
    pub cancel_reason: Option<String>,
    /// Whether a kill was ordered already.
    pub kill_ordered: bool,
    /// Sequence of its first and last event.
    pub seq: (u64, u64),
    /// Sequence of `RunSettled` or `RunRefused`: what the receipt covers.
    pub settled_seq: Option<u64>,
    /// Events recorded for it (J7).
    pub events: u64,
    /// When it was requested.
    pub requested_at: Stamp,
    /// When the agent started.
    pub started_at: Option<Stamp>,
    /// When its receipt was issued.
    pub ended_at: Option<Stamp>,
}

impl Run {
    /// Whether its workspace was given up because the agent had changed nothing in it.
    pub fn left_unchanged(&self) -> bool {
        let given_up = matches!(self.workspace, Workspace::Discarding | Workspace::Discarded);
        given_up && self.go_intended && self.changed == 0
    }

    /// A run that was just requested.
    pub fn new(id: RunId, spec: RunSpec, seq: u64, at: Stamp) -> Self {
        Run {
            id,
            spec,
            phase: Phase::Requested,
            run_uid: None,
            outcome: None,
            cause: None,
            in_flight: BTreeSet::new(),
            done: BTreeSet::new(),
            go_intended: false,
            group: None,
            token: None,
            identity: None,
            boundary: BoundaryInfo::default(),
            self_test: Vec::new(),
            exit: None,
            usage: Usage::default(),
            deadline: None,
            cleanup: BTreeMap::new(),
            workspace: Workspace::None,
            base_tree: None,
            base_commit: None,
            result_tree: None,
            changed: 0,
            exported: None,
            money: RunMoney::default(),
            receipt: None,
            amendments: Vec::new(),
            denials: BTreeMap::new(),
            violations: Vec::new(),
            chore_failed: None,
            chore_failures: 0,
            approval: None,
            cancel_reason: None,
            kill_ordered: false,
            seq: (seq, seq),
            settled_seq: None,
            events: 0,
            requested_at: at,
            started_at: None,
            ended_at: None,
        }
    }

    /// Steps this run needs before its agent starts, in order.
    pub fn steps_needed(&self) -> &'static [Step] {
        if self.spec.profile.is_enforced() {
            &[Step::Workspace, Step::Group, Step::Policy, Step::Sandbox, Step::Boundary, Step::Go]
        } else {
            &[Step::Group, Step::Sandbox, Step::Go]
        }
    }

    /// Sets the outcome unless one is set: the first reason wins.
    pub(crate) fn conclude(&mut self, outcome: Outcome, cause: Option<(Code, String)>) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.cause = cause;
        }
    }

    /// The reason why cleanup hangs, when it does.
    pub fn stuck(&self) -> Option<&(Code, String)> {
        let open = self.cleanup.values().find(|c| !c.done && c.failures > 0);
        open.and_then(|c| c.reason.as_ref()).or(self.chore_failed.as_ref().map(|(_, why)| why))
    }

    /// Steps that are not done although settlement did not wait.
    pub fn leftovers(&self) -> Vec<CleanupStep> {
        self.cleanup.iter().filter(|(_, c)| !c.done && c.given_up).map(|(s, _)| *s).collect()
    }

    /// Exit status a client reports for this run, as design 03 defines it.
    pub fn client_status(&self) -> i32 {
        match (self.outcome, self.exit) {
            (Some(Outcome::TimedOut), _) => 124,
            (Some(Outcome::Refused | Outcome::Aborted | Outcome::Lost) | None, _) => 125,
            (Some(Outcome::Limit | Outcome::Killed), _) => 137,
            (Some(Outcome::Cancelled), _) if self.kill_ordered => 137,
            (Some(Outcome::Cancelled), _) => 143,
            (_, Some(Exit::Status(status))) => status,
            (_, Some(Exit::Signal(signal))) => 128 + signal,
            (_, Some(Exit::Unknown) | None) => 125,
        }
    }
}
