//! Facts. Each is appended to the journal before anything acts on it; the state of the world is a
//! fold over them. Names are past tense; an intent is the fact that we decided to act.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    AccountName, BootId, Code, Digest, Generation, IdempotencyKey, Limits, Nanos, Profile, RunId,
    RunName, StepName,
};

/// When something happened, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// Wall clock, milliseconds since 1970 UTC. For people only; nothing is decided by it except
    /// the budget period and the end of an approval, and neither moves back with it.
    pub wall_ms: u64,
    /// Boot clock (`CLOCK_BOOTTIME`), milliseconds. Deadlines are intervals on it.
    pub boot_ms: u64,
}

/// An event as it is stored: `seq` is the journal's, contiguous from 1 (J2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Position in the journal.
    pub seq: u64,
    /// When.
    pub at: Stamp,
    /// What.
    pub event: Event,
}

/// Effects on the way to a running agent whose intent is journalled before they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Make the snapshot or the private clone.
    Workspace,
    /// Make the control group and set its limits.
    Group,
    /// Compile the policy and mint the token.
    Policy,
    /// Make namespaces, mounts and listeners; start `atenea-init`, which waits.
    Sandbox,
    /// Bind egress policy and broker endpoint to the listeners.
    Boundary,
    /// Tell `atenea-init` to start the agent.
    Go,
}

/// Steps after a run, each one event when done and each idempotent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CleanupStep {
    /// The token is revoked (C2: before any other step is reported done).
    Token,
    /// Every process is dead and the control group is gone (C1).
    Group,
    /// Listeners and streams are closed.
    Boundary,
    /// The workspace is sealed, or removed when no agent ever saw it.
    Workspace,
}

impl CleanupStep {
    /// All steps, in the order in which they are started.
    pub const ALL: [CleanupStep; 4] =
        [CleanupStep::Token, CleanupStep::Group, CleanupStep::Boundary, CleanupStep::Workspace];
}

/// Which account pays and how much is held at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetAsk {
    /// The account.
    pub account: AccountName,
    /// The amount to hold.
    pub amount: Nanos,
}

/// Who made a run: it belongs to this user (S6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// User id of the client.
    pub uid: u32,
    /// Group id of the client.
    pub gid: u32,
}

/// What the state machine needs to know of a requested run. Holds digests, the program's base name
/// and numbers: never arguments, environment values or prompts (E4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// A name a person gave.
    pub name: Option<RunName>,
    /// Containment.
    pub profile: Profile,
    /// Digest of the manifest as approved.
    pub manifest: Digest,
    /// Digest of the sealed manifest (S3).
    pub sealed: Digest,
    /// Base name of the program.
    pub program: String,
    /// Who asked.
    pub owner: Owner,
    /// What to hold.
    pub budget: Option<BudgetAsk>,
    /// Whether anything that costs money was granted. When not, the run spends zero by
    /// construction (B7).
    pub priced: bool,
    /// Effective limits.
    pub limits: Limits,
    /// Whether the agent gets a terminal.
    pub tty: bool,
    /// Whether a client must stay connected.
    pub foreground: bool,
    /// Repeats of this key are the same request (B4).
    pub idempotency: Option<IdempotencyKey>,
    /// Digest of everything the client asked, compared when a key is repeated.
    pub request: Digest,
    /// Whether the run has a workspace of its own that somebody may miss (C4).
    pub writable_workspace: bool,
    /// The step of a workflow whose approval it claims (S3).
    #[serde(default)]
    pub step: Option<StepName>,
}

/// Identity of the process that holds a sandbox: a number alone is never trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Boot in which the rest means something.
    pub boot: BootId,
    /// Process id in the host's namespace.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`, clock ticks since boot.
    pub start_ticks: u64,
    /// Inode of its pidfd.
    pub pidfd_inode: u64,
}

/// One act of the self-test (S4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SelfTestResult {
    /// Stable name of the act.
    pub name: String,
    /// Whether it was refused.
    pub refused: bool,
}

/// What contains a run.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct BoundaryInfo {
    /// `bubblewrap` or `none`.
    pub kind: String,
    /// Version as it reports it.
    pub version: String,
    /// Digest of its binary.
    pub digest: Option<Digest>,
}

/// How the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this status.
    Status(i32),
    /// It died of this signal.
    Signal(i32),
    /// Nobody saw it end.
    Unknown,
}

/// Peaks and totals of a run, as far as the host could tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all processes, microseconds.
    pub cpu_us: Option<u64>,
    /// Peak of memory, bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Peak of tasks.
    pub pids_peak: Option<u64>,
    /// Output written, bytes.
    pub output_bytes: Option<u64>,
    /// From go to exit, milliseconds.
    pub wall_ms: Option<u64>,
}

