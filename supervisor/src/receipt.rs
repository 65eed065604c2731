//! Receipts: what a run was, what it was refused, what it cost, what is left. Derived from the
//! durable state alone, so that the supervisor that writes it may be another one than the one that
//! ran it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use atenea_core::event::{BoundaryInfo, CleanupStep, Owner};
use atenea_core::run::{Amendment, Run};
use atenea_core::{Digest, Limits, Profile, Refusal, RunId};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::api::types::{CauseView, ExitStatus};
use crate::api::view;
use crate::files;
use crate::layout::{StateDir, Stream};

/// Version of the receipt's schema.
pub const SCHEMA: u32 = 1;

/// The approval that a run used (S3).
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct UsedApproval {
    /// The step of the workflow.
    pub step: Option<String>,
    /// Sequence of the event that gave it.
    pub seq: u64,
}

/// A receipt: what a run was, what it was refused, what it cost, what is left. Fields are added, never
/// renamed; a reader refuses a `schema` that it does not know.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Receipt {
    /// Version of this schema.
    pub schema: u32,
    /// Version of the supervisor that wrote it.
    pub supervisor: String,
    /// The run.
    pub run: RunId,
    /// The run that started it.
    pub parent: Option<RunId>,
    /// Its name.
    pub name: Option<String>,
    /// Base name of its program.
    pub program: String,
    /// Who made it.
    pub owner: Owner,
    /// Digest of the manifest as it was given.
    pub manifest: Digest,
    /// Digest of the manifest as it was sealed (S3).
    pub sealed: Digest,
    /// The approval that it used.
    pub approval: Option<UsedApproval>,
    /// Its profile.
    pub profile: Profile,
    /// Whether a sandbox contained it (S2).
    pub enforced: bool,
    /// `sandboxed` or `unsandboxed`.
    pub label: String,
    /// What contained it.
    pub boundary: BoundaryInfo,
    /// What its sandbox refused before the agent started (S4).
    pub self_test: SelfTestView,
    /// Where its programs came from: `host`.
    pub runtime: String,
    /// What it was allowed to use.
    pub limits: Limits,
    /// What it used.
    pub usage: UsageView,
    /// What it cost.
    pub budget: MoneyView,
    /// Refusals by code.
    pub denials: BTreeMap<String, u64>,
    /// Why it ended: `exited`, `cancelled`, …
    pub outcome: Option<String>,
    /// Code and cause behind the outcome.
    pub cause: Option<CauseView>,
    /// Why it was cancelled, as whoever did it said.
    pub cancel_reason: Option<String>,
    /// How its agent ended.
    pub exit: Option<ExitStatus>,
    /// Exit status that `run` and `wait` report for it.
    pub client_status: i32,
    /// Its workspace.
    pub workspace: WorkspaceView,
    /// What became of each cleanup step: `done`, `not needed`, `given up` or `open`.
    pub cleanup: BTreeMap<String, String>,
    /// Cleanup steps that were given up and are tried on (C3).
    pub leftovers: Vec<CleanupStep>,
    /// When.
    pub times: TimesView,
    /// Sequence of its first event.
    pub first_seq: u64,
    /// Sequence of the last event that the receipt covers.
    pub last_seq: Option<u64>,
    /// Hash of the journal at that event.
    pub head: String,
}

/// The self-test of a sandbox.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SelfTestView {
    /// Acts that were tried.
    pub acts: usize,
    /// How many of them were refused.
    pub refused: usize,
    /// Names of those that were not.
    pub succeeded: Vec<String>,
}

/// What a run used, as far as the host could tell.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct UsageView {
    /// CPU time of all processes, microseconds.
    pub cpu_us: Option<u64>,
    /// Peak of memory, bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Peak of tasks.
    pub pids_peak: Option<u64>,
    /// From go to exit, milliseconds.
    pub wall_ms: Option<u64>,
    /// Output that was kept, bytes.
    pub output_bytes: u64,
}

/// What a run cost, dollars as text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MoneyView {
    /// The account that pays.
    pub account: Option<String>,
    /// Held before it started (B2).
    pub held: String,
    /// Reported and spent.
    pub reported: String,
    /// May have been spent; it stays held.
    pub unknown: String,
    /// `exact`, `lower_bound`, `estimated` or `none`.
    pub quality: String,
    /// Why nothing was reported, when nothing priced was granted (B7).
    pub note: Option<String>,
}

/// The workspace of a run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WorkspaceView {
    /// What became of it.
    pub state: String,
    /// Git tree it started from.
    pub base_tree: Option<String>,
    /// Git commit it started from.
    pub base_commit: Option<String>,
    /// Git tree it left.
    pub result_tree: Option<String>,
    /// Files that differ.
    pub changed: u64,
    /// How its size was limited: `watched` or `none`.
    pub quota: String,
}

/// When a run was what, milliseconds since 1970 UTC.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TimesView {
    /// Requested.
    pub requested_ms: u64,
    /// Its agent started.
    pub started_ms: Option<u64>,
}

/// Answer to `GET /v1/runs/{id}/receipt`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Issued {
    /// The receipt, as it was written.
    pub receipt: ReceiptText,
    /// BLAKE3 of its RFC 8785 form, as the journal holds it.
    pub digest: Digest,
    /// What became true after it was issued.
    pub amendments: Vec<Amendment>,
}

/// A receipt as it was read: one of an older supervisor has the fields of its time.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct ReceiptText(Value);

impl JsonSchema for ReceiptText {
    fn schema_name() -> Cow<'static, str> {
        Receipt::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Receipt::json_schema(generator)
    }
}

