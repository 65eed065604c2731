//! What the driver must make others do. Effects are values; they are executed after the event that
//! caused them is durable, and their outcome comes back as an observation.
//!
//! Executors promise two things. Effects of one run that go to the same executor (processes and
//! groups; token and policy; listeners; files; receipt) are executed in the order given, so that a
//! step which is late cannot undo the cleanup that was ordered after it. And each effect that has an
//! answer is answered within a time its executor bounds: C3 rests on it.

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