/// A refused act of the agent. Repeats are counted, not listed (E6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Area: `egress`, `boundary`, `cap`, …
    pub phase: String,
    /// The refusal's code.
    pub code: Code,
    /// What was asked for, without content, bounded.
    pub subject: String,
    /// How often, at least.
    pub count: u64,
    /// Whether it ended the run.
    pub killed_run: bool,
}

/// Calendar period of an account, UTC.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// Starts anew each day.
    Day,
    /// Starts anew each month.
    Month,
    /// Never starts anew.
    Total,
}

/// How well the reported spend is known.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Every call ended with a report.
    Exact,
    /// At least this much.
    LowerBound,
    /// Estimated.
    Estimated,
    /// Nothing was reported.
    None,
}

/// Which clock limit passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deadline {
    /// The run's duration.
    Duration,
    /// The grace after a polite stop.
    Grace,
    /// The pause before another try of a cleanup step.
    Retry,
}

/// Work that is left when a run is over, tried again until it succeeds (C3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chore {
    /// Write the receipt.
    Receipt,
    /// Delete a workspace that was given up.
    Discard,
}

/// Where reviewed changes go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportTarget {
    /// One new ref in the user's repository.
    Ref(String),
    /// A patch the client receives.
    Patch,
}

/// Everything that can be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the field names are the vocabulary; each variant says what it means"
)]
pub enum Event {
    /// A supervisor took over. Every earlier effect of another generation is void.
    SupervisorStarted { generation: Generation, boot: BootId, version: String },
    /// It was asked to stop; nothing is admitted any more.
    StopRequested { now: bool },
    /// It stopped in order.
    SupervisorStopped,
    /// An account was made or changed.
    BudgetSet { account: AccountName, limit: Nanos, per: Period, key: String },
    /// A new calendar period began for an account; its spent sum starts anew.
    PeriodOpened { account: AccountName, key: String },
    /// A person allowed a manifest for a step of a workflow (S3). It replaces an earlier approval of the step.
    ApprovalGiven { step: StepName, manifest: Digest, by: u32, expires_ms: u64, uses: u32 },
    /// A request came in and got an id.
    RunRequested { run: RunId, spec: Box<RunSpec> },
    /// It used the approval of its step.
    ApprovalUsed { run: RunId, step: StepName },
    /// It passed every check; `run_uid` is the host uid of its processes.
    RunAdmitted { run: RunId, run_uid: u32 },
    /// It did not.
    RunRefused { run: RunId, code: Code, cause: String },
    /// Its money is set aside (B2).
    BudgetHeld { run: RunId, account: AccountName, amount: Nanos },
    /// We are about to do this.
    StepIntended { run: RunId, step: Step },
    /// It failed, and nothing half-made counts.
    StepFailed { run: RunId, step: Step, code: Code, cause: String },
    /// Snapshot or clone is there.
    WorkspaceReady { run: RunId, base_tree: Option<String>, base_commit: Option<String> },
    /// Control group is there; `record` is what the reaper needs to find it again.
    GroupReady { run: RunId, record: String },
    /// Policy is compiled; the token is known by its hash only.
    PolicyReady { run: RunId, token: Digest },
    /// Namespaces, mounts, listeners and `atenea-init` are there; the agent is not.
    SandboxCreated {
        run: RunId,
        identity: ProcessIdentity,
        boundary: BoundaryInfo,
        self_test: Vec<SelfTestResult>,
    },
    /// Egress and broker serve the run's listeners.
    BoundaryReady { run: RunId },
    /// The agent's first instruction may have run.
    AgentStarted { run: RunId },
    /// The agent was refused something.
    ViolationRecorded { run: RunId, violation: Violation },
    /// Somebody wants the run to end.
    CancelRequested { run: RunId, reason: String, grace_ms: u64, kill: bool },
    /// A limit was reached; the run is killed.
    LimitExceeded { run: RunId, code: Code },
    /// Time passed.
    DeadlinePassed { run: RunId, deadline: Deadline },
    /// The agent ended.
    Exited { run: RunId, exit: Exit, usage: Usage },
    /// A cleanup step is done.
    CleanupDone { run: RunId, step: CleanupStep },
    /// A cleanup step failed; it is tried again.
    CleanupFailed { run: RunId, step: CleanupStep, code: Code, cause: String },
    /// No more tries before settlement; the receipt lists what is left.
    CleanupGivenUp { run: RunId, step: CleanupStep },
    /// The workspace is complete and nobody writes to it any more.
    WorkspaceSealed { run: RunId, result_tree: Option<String>, changed: u64 },
    /// The workspace was removed because no agent ever saw it.
    WorkspaceRemoved { run: RunId },
    /// The hold is resolved: `reported` is spent, `unknown` stays held, the rest is released.
    RunSettled { run: RunId, reported: Nanos, unknown: Nanos, quality: Quality },
    /// The receipt is on disk.
    ReceiptIssued { run: RunId, digest: Digest },
    /// We are about to write reviewed changes; `tree` is what will be written.
    ExportIntended { run: RunId, target: ExportTarget, at_wall_ms: u64 },
    /// They are written.
    Exported { run: RunId, target: ExportTarget, commit: Option<String> },
    /// They are not; the workspace is sealed as before.
    ExportFailed { run: RunId, code: Code, cause: String },
    /// Only deletion is left for this workspace.
    DiscardIntended { run: RunId },
    /// It is deleted.
    Discarded { run: RunId },
    /// A chore failed; it is tried again.
    ChoreFailed { run: RunId, chore: Chore, code: Code, cause: String },
    /// Recovery removed something of ours that no run accounts for.
    LeftoverRemoved { kind: String, name: String },
}