/// The receipt of a settled or refused run; `head` is the journal's hash at its last event.
pub fn make(run: &Run, dirs: &StateDir, head: &str) -> Receipt {
    let spec = &run.spec;
    let enforced = spec.profile.is_enforced();
    Receipt {
        schema: SCHEMA,
        supervisor: env!("CARGO_PKG_VERSION").to_owned(),
        run: run.id.clone(),
        parent: None,
        name: spec.name.as_ref().map(ToString::to_string),
        program: spec.program.clone(),
        owner: spec.owner,
        manifest: spec.manifest,
        sealed: spec.sealed,
        approval: run
            .approval
            .map(|seq| UsedApproval { step: spec.step.as_ref().map(ToString::to_string), seq }),
        profile: spec.profile,
        enforced,
        label: if enforced { "sandboxed" } else { "unsandboxed" }.to_owned(),
        boundary: run.boundary.clone(),
        self_test: self_test(run),
        runtime: "host".to_owned(),
        limits: spec.limits.clone(),
        usage: usage(run, dirs),
        budget: money(run),
        denials: run.denials.iter().map(|(c, n)| (c.to_string(), *n)).collect(),
        outcome: run.outcome.map(|outcome| outcome.as_str().to_owned()),
        cause: run.cause.as_ref().map(view::cause),
        cancel_reason: run.cancel_reason.clone(),
        exit: run.exit.map(|exit| view::exit_status(exit, run.cause.as_ref())),
        client_status: run.client_status(),
        workspace: workspace(run),
        cleanup: cleanup(run),
        leftovers: run.leftovers(),
        times: TimesView {
            requested_ms: run.requested_at.wall_ms,
            started_ms: run.started_at.map(|at| at.wall_ms),
        },
        first_seq: run.seq.0,
        last_seq: run.settled_seq,
        head: head.to_owned(),
    }
}

fn self_test(run: &Run) -> SelfTestView {
    let passed = run.self_test.iter().filter(|t| !t.refused).map(|t| t.name.clone());
    SelfTestView {
        acts: run.self_test.len(),
        refused: run.self_test.iter().filter(|t| t.refused).count(),
        succeeded: passed.collect(),
    }
}

fn money(run: &Run) -> MoneyView {
    let spec = &run.spec;
    let unpriced = || "nothing priced was granted; none reported".to_owned();
    MoneyView {
        account: spec.budget.as_ref().map(|b| b.account.to_string()),
        held: run.money.held_at_start.to_string(),
        reported: run.money.reported.to_string(),
        unknown: run.money.unknown.to_string(),
        quality: view::budget(run).quality.unwrap_or_else(|| "none".to_owned()),
        note: (!spec.priced).then(unpriced),
    }
}

fn usage(run: &Run, dirs: &StateDir) -> UsageView {
    let written = |stream| std::fs::metadata(dirs.stream(&run.id, stream)).map_or(0, |m| m.len());
    UsageView {
        cpu_us: run.usage.cpu_us,
        memory_peak_bytes: run.usage.memory_peak_bytes,
        pids_peak: run.usage.pids_peak,
        wall_ms: run.usage.wall_ms,
        output_bytes: written(Stream::Stdout).saturating_add(written(Stream::Stderr)),
    }
}

fn workspace(run: &Run) -> WorkspaceView {
    WorkspaceView {
        state: run.workspace.as_str().to_owned(),
        base_tree: run.base_tree.clone(),
        base_commit: run.base_commit.clone(),
        result_tree: run.result_tree.clone(),
        changed: run.changed,
        quota: if run.spec.writable_workspace { "watched" } else { "none" }.to_owned(),
    }
}

fn cleanup(run: &Run) -> BTreeMap<String, String> {
    let one = |step: &CleanupStep| {
        let state = match run.cleanup.get(step) {
            None => "not needed",
            Some(c) if c.done => "done",
            Some(c) if c.given_up => "given up",
            Some(_) => "open",
        };
        (format!("{step:?}").to_lowercase(), state.to_owned())
    };
    CleanupStep::ALL.iter().map(one).collect()
}

/// Writes the receipt and gives its digest: BLAKE3 over its RFC 8785 form.
///
/// # Errors
/// `fs.disk_full`, `fs.io`.
pub fn write(run: &Run, dirs: &StateDir, head: &str) -> Result<Digest, Refusal> {
    let receipt = make(run, dirs, head);
    let text = atenea_core::digest::canonical_json(&receipt);
    let digest = Digest::of(text.as_bytes());
    let path = dirs.receipt(&run.id);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|e| files::io_refusal(dir, &e))?;
    }
    files::replace(&path, text.as_bytes())?;
    Ok(digest)
}

/// The receipt as clients get it: with its digest and what happened after it.
///
/// # Errors
/// `fs.io`, or `journal.damaged` when the file is not the one whose digest is in the journal.
pub fn with_amendments(dirs: &StateDir, run: &Run) -> Result<Issued, Refusal> {
    let path = dirs.receipt(&run.id);
    let text = std::fs::read_to_string(&path).map_err(|e| files::io_refusal(&path, &e))?;
    let digest = Digest::of(text.as_bytes());
    if Some(digest) != run.receipt {
        let cause = format!("the receipt of {} was changed: its digest is {digest}", run.id);
        return Err(Refusal::new(atenea_core::Code::JournalDamaged, cause)
            .with_help("the journal holds the digest of the true one"));
    }
    let receipt: Value = serde_json::from_str(&text)
        .map_err(|e| Refusal::new(atenea_core::Code::FsIo, e.to_string()))?;
    Ok(Issued { receipt: ReceiptText(receipt), digest, amendments: run.amendments.clone() })
}
