//! What client and server say to each other: the JSON of the control API (design: contracts).
//! One definition serves both sides, so they cannot drift.

use atenea_core::event::{Period, Violation};
use atenea_core::{Digest, Limits, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layout::Stream;

/// `POST /v1/runs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    /// The manifest, version 1, as JSON.
    pub manifest: serde_json::Value,
    /// A name for people.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether a client attaches and the run is cancelled when it goes away.
    #[serde(default)]
    pub foreground: bool,
    /// Terminal of the agent.
    #[serde(default)]
    pub tty: Option<TtySize>,
    /// `TERM` of the client's terminal.
    #[serde(default)]
    pub term: Option<String>,
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TtySize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// Answer to `POST /v1/runs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunAccepted {
    /// The run.
    pub run: RunId,
    /// A repeated request: this run was there already.
    #[serde(default)]
    pub existing: bool,
}

/// One run in `GET /v1/runs` and `GET /v1/runs/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunStatus {
    /// Its id.
    pub run: RunId,
    /// Its name.
    pub name: Option<String>,
    /// Where it is: `requested` … `ended`.
    pub state: String,
    /// Why it ended.
    pub outcome: Option<String>,
    /// Its profile.
    pub profile: String,
    /// Whether a sandbox contains it.
    pub enforced: bool,
    /// Base name of its program.
    pub program: String,
    /// What it may use.
    pub limits: Limits,
    /// How its agent ended.
    pub exit: Option<ExitStatus>,
    /// Exit status that `run` and `wait` report for it, once it has ended.
    pub client_status: Option<i32>,
    /// Code and cause behind the outcome.
    pub cause: Option<CauseView>,
    /// Why it was cancelled, as whoever did it said.
    pub cancel_reason: Option<String>,
    /// Money.
    pub budget: BudgetView,
    /// Why its cleanup hangs.
    pub stuck: Option<CauseView>,
    /// Cleanup steps that were given up and are tried on.
    pub leftovers: Vec<String>,
    /// What became of its own workspace.
    pub workspace: String,
    /// Where that lies, while it is there.
    pub workspace_path: Option<String>,
    /// Everything that counts as its work: while it is more than nothing, the workspace is kept.
    pub changed: u64,
    /// The parts of that, once the workspace is sealed; not in a list of runs.
    #[serde(default)]
    pub changes: Option<ChangesView>,
    /// First and last event.
    pub seq: (u64, u64),
    /// When it was requested, milliseconds since 1970.
    pub requested_ms: u64,
    /// How long its agent ran or runs, milliseconds.
    pub running_ms: Option<u64>,
    /// Refusals by code.
    pub denials: std::collections::BTreeMap<String, u64>,
    /// What is being prepared, while it is.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// Digest of the receipt.
    pub receipt: Option<Digest>,
}

/// How an agent ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExitStatus {
    /// What it returned.
    pub status: Option<i32>,
    /// What it died of.
    pub signal: Option<i32>,
    /// The code behind it, such as `limit.memory`.
    pub cause: Option<String>,
}

/// A code with its cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CauseView {
    /// Stable code.
    pub code: String,
    /// What happened.
    pub cause: String,
}

/// Money of a run, dollars as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetView {
    /// Held now.
    pub usd_held: String,
    /// Reported and spent.
    pub usd_reported: String,
    /// May have been spent.
    pub usd_unknown: String,
    /// `exact`, `lower_bound`, `estimated` or `none`; absent before settlement.
    pub quality: Option<String>,
}

/// How far the preparation of a workspace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Files done.
    pub files: u64,
    /// Files in all, when known.
    pub total: Option<u64>,
    /// Bytes copied.
    pub bytes: u64,
}

/// `POST /v1/runs/{id}/cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Why, for the receipt.
    #[serde(default)]
    pub reason: Option<String>,
    /// Time between the polite stop and the kill.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// No grace.
    #[serde(default)]
    pub kill: bool,
}

/// `POST /v1/runs/{id}/export`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// Ref to make; default `refs/atenea/RUN`.
    #[serde(default, rename = "ref")]
    pub reference: Option<String>,
    /// A patch instead of a ref; the answer carries it.
    #[serde(default)]
    pub patch: bool,
}

