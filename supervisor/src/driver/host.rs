//! The host side of the driver: executes effects and reports what came of them. It decides nothing;
//! each effect is one task that ends in one observation.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atenea_broker::TokenTable;
use atenea_core::effect::{Effect, Lane};
use atenea_core::event::{BoundaryInfo, CleanupStep, Step, Violation};
use atenea_core::input::Observation;
use atenea_core::run::Run;
use atenea_core::{Code, Refusal, RunId};
use atenea_journal::Journal;
use atenea_launcher::probe::{Enforceable, HostSupport};
use atenea_launcher::protocol::Request;
use atenea_reaper::RunGroup;

use super::helper::HelperClient;
use super::lanes::Lanes;
use super::live::{Live, Registry};
use super::worker::Workers;
use super::{Execute, Handle, cleanup, review, sandbox, workspace};
use crate::api::types::{
    ChangesView, DiffView, ExportResult, FeatureView, Progress, SelfTestCount, SupportView, TtySize,
};
use crate::config::InForce;
use crate::crash::{self, Side};
use crate::layout::{StateDir, Stream};

/// What effects are executed with.
pub struct Inner {
    /// The driver; set once, before the first effect.
    handle: OnceLock<Handle>,
    /// The state directory.
    pub dirs: StateDir,
    /// The configuration.
    pub config: InForce,
    /// The launcher helper.
    pub helper: HelperClient,
    /// What the probe found.
    pub support: HostSupport,
    /// Tokens of this generation.
    pub tokens: Arc<TokenTable>,
    /// Runs of this generation.
    pub live: Registry,
    /// Our part of the cgroup tree.
    pub instance: String,
    /// For the head that a receipt names.
    pub journal: Journal,
    /// What contains runs, as receipts name it.
    pub boundary: BoundaryInfo,
    /// Groups that the scan at start found, by run.
    pub leftovers: Mutex<HashMap<RunId, RunGroup>>,
    /// Directories of runs that the journal does not know, kept for whoever misses them.
    pub unaccounted: Vec<PathBuf>,
    /// Why exports failed, for the clients that wait for them.
    pub export_failures: Mutex<HashMap<RunId, Refusal>>,
    /// Workspace workers.
    pub(super) workers: Workers,
    /// Effects that are out, in their order.
    lanes: Lanes,
}

/// Executes effects. Clones share everything.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

/// The parts of a [`Host`] that are known before the driver is.
pub struct Parts {
    /// The state directory.
    pub dirs: StateDir,
    /// The configuration.
    pub config: InForce,
    /// The launcher helper.
    pub helper: HelperClient,
    /// What the probe found.
    pub support: HostSupport,
    /// Tokens of this generation.
    pub tokens: TokenTable,
    /// Our part of the cgroup tree.
    pub instance: String,
    /// The journal.
    pub journal: Journal,
    /// What contains runs, as receipts name it.
    pub boundary: BoundaryInfo,
    /// Groups that the scan at start found, by run.
    pub leftovers: HashMap<RunId, RunGroup>,
    /// Directories of runs that the journal does not know, kept for whoever misses them.
    pub unaccounted: Vec<PathBuf>,
}

impl Host {
    /// A host without its driver; [`Host::connect`] follows.
    pub fn new(parts: Parts) -> Self {
        let inner = Inner {
            handle: OnceLock::new(),
            dirs: parts.dirs,
            config: parts.config,
            helper: parts.helper,
            support: parts.support,
            tokens: Arc::new(parts.tokens),
            live: Registry::default(),
            instance: parts.instance,
            journal: parts.journal,
            boundary: parts.boundary,
            leftovers: Mutex::new(parts.leftovers),
            unaccounted: parts.unaccounted,
            export_failures: Mutex::default(),
            workers: Workers::default(),
            lanes: Lanes::default(),
        };
        Host { inner: Arc::new(inner) }
    }

    /// Tells it where observations go.
    pub fn connect(&self, handle: Handle) {
        let _ = self.inner.handle.set(handle);
    }

    /// The shared part.
    pub fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Progress of a run's workspace.
    pub fn progress(&self, run: &RunId) -> Option<Progress> {
        self.inner.live.get(run).and_then(|live| *live.progress.borrow())
    }

