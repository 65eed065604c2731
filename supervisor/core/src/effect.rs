//! What the driver must make others do. Effects are values; they are executed after the event that
//! caused them is durable, and their outcome comes back as an observation.
//!
//! Executors promise two things. Effects of one run on the same [`Lane`] are executed in the order
//! given, so that a step which is late cannot undo the cleanup that was ordered after it. And each
//! effect that has an answer is answered within a time its executor bounds: C3 rests on it.
//!
//! Token, policy and listeners ([`Lane::Memory`]) exist only in the supervisor's memory. They are the
//! one exception to "after the event is durable": a crash takes them and the event with it.

use serde::{Deserialize, Serialize};

use crate::RunId;
use crate::event::ExportTarget;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the field names are the vocabulary; each variant says what it means"
)]
pub enum Effect {
    /// Make the snapshot or private clone; answers with `WorkspaceReady` or `StepFailed`.
    PrepareWorkspace { run: RunId },
    /// Make the control group; answers with `GroupReady` or `StepFailed`.
    MakeGroup { run: RunId },
    /// Compile the policy, mint the token; answers with `PolicyReady` or `StepFailed`.
    CompilePolicy { run: RunId },
    /// Make the sandbox; answers with `SandboxCreated` or `StepFailed`.
    CreateSandbox { run: RunId },
    /// Bind egress and broker; answers with `BoundaryReady` or `StepFailed`.
    BindBoundary { run: RunId },
    /// Start the agent; answers with `AgentStarted` or `StepFailed`, later `Exited`.
    StartAgent { run: RunId },
    /// Stop whatever prepares the run; the step's own answer follows.
    AbortSteps { run: RunId },
    /// Send SIGTERM to the agent.
    TerminateAgent { run: RunId },
    /// Kill every process of the run's group.
    KillGroup { run: RunId },
    /// Revoke the token; answers with `CleanupDone`.
    RevokeToken { run: RunId },
    /// Kill, prove empty and remove the group; answers with `CleanupDone` or `CleanupFailed`.
    RemoveGroup { run: RunId },
    /// Close listeners and streams; answers likewise.
    CloseBoundary { run: RunId },
    /// Seal the workspace; answers with `WorkspaceSealed` or `CleanupFailed`.
    SealWorkspace { run: RunId },
    /// Remove a workspace no agent saw; answers with `WorkspaceRemoved` or `CleanupFailed`.
    RemoveWorkspace { run: RunId },
    /// Write the receipt; answers with `ReceiptWritten` or `ChoreFailed`.
    WriteReceipt { run: RunId },
    /// Write reviewed changes, or finish doing so; answers with `Exported` or `ExportFailed`.
    Export { run: RunId, target: ExportTarget, at_wall_ms: u64 },
    /// Delete a workspace; answers with `Discarded` or `ChoreFailed`.
    Discard { run: RunId },
}

/// Effects of one run on the same lane are executed in the order given; lanes do not wait for each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Processes and control groups.
    Processes,
    /// A kill or an abort: never waits for what it is to end.
    Urgent,
    /// Token, policy, listeners: the supervisor's own memory.
    Memory,
    /// What needs the end of connections and output.
    Streams,
    /// The workspace.
    Files,
    /// The receipt.
    Receipt,
}

impl Effect {
    /// The run it belongs to, and its lane.
    pub fn lane(&self) -> (RunId, Lane) {
        let (run, lane) = match self {
            Effect::MakeGroup { run }
            | Effect::CreateSandbox { run }
            | Effect::StartAgent { run }
            | Effect::TerminateAgent { run }
            | Effect::RemoveGroup { run } => (run, Lane::Processes),
            Effect::KillGroup { run } | Effect::AbortSteps { run } => (run, Lane::Urgent),
            Effect::CompilePolicy { run }
            | Effect::BindBoundary { run }
            | Effect::RevokeToken { run } => (run, Lane::Memory),
            Effect::CloseBoundary { run } => (run, Lane::Streams),
            Effect::PrepareWorkspace { run }
            | Effect::SealWorkspace { run }
            | Effect::RemoveWorkspace { run }
            | Effect::Export { run, .. }
            | Effect::Discard { run } => (run, Lane::Files),
            Effect::WriteReceipt { run } => (run, Lane::Receipt),
        };
        (run.clone(), lane)
    }
}