impl Event {
    /// Version of the payload's schema, stored in the frame (J8).
    // 2: approvals.
    pub const SCHEMA: u16 = 2;

    /// The run an event belongs to.
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Event::SupervisorStarted { .. }
            | Event::StopRequested { .. }
            | Event::SupervisorStopped
            | Event::BudgetSet { .. }
            | Event::PeriodOpened { .. }
            | Event::ApprovalGiven { .. }
            | Event::LeftoverRemoved { .. } => None,
            Event::RunRequested { run, .. }
            | Event::ApprovalUsed { run, .. }
            | Event::RunAdmitted { run, .. }
            | Event::RunRefused { run, .. }
            | Event::BudgetHeld { run, .. }
            | Event::StepIntended { run, .. }
            | Event::StepFailed { run, .. }
            | Event::WorkspaceReady { run, .. }
            | Event::GroupReady { run, .. }
            | Event::PolicyReady { run, .. }
            | Event::SandboxCreated { run, .. }
            | Event::BoundaryReady { run }
            | Event::AgentStarted { run }
            | Event::ViolationRecorded { run, .. }
            | Event::CancelRequested { run, .. }
            | Event::LimitExceeded { run, .. }
            | Event::DeadlinePassed { run, .. }
            | Event::Exited { run, .. }
            | Event::CleanupDone { run, .. }
            | Event::CleanupFailed { run, .. }
            | Event::CleanupGivenUp { run, .. }
            | Event::WorkspaceSealed { run, .. }
            | Event::WorkspaceRemoved { run }
            | Event::RunSettled { run, .. }
            | Event::ReceiptIssued { run, .. }
            | Event::ExportIntended { run, .. }
            | Event::Exported { run, .. }
            | Event::ExportFailed { run, .. }
            | Event::DiscardIntended { run }
            | Event::Discarded { run }
            | Event::ChoreFailed { run, .. } => Some(run),
        }
    }

    /// The number stored in the frame's `kind` field; never reused.
    pub const fn kind(&self) -> u16 {
        match self {
            Event::SupervisorStarted { .. } => 1,
            Event::StopRequested { .. } => 2,
            Event::SupervisorStopped => 3,
            Event::BudgetSet { .. } => 4,
            Event::PeriodOpened { .. } => 5,
            Event::LeftoverRemoved { .. } => 6,
            Event::ApprovalGiven { .. } => 7,
            Event::RunRequested { .. } => 16,
            Event::RunAdmitted { .. } => 17,
            Event::RunRefused { .. } => 18,
            Event::BudgetHeld { .. } => 19,
            Event::StepIntended { .. } => 20,
            Event::StepFailed { .. } => 21,
            Event::WorkspaceReady { .. } => 22,
            Event::GroupReady { .. } => 23,
            Event::PolicyReady { .. } => 24,
            Event::SandboxCreated { .. } => 25,
            Event::BoundaryReady { .. } => 26,
            Event::AgentStarted { .. } => 27,
            Event::ViolationRecorded { .. } => 28,
            Event::CancelRequested { .. } => 29,
            Event::LimitExceeded { .. } => 30,
            Event::DeadlinePassed { .. } => 31,
            Event::Exited { .. } => 32,
            Event::CleanupDone { .. } => 33,
            Event::CleanupFailed { .. } => 34,
            Event::CleanupGivenUp { .. } => 35,
            Event::WorkspaceSealed { .. } => 36,
            Event::WorkspaceRemoved { .. } => 37,
            Event::RunSettled { .. } => 38,
            Event::ReceiptIssued { .. } => 39,
            Event::ExportIntended { .. } => 40,
            Event::Exported { .. } => 41,
            Event::ExportFailed { .. } => 42,
            Event::DiscardIntended { .. } => 43,
            Event::Discarded { .. } => 44,
            Event::ChoreFailed { .. } => 45,
            Event::ApprovalUsed { .. } => 46,
        }
    }

    /// The variant's name, as dumps and golden tests print it.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find([' ', '{', '(']).unwrap_or(text.len());
        text.get(..end).unwrap_or_default().to_owned()
    }
}