/// Answer to an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportResult {
    /// The ref.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// The commit it points to.
    pub commit: Option<String>,
    /// The patch, as bytes in text form (lossless: base 64 is not needed, git quotes binary).
    pub patch: Option<String>,
    /// Changes that the export does not carry: their path and code, at most a hundred.
    #[serde(default)]
    pub left_out: Vec<serde_json::Value>,
    /// The same and whatever else is not exported, in words.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether the commit below holds the uncommitted files that the run started from.
    #[serde(default)]
    pub uncommitted_base: bool,
}

/// Answer to `GET /v1/runs/{id}/diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffView {
    /// Unified diff with control characters escaped.
    pub text: String,
    /// One entry a file.
    pub files: Vec<serde_json::Value>,
    /// What counts as work of the run and is not exported, in words.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The parts of what changed.
    #[serde(default)]
    pub changes: Option<ChangesView>,
}

/// The parts of what a run changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangesView {
    /// Files that an export carries.
    pub files: u64,
    /// Changes that it cannot carry.
    pub refused: u64,
    /// New files that are ignored; it does not carry them.
    pub ignored: u64,
    /// Branches, tags and other refs made or moved inside; it does not carry them.
    pub refs: u64,
}

/// One account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountView {
    /// Its name.
    pub name: String,
    /// Its limit, dollars.
    pub usd_limit: String,
    /// Spent in the open period.
    pub usd_spent: String,
    /// Held.
    pub usd_held: String,
    /// What can still be held.
    pub usd_available: String,
    /// `day`, `month` or `total`.
    pub per: Period,
    /// The open period.
    pub period: String,
}

/// `PUT /v1/budgets/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBudget {
    /// The limit, dollars.
    pub usd: String,
    /// Calendar period; left out, the account keeps its own, and a new one gets `total`.
    #[serde(default)]
    pub per: Option<Period>,
}

/// Query of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// The first sequence; when left out, only what is recorded from now on.
    #[serde(default)]
    pub from: Option<u64>,
    /// Only this run.
    #[serde(default)]
    pub run: Option<String>,
}

/// `POST /v1/approvals`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approve {
    /// The manifest, version 1, as JSON; it names its step.
    pub manifest: serde_json::Value,
    /// The step, to be sure that it is the one that was meant.
    #[serde(default)]
    pub step: Option<String>,
    /// How long it lives, milliseconds; a day when left out, at most 366 days.
    #[serde(default)]
    pub expires_ms: Option<u64>,
    /// Runs it allows; one when left out.
    #[serde(default)]
    pub uses: Option<u32>,
}

/// An approval in `GET` and `POST /v1/approvals`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalView {
    /// The step of the workflow.
    pub step: String,
    /// Digest of the manifest.
    pub manifest: Digest,
    /// User id of who gave it.
    pub by: u32,
    /// Its end, RFC 3339.
    pub expires: String,
    /// Runs it allows.
    pub uses: u32,
    /// Runs it has allowed.
    pub used: u32,
    /// Sequence of its event; a receipt names it.
    pub seq: u64,
}

/// `GET /v1/info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Info {
    /// Process id of the supervisor.
    pub pid: u32,
    /// Process id of its launcher helper.
    pub helper: i32,
    /// Its generation.
    pub generation: u64,
    /// Its state directory.
    pub state_dir: String,
    /// Its socket.
    pub socket: String,
    /// Its version.
    pub version: String,
    /// `on-demand` or `daemon`.
    pub mode: String,
    /// The configuration file that it has read.
    pub config: Option<String>,
    /// Whether what it would read now is another configuration.
    pub config_changed: bool,
    /// Runs that are not over.
    pub live_runs: usize,
    /// Whether it waits for them and ends then.
    #[serde(default)]
    pub stopping: bool,
    /// Directories of runs without a record, which hold work or a receipt and are kept (C4).
    #[serde(default)]
    pub unaccounted: Vec<String>,
    /// Last durable event.
    pub seq: u64,
}

/// `GET /v1/doctor`: what the supervisor's own probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SupportView {
    /// Whether this host can contain a run (S2).
    pub enforceable: bool,
    /// What it needs, and what is nice to have.
    pub features: Vec<FeatureView>,
    /// The self-test of a sandbox that was made to try.
    pub self_test: SelfTestCount,
}