    /// Waits until a run's progress moves; for ever when it has none.
    pub async fn progress_moves(&self, run: &RunId) {
        let Some(live) = self.inner.live.get(run) else { return std::future::pending().await };
        let mut progress = live.progress.subscribe();
        if progress.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a captured stream is longer; for ever when nothing captures it.
    pub async fn output_grows(&self, run: &RunId, stream: Stream, position: u64) {
        match self.inner.live.get(run) {
            Some(live) => live.hub.grows(stream, position).await,
            None => std::future::pending().await,
        }
    }

    /// Notes that a client attached.
    pub fn attached(&self, run: &RunId) {
        if let Some(live) = self.inner.live.get(run) {
            live.with(|parts| parts.attached = true);
        }
    }

    /// Writes to the agent's stdin or terminal; an empty piece is end of file.
    pub async fn write_stdin(&self, run: &RunId, piece: &[u8]) {
        if let Some(live) = self.inner.live.get(run) {
            sandbox::write_stdin(&live, piece).await;
        }
    }

    /// Tells the agent's terminal its new size.
    pub fn resize(&self, run: &RunId, size: TtySize) {
        let request = Request::Resize { run: run.clone(), rows: size.rows, cols: size.cols };
        let helper = self.inner.helper.clone();
        tokio::spawn(async move { drop(helper.call(request).await) });
    }

    /// What the run changed.
    ///
    /// # Errors
    /// What the worker refuses.
    pub async fn diff(&self, run: &Run) -> Result<DiffView, Refusal> {
        review::diff(&self.inner, run).await
    }

    /// What an export of the run left out, put into the answer.
    ///
    /// # Errors
    /// `export.nothing`, `fs.io`.
    pub fn with_left_out(
        &self,
        run: &RunId,
        mut result: ExportResult,
    ) -> Result<ExportResult, Refusal> {
        let left = review::left_out(&self.inner, run, result.patch.is_some())?;
        result.left_out = left.files;
        result.notes = left.notes;
        result.uncommitted_base = left.uncommitted_base && result.commit.is_some();
        Ok(result)
    }

    /// The parts of what the run changed, once it is sealed.
    pub fn changes(&self, run: &RunId) -> Option<ChangesView> {
        review::changes(&self.inner, run)
    }

    /// Whether a ref may be made for the run.
    ///
    /// # Errors
    /// `export.bad_ref`, `export.not_repository`, `export.ref_moved`.
    pub async fn check_ref(&self, run: &RunId, name: &str) -> Result<(), Refusal> {
        workspace::check_ref(&self.inner, run, name).await
    }

    /// The patch that an export wrote.
    ///
    /// # Errors
    /// `fs.io`.
    pub fn read_patch(&self, run: &RunId) -> Result<String, Refusal> {
        let path = self.inner.dirs.patch(run);
        let bytes = std::fs::read(&path).map_err(|e| crate::files::io_refusal(&path, &e))?;
        String::from_utf8(bytes).map_err(|_| {
            Refusal::new(Code::ExportBadPath, "the patch holds bytes that are not UTF-8")
                .with_help("export to a ref instead")
        })
    }

    /// Forgets an earlier failure before a new export.
    pub fn forget_export_failure(&self, run: &RunId) {
        self.inner.failures().remove(run);
    }

    /// Why the last export of a run failed.
    pub fn export_failure(&self, run: &RunId) -> Option<Refusal> {
        self.inner.failures().get(run).cloned()
    }

    /// What the probe found, for `doctor`.
    pub fn support_view(&self) -> SupportView {
        let tests = self.inner.support.self_test();
        SupportView {
            enforceable: self.inner.enforceable().is_ok(),
            features: self.inner.support.features().iter().map(feature_view).collect(),
            self_test: SelfTestCount {
                acts: tests.len(),
                refused: tests.iter().filter(|t| t.refused).count(),
            },
        }
    }

    /// Makes the record of a run of this generation and watches for its client.
    pub fn begin(&self, run: RunId, live: Arc<Live>) {
        let foreground = live.foreground;
        self.inner.live.insert(run.clone(), live);
        if foreground {
            let inner = Arc::clone(&self.inner);
            tokio::spawn(async move { expect_client(&inner, run).await });
        }
    }
}

/// A client of a foreground run that never attaches is gone.
async fn expect_client(inner: &Arc<Inner>, run: RunId) {
    /// Time between the request and the attach; clients do both at once.
    const ATTACH_SECONDS_MAX: u64 = 10;
    tokio::time::sleep(std::time::Duration::from_secs(ATTACH_SECONDS_MAX)).await;
    let attached = inner.live.get(&run).is_none_or(|live| live.with(|parts| parts.attached));
    if !attached {
        inner.observe(Observation::ClientGone { run }).await;
    }
}

fn feature_view(feature: &atenea_launcher::probe::Feature) -> FeatureView {
    let (state, detail, code, help) = match (&feature.found, &feature.refusal) {
        (_, Some(refusal)) => (
            if feature.required { "missing" } else { "absent" },
            refusal.cause.clone(),
            Some(refusal.code),
            // What is only nice to have needs no remedy.
            if feature.required { refusal.help.clone() } else { String::new() },
        ),
        (Some(found), None) => ("ok", found.clone(), None, String::new()),
        (None, None) => {
            ("not tried", "needs what is missing above".to_owned(), None, String::new())
        }
    };
    FeatureView {
        name: feature.name.to_string(),
        required: feature.required,
        state: state.to_owned(),
        detail,
        code: code.map(|code: Code| code.to_string()),
        help,
    }
}

impl Inner {
    /// The proof that this host can contain a run, with this very engine (S2).
    ///
    /// # Errors
    /// The first feature that is missing, or an engine whose digest is not accepted.
    pub fn enforceable(&self) -> Result<Enforceable, Refusal> {
        let config = self.config.now();
        let engine = &config.sandbox.bubblewrap;
        let accepted = engine.digests.is_empty()
            || self.boundary.digest.is_some_and(|found| engine.digests.contains(&found));
        if accepted {
            return self.support.enforceable();
        }
        let found = self.boundary.digest.map_or_else(|| "unknown".to_owned(), |d| d.to_string());
        let cause = format!("{} has digest {found}, which is not listed", engine.path.display());
        Err(Refusal::new(Code::HostBubblewrapUnusable, cause)
            .with_help("add the digest to sandbox.bubblewrap.digests after a review"))
    }

