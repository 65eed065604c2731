//! What reaches the state machine: commands of people, observations of effects, and time.

use serde::{Deserialize, Serialize};

use crate::event::{
    BoundaryInfo, Chore, CleanupStep, Exit, ExportTarget, Period, ProcessIdentity, RunSpec,
    SelfTestResult, Stamp, Step, Usage, Violation,
};
use crate::{AccountName, BootId, Digest, Nanos, Refusal, RunId, StepName};

/// The time of an input.
pub type Now = Stamp;

/// One input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// Somebody wants something.
    Command(Command),
    /// Something happened.
    Observation(Observation),
    /// Nothing happened: look at the clock and at what can go on.
    Advance,
}

/// What somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the field names are the vocabulary; each variant says what it means"
)]
pub enum Command {
    /// First input of a generation.
    Start { boot: BootId, version: String },
    /// Stop admitting; with `now`, cancel what runs.
    Stop { now: bool },
    /// The supervisor is about to exit in order.
    Stopped,
    /// Make or change an account. Without a period it keeps its own; a new one is in all.
    SetBudget { account: AccountName, limit: Nanos, per: Option<Period> },
    /// Allow a manifest for a step, for so long and so many runs. `by` is who asks.
    Approve { step: StepName, manifest: Digest, by: u32, expires_ms: u64, uses: u32 },
    /// Start a run. `refusal` is what the host checks found: the run is recorded and refused.
    Request { run: RunId, spec: Box<RunSpec>, refusal: Option<Refusal> },
    /// End a run.
    Cancel { run: RunId, reason: String, grace_ms: Option<u64>, kill: bool },
    /// Accept the changes.
    Export { run: RunId, target: ExportTarget },
    /// Drop the workspace.
    Discard { run: RunId },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the field names are the vocabulary; each variant says what it means"
)]
pub enum Observation {
    /// A step failed.
    StepFailed { run: RunId, step: Step, refusal: Refusal },
    /// Snapshot or clone is there.
    WorkspaceReady { run: RunId, base_tree: Option<String>, base_commit: Option<String> },
    /// Control group is there.
    GroupReady { run: RunId, record: String },
    /// Policy is compiled.
    PolicyReady { run: RunId, token: Digest },
    /// The sandbox waits for go.
    SandboxCreated {
        run: RunId,
        identity: ProcessIdentity,
        boundary: BoundaryInfo,
        self_test: Vec<SelfTestResult>,
    },
    /// Egress and broker serve.
    BoundaryReady { run: RunId },
    /// The agent's program was executed.
    AgentStarted { run: RunId },
    /// The agent ended.
    Exited { run: RunId, exit: Exit, usage: Usage },
    /// The agent reached a limit.
    LimitExceeded { run: RunId, refusal: Refusal },
    /// The agent was refused something.
    Violation { run: RunId, violation: Violation },
    /// The client of a foreground run is gone.
    ClientGone { run: RunId },
    /// A cleanup step is done.
    CleanupDone { run: RunId, step: CleanupStep },
    /// A cleanup step failed.
    CleanupFailed { run: RunId, step: CleanupStep, refusal: Refusal },
    /// The workspace is sealed.
    WorkspaceSealed { run: RunId, result_tree: Option<String>, changed: u64 },
    /// The workspace nobody saw is gone.
    WorkspaceRemoved { run: RunId },
    /// The receipt is on disk.
    ReceiptWritten { run: RunId, digest: Digest },
    /// The export is done.
    Exported { run: RunId, commit: Option<String> },
    /// The export failed.
    ExportFailed { run: RunId, refusal: Refusal },
    /// The workspace is deleted.
    Discarded { run: RunId },
    /// The receipt could not be written or the workspace not be deleted.
    ChoreFailed { run: RunId, chore: Chore, refusal: Refusal },
    /// Recovery removed something no run accounts for.
    LeftoverRemoved { kind: String, name: String },
}