/// One thing that containment builds on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FeatureView {
    /// Its name.
    pub name: String,
    /// Whether no run is contained without it.
    pub required: bool,
    /// `ok`, `missing`, `absent` (and not required) or `not tried`.
    pub state: String,
    /// What was found, or why it is not there.
    pub detail: String,
    /// Code of the refusal.
    pub code: Option<String>,
    /// What to do.
    pub help: String,
}

/// How many acts of a self-test were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SelfTestCount {
    /// Acts that were tried.
    pub acts: usize,
    /// How many of them were refused.
    pub refused: usize,
}

/// `GET /v1/health`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Health {
    /// Always true: what is not healthy answers with a problem.
    pub ok: bool,
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ViolationView {
    /// Sequence of its event.
    pub seq: u64,
    /// The run.
    pub run: RunId,
    /// Area.
    pub phase: String,
    /// `blocked` or `restricted`.
    pub decision: String,
    /// Code.
    pub code: String,
    /// What was asked for, without content.
    pub detail: String,
    /// Whether the verdict was enforced.
    pub enforced: bool,
    /// Whether it ended the run.
    pub killed_run: bool,
    /// How often.
    pub count: u64,
}

impl ViolationView {
    /// The row of one recorded violation.
    pub fn new(run: &RunId, seq: u64, violation: &Violation) -> Self {
        ViolationView {
            seq,
            run: run.clone(),
            phase: violation.phase.clone(),
            decision: "blocked".to_owned(),
            code: violation.code.to_string(),
            detail: violation.subject.clone(),
            enforced: true,
            killed_run: violation.killed_run,
            count: violation.count,
        }
    }
}

/// `POST /v1/stop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Cancel runs instead of waiting for them.
    #[serde(default)]
    pub now: bool,
}

/// Query of `GET /v1/runs/{id}/logs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogsQuery {
    /// Which stream.
    #[serde(default = "stdout")]
    pub stream: Stream,
    /// Go on until the run has ended.
    #[serde(default)]
    pub follow: bool,
}

fn stdout() -> Stream {
    Stream::Stdout
}

/// Query of `GET /v1/runs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunsQuery {
    /// Only runs in this state; `live` for all that are not over.
    #[serde(default)]
    pub state: Option<String>,
}

/// Query of `GET /v1/violations`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ViolationsQuery {
    /// Only of this run.
    #[serde(default)]
    pub run: Option<String>,
    /// Only codes that start with this.
    #[serde(default)]
    pub code: Option<String>,
}

/// An error (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Stable code.
    pub code: String,
    /// What was found.
    pub cause: String,
    /// What to do.
    pub help: String,
    /// The run it belongs to.
    pub run: Option<RunId>,
}

/// Kinds of frame on an attached connection: one byte, a 32-bit big-endian length, the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client → agent; an empty one is end of file.
    Stdin = 0,
    /// Agent → client.
    Stdout = 1,
    /// Agent → client.
    Stderr = 2,
    /// Client → terminal: a [`TtySize`].
    Resize = 3,
    /// Supervisor → client: a [`RunStatus`].
    Status = 4,
    /// Supervisor → client: the last [`RunStatus`]; the connection ends.
    Ended = 5,
}

impl FrameKind {
    /// The kind with this number.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => FrameKind::Stdin,
            1 => FrameKind::Stdout,
            2 => FrameKind::Stderr,
            3 => FrameKind::Resize,
            4 => FrameKind::Status,
            5 => FrameKind::Ended,
            _ => return None,
        })
    }
}

/// The largest payload of a frame, bytes: what is read from a pipe or file at once.
pub const FRAME_BYTES_MAX: usize = 64 << 10;

/// One frame as bytes.
///
/// # Errors
/// When the payload is longer than a frame can say.
pub fn frame(kind: FrameKind, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let len = u32::try_from(body.len()).map_err(std::io::Error::other)?;
    let mut frame = Vec::with_capacity(body.len().saturating_add(5));
    frame.push(kind as u8);
    frame.extend_from_slice(&len.to_be_bytes());
    frame.extend_from_slice(body);
    Ok(frame)
}