    /// Reports to the driver.
    pub async fn observe(&self, seen: Observation) {
        if let Some(handle) = self.handle.get() {
            handle.observe(seen).await;
        }
    }

    /// The driver.
    ///
    /// # Errors
    /// When it is not connected yet.
    pub fn handle(&self) -> Result<&Handle, Refusal> {
        let early = || Refusal::new(Code::ProcessStopping, "the driver is not there yet");
        self.handle.get().ok_or_else(early)
    }

    /// A run of the durable state.
    ///
    /// # Errors
    /// `process.no_such_run`.
    pub async fn run(&self, run: &RunId) -> Result<Run, Refusal> {
        self.handle()?.read(|state| state.run(run).cloned()).await
    }

    /// A run of this generation.
    ///
    /// # Errors
    /// `recovery.lost` for one of another.
    pub fn live(&self, run: &RunId) -> Result<Arc<Live>, Refusal> {
        let gone = || Refusal::new(Code::RecoveryLost, format!("run {run} is of another life"));
        self.live.get(run).ok_or_else(gone)
    }

    /// Reports refusals of the boundary as violations.
    pub fn violation_sink(self: &Arc<Self>, run: &RunId, area: &'static str) -> ViolationSink {
        ViolationSink { inner: Arc::clone(self), run: run.clone(), area }
    }

    pub(super) fn failures(&self) -> MutexGuard<'_, HashMap<RunId, Refusal>> {
        self.export_failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leftovers(&self) -> MutexGuard<'_, HashMap<RunId, RunGroup>> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where egress and broker report to; must not block.
#[derive(Clone)]
pub struct ViolationSink {
    inner: Arc<Inner>,
    run: RunId,
    area: &'static str,
}

impl ViolationSink {
    /// Reports one kind of refusal.
    pub fn tell(&self, code: Code, subject: &str, count: u64) {
        let violation = Violation {
            phase: self.area.to_owned(),
            code,
            subject: subject.to_owned(),
            count,
            killed_run: false,
        };
        let (inner, run) = (Arc::clone(&self.inner), self.run.clone());
        tokio::spawn(async move { inner.observe(Observation::Violation { run, violation }).await });
    }
}

impl Execute for Host {
    fn at_once(&self, effect: &Effect) -> Option<Observation> {
        if effect.lane().1 != Lane::Memory {
            return None;
        }
        let place = crash::place_of_effect(effect);
        crash::effect(Side::Before, place);
        let seen = in_memory(&self.inner, effect);
        crash::effect(Side::After, place);
        seen
    }

    fn execute(&self, effect: Effect) {
        let inner = Arc::clone(&self.inner);
        let (run, lane) = effect.lane();
        debug_assert_ne!(lane, Lane::Memory, "{effect:?} is done at once");
        let place = crash::place_of_effect(&effect);
        let work = async move {
            crash::effect(Side::Before, place);
            let seen = run_effect(&inner, effect).await;
            crash::effect(Side::After, place);
            for seen in seen {
                inner.observe(seen).await;
            }
        };
        self.inner.lanes.spawn(run, lane, work);
    }
}

/// Effects that reach no further than this process's memory; `None` for others.
fn in_memory(inner: &Arc<Inner>, effect: &Effect) -> Option<Observation> {
    let step = |run: &RunId, step: Step, done: Result<Observation, Refusal>| {
        let failed = |refusal| Observation::StepFailed { run: run.clone(), step, refusal };
        Some(done.unwrap_or_else(failed))
    };
    match effect {
        Effect::CompilePolicy { run } => step(run, Step::Policy, sandbox::policy(inner, run)),
        Effect::BindBoundary { run } => {
            step(run, Step::Boundary, sandbox::bind_boundary(inner, run))
        }
        Effect::RevokeToken { run } => {
            // C2: unknown from here on; what was presented before is judged before.
            inner.tokens.revoke(run);
            Some(Observation::CleanupDone { run: run.clone(), step: CleanupStep::Token })
        }
        _ => None,
    }
}

/// Runs one effect to its end. What it returns is reported in order.
async fn run_effect(inner: &Arc<Inner>, effect: Effect) -> Vec<Observation> {
    let step = |run: &RunId, step: Step, done: Result<Observation, Refusal>| {
        let failed = |refusal| Observation::StepFailed { run: run.clone(), step, refusal };
        vec![done.unwrap_or_else(failed)]
    };
    let clean = |run: &RunId, step: CleanupStep, done: Result<Observation, Refusal>| {
        let failed = |refusal| Observation::CleanupFailed { run: run.clone(), step, refusal };
        vec![done.unwrap_or_else(failed)]
    };
    match effect {
        Effect::PrepareWorkspace { run } => {
            step(&run, Step::Workspace, workspace::prepare(inner, &run).await)
        }
        Effect::MakeGroup { run } => {
            step(&run, Step::Group, sandbox::make_group(inner, &run).await)
        }
        Effect::CreateSandbox { run } => {
            step(&run, Step::Sandbox, sandbox::create(inner, &run).await)
        }
        Effect::StartAgent { run } => step(&run, Step::Go, sandbox::go(inner, &run).await),
        Effect::AbortSteps { run } => {
            if let Some(live) = inner.live.get(&run) {
                live.abort.send_replace(true);
            }
            Vec::new()
        }
        Effect::TerminateAgent { run } => {
            sandbox::terminate(inner, &run).await;
            Vec::new()
        }
        Effect::KillGroup { run } => {
            let request = Request::KillGroup { run: run.clone() };
            if let Err(refusal) = inner.helper.call(request).await {
                tracing::debug!("kill of {run}: {}", refusal.cause);
            }
            Vec::new()
        }
        // The driver has these done at once.
        Effect::CompilePolicy { .. } | Effect::BindBoundary { .. } | Effect::RevokeToken { .. } => {
            Vec::new()
        }
        Effect::RemoveGroup { run } => {
            clean(&run, CleanupStep::Group, cleanup::remove_group(inner, &run).await)
        }
        Effect::CloseBoundary { run } => cleanup::close_boundary(inner, &run).await,
        Effect::SealWorkspace { run } => {
            clean(&run, CleanupStep::Workspace, workspace::seal(inner, &run).await)
        }
        Effect::RemoveWorkspace { run } => {
            clean(&run, CleanupStep::Workspace, workspace::remove_unseen(inner, &run).await)
        }
        Effect::WriteReceipt { run } => cleanup::write_receipt(inner, &run).await,
        Effect::Export { run, target, at_wall_ms } => {
            workspace::export(inner, &run, target, at_wall_ms).await
        }
        Effect::Discard { run } => workspace::discard(inner, &run).await,
    }
}
