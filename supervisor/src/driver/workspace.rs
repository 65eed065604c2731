//! Effects on workspaces: prepare, seal, export, discard, remove. All file work is done by workers;
//! deletion is the reaper's.

use std::sync::Arc;

use atenea_core::event::{Chore, ExportTarget, Owner};
use atenea_core::input::Observation;
use atenea_core::manifest::Manifest;
use atenea_core::run::Run;
use atenea_core::{Code, Profile, Refusal, RunId};
use atenea_workspace::worker::{Answer, Request};
use atenea_workspace::{
    Base, CloneOptions, Filter, Identity, RawPath, SealOptions, Sealed, SnapshotOptions, Source,
};
use serde::{Deserialize, Serialize};

use super::host::Inner;
use super::live::Live;
use super::worker::{self, As};
use crate::api::types::Progress;
use crate::crash::{self, Place};
use crate::files;

/// Longest time a preparation may take, seconds: a million files take minutes.
const PREPARE_SECONDS_MAX: u64 = 1_800;
/// Progress is shown when a step takes longer than this.
const PROGRESS_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// What the workspace step found out: later steps and recovery need it. Kept in the run's directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// The repository or directory.
    pub source: Source,
    /// Directory on the host that the agent sees.
    pub path: RawPath,
    /// Who the agent commits as, and an export is made by.
    pub identity: Identity,
    /// Bytes of all files at the start.
    pub bytes: u64,
    /// The sealed result, once there is one.
    pub sealed: Option<Sealed>,
    /// Why there is none, although the agent is gone.
    pub unsealable: Option<Refusal>,
    /// Whether something changed that is in no tree and no count.
    #[serde(default)]
    pub other_work: bool,
}

impl Prepared {
    pub(super) fn load(inner: &Inner, run: &RunId) -> Result<Self, Refusal> {
        let path = inner.dirs.prepared(run);
        let text = std::fs::read(&path).map_err(|e| files::io_refusal(&path, &e))?;
        serde_json::from_slice(&text)
            .map_err(|e| Refusal::new(Code::FsIo, format!("{}: {e}", path.display())))
    }

    fn store(&self, inner: &Inner, run: &RunId) -> Result<(), Refusal> {
        files::replace(&inner.dirs.prepared(run), &self.text()?)
    }

    /// As [`Prepared::store`] for a run that leaves nothing: after a crash of the machine nobody
    /// reads it, so it is not synced.
    fn note(&self, inner: &Inner, run: &RunId) -> Result<(), Refusal> {
        files::note(&inner.dirs.prepared(run), &self.text()?)
    }

    fn text(&self) -> Result<Vec<u8>, Refusal> {
        serde_json::to_vec(self).map_err(|e| Refusal::new(Code::FsIo, e.to_string()))
    }
}

/// The directory that the agent sees.
///
/// # Errors
/// When the step has not run.
pub(super) fn prepared_path(inner: &Inner, run: &RunId) -> Result<RawPath, Refusal> {
    Ok(Prepared::load(inner, run)?.path)
}

/// Snapshot or private clone.
pub(super) async fn prepare(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let live = inner.live(run)?;
    let record = inner.run(run).await?;
    let limit = std::time::Duration::from_secs(PREPARE_SECONDS_MAX);
    tokio::select! {
        done = tokio::time::timeout(limit, prepare_all(inner, &record, &live)) => {
            done.unwrap_or_else(|_| {
                let cause = format!("the workspace was not there after {PREPARE_SECONDS_MAX} s");
                Err(Refusal::new(Code::FsTooLarge, cause))
            })
        }
        () = live.aborted() => {
            Err(Refusal::new(Code::RecoveryAborted, "the workspace was not finished: the run was ended"))
        }
    }
}

async fn prepare_all(inner: &Inner, run: &Run, live: &Live) -> Result<Observation, Refusal> {
    let manifest = live.sealed.manifest();
    let who = rights(run.spec.owner);
    let start = RawPath(manifest.workspace.path.clone().into_bytes());
    let state_dir = Some(inner.dirs.root().into());
    let inspect = Request::Inspect { path: start, state_dir };
    let mut worker = inner.workers.session(who).await?;
    let source = match worker.ask(&inspect, |_| {}).await? {
        Answer::Source(source) => source,
        other => return Err(unexpected(&other)),
    };
    let identity = identity(&mut worker, run, &source).await?;
    let Made { path, base_tree, base_commit, bytes } = match run.spec.profile {
        Profile::WorkspaceWrite => {
            // The clone is the supervisor's own; when that is the user, the worker is the right one.
            let own = who.is_none().then_some(worker);
            clone(inner, run, live, &source, &identity, own).await?
        }
        _ => snapshot(inner, live, &source, &identity, &mut worker).await?,
    };
    crash::moment(Place::WorkspaceMade);
    let prepared = Prepared {
        source,
        path,
        identity,
        bytes,
        sealed: None,
        unsealable: None,
        other_work: false,
    };
    if run.spec.writable_workspace {
        prepared.store(inner, &run.id)?;
    } else {
        prepared.note(inner, &run.id)?;
    }
    Ok(Observation::WorkspaceReady { run: run.id.clone(), base_tree, base_commit })
}

/// Who the user is to git: who the agent commits as, and which files the user ignores. A directory
/// without a repository that is only read needs neither.
async fn identity(
    worker: &mut worker::Session,
    run: &Run,
    source: &Source,
) -> Result<Identity, Refusal> {
    if run.spec.profile == Profile::Read && !source.is_repository() {
        return Ok(Identity::default());
    }
    let ask = Request::Identity { source: source.clone(), home: home_of(run.spec.owner) };
    match worker.ask(&ask, |_| {}).await? {
        Answer::Identity(identity) => Ok(identity),
        other => Err(unexpected(&other)),
    }
}

struct Made {
    path: RawPath,
    base_tree: Option<String>,
    base_commit: Option<String>,
    bytes: u64,
}

async fn snapshot(
    inner: &Inner,
    live: &Live,
    source: &Source,
    identity: &Identity,
    worker: &mut worker::Session,
) -> Result<Made, Refusal> {
    let manifest = live.sealed.manifest();
    let options = SnapshotOptions {
        filter: filter(manifest),
        excludes: identity.excludes.clone(),
        ..SnapshotOptions::default()
    };
    let cache = inner.dirs.cache().as_path().into();
    let request = Request::Snapshot { source: source.clone(), cache, options };
    match worker.ask(&request, shown(live)).await? {
        Answer::Snapshot(made) => Ok(Made {
            path: made.path,
            base_tree: Some(made.tree),
            base_commit: source.head.clone(),
            bytes: made.bytes,
        }),
        other => Err(unexpected(&other)),
    }
}

async fn clone(
    inner: &Inner,
    run: &Run,
    live: &Live,
    source: &Source,
    identity: &Identity,
    asked: Option<worker::Session>,
) -> Result<Made, Refusal> {
    let manifest = live.sealed.manifest();
    let dest = inner.dirs.workspace(&run.id);
    make_guard(&inner.dirs.workspace_guard(&run.id))?;
    let base = match manifest.workspace.base.as_deref() {
        None | Some("working-tree") => Base::WorkingTree,
        Some("HEAD") => Base::Head,
        Some(commit) => Base::Commit(commit.to_owned()),
    };
    let own = rustix::process::geteuid().as_raw();
    let options = CloneOptions {
        base,
        filter: filter(manifest),
        identity: identity.clone(),
        owner: run.run_uid.filter(|uid| *uid != own).map(|uid| (uid, uid)),
        ..CloneOptions::default()
    };
    let request = Request::Clone {
        source: source.clone(),
        dest: dest.as_path().into(),
        store: inner.dirs.base(&run.id).as_path().into(),
        cache: inner.dirs.cache().as_path().into(),
        options,
    };
    let mut worker = match asked {
        Some(worker) => worker,
        None => inner.workers.session(None).await?,
    };
    match worker.ask(&request, shown(live)).await? {
        Answer::Clone(made) => Ok(Made {
            path: dest.as_path().into(),
            base_tree: Some(made.base_tree),
            base_commit: made.base_commit,
            bytes: made.bytes,
        }),
        other => Err(unexpected(&other)),
    }
}

/// Other users of the host must not reach the workspace, nor a socket in it: the agent may give its
/// files any mode.
fn make_guard(dir: &std::path::Path) -> Result<(), Refusal> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(dir).map_err(|e| files::io_refusal(dir, &e))
}

fn filter(manifest: &Manifest) -> Filter {
    let workspace = &manifest.workspace;
    let all = || vec!["**".to_owned()];
    Filter {
        files: workspace.files.clone().unwrap_or_else(all),
        include_ignored: workspace.include_ignored.clone(),
    }
}

/// Publishes progress once the step has taken a second.
fn shown(live: &Live) -> impl FnMut(atenea_workspace::Progress) + use<> {
    let began = crate::clock::now().boot_ms;
    let progress = live.progress.clone();
    let after = u64::try_from(PROGRESS_AFTER.as_millis()).unwrap_or(u64::MAX);
    move |now| {
        if crate::clock::now().boot_ms.saturating_sub(began) >= after {
            let total = (now.total > 0).then_some(now.total);
            progress.send_replace(Some(Progress { files: now.done, total, bytes: now.bytes }));
        }
    }
}

/// S6: a worker has the rights of the run's owner.
pub(super) fn rights(owner: Owner) -> Option<As> {
    let own = rustix::process::geteuid().as_raw();
    (owner.uid != own).then_some(As { uid: owner.uid, gid: owner.gid })
}

fn home_of(owner: Owner) -> Option<RawPath> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(owner.uid)).ok()??;
    Some(user.dir.as_path().into())
}

pub(super) fn unexpected(answer: &Answer) -> Refusal {
    let text: String = format!("{answer:?}").chars().take(80).collect();
    Refusal::new(Code::FsIo, format!("the workspace worker answered something else: {text}"))
}

/// Longest time a seal may take, seconds: above what the largest workspace within its limits needs,
/// also when it grew beyond them before the accountant looked, and an end for one that was made to
/// take for ever.
const SEAL_SECONDS_MAX: u64 = 900;
/// Longest time of one export, seconds.
const EXPORT_SECONDS_MAX: u64 = 600;

/// Seals what the agent left. Without changes that count, nothing is left to miss. A workspace that
/// was made so that it cannot be sealed is kept as it is: a person may look at it and discard it.
pub(super) async fn seal(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    if let Some(grown) = super::disk::last_look(inner, &inner.run(run).await?).await {
        inner.observe(grown).await;
    }
    let mut prepared = Prepared::load(inner, run)?;
    let seen = |result_tree, changed| {
        Ok(Observation::WorkspaceSealed { run: run.clone(), result_tree, changed })
    };
    match try_seal(inner, run, prepared.bytes).await {
        Ok(sealed) => {
            let c = sealed.changes;
            let changed = c.added + c.modified + c.deleted + c.ignored + sealed.refused_total;
            let result_tree = Some(sealed.result_tree.clone());
            prepared.sealed = Some(sealed);
            prepared.other_work = changed == 0 && !unchanged(inner, run).await?;
            prepared.store(inner, run)?;
            seen(result_tree, if prepared.other_work { 1 } else { changed })
        }
        Err(refusal) if is_of_the_content(refusal.code) => {
            tracing::warn!("workspace of {run} cannot be sealed: {}", refusal.cause);
            prepared.unsealable = Some(refusal);
            prepared.store(inner, run)?;
            seen(None, 1)
        }
        Err(refusal) => Err(refusal),
    }
}

/// Trying again would find the same.
fn is_of_the_content(code: Code) -> bool {
    matches!(code, Code::FsTooLarge | Code::FsBadWorkspace | Code::FsNotYours)
        || code.as_str().starts_with("export.")
}

async fn try_seal(inner: &Inner, run: &RunId, bytes_before: u64) -> Result<Sealed, Refusal> {
    let disk = inner.run(run).await?.spec.limits.disk_bytes;
    let mut options = SealOptions::default();
    // Twice what it may grow by: files that shrank and grew. What the accountant saw too late lies on
    // the disk, and whatever lies there is taken.
    options.limits.bytes = bytes_before.saturating_add(disk.saturating_mul(2));
    let request = Request::Seal {
        ws: inner.dirs.workspace(run).as_path().into(),
        store: inner.dirs.base(run).as_path().into(),
        options,
    };
    let limit = std::time::Duration::from_secs(SEAL_SECONDS_MAX);
    match tokio::time::timeout(limit, inner.workers.ask(None, &request, |_| {})).await {
        Ok(Ok(Answer::Sealed(sealed))) => Ok(sealed),
        Ok(Ok(other)) => Err(unexpected(&other)),
        Ok(Err(refusal)) => Err(refusal),
        Err(_) => {
            let cause = format!("it could not be read in {SEAL_SECONDS_MAX} s");
            Err(Refusal::new(Code::FsTooLarge, cause))
        }
    }
}

/// C4: commits, branches and whatever else the tree does not show count as work too.
async fn unchanged(inner: &Inner, run: &RunId) -> Result<bool, Refusal> {
    let request = Request::IsUnchanged {
        ws: inner.dirs.workspace(run).as_path().into(),
        store: inner.dirs.base(run).as_path().into(),
    };
    match inner.workers.ask(None, &request, |_| {}).await? {
        Answer::Unchanged(unchanged) => Ok(unchanged),
        other => Err(unexpected(&other)),
    }
}

/// The sealed result, or why there is none.
///
/// # Errors
/// `export.nothing`, and whatever stood against sealing.
pub(super) fn sealed(prepared: &Prepared, run: &RunId) -> Result<Sealed, Refusal> {
    let missing = || {
        let why = Refusal::new(Code::ExportNothing, format!("run {run} has nothing sealed"));
        prepared.unsealable.clone().unwrap_or(why)
    };
    prepared.sealed.clone().ok_or_else(missing)
}

/// Refuses a ref that cannot be made before the intent is journalled.
pub(super) async fn check_ref(inner: &Inner, run: &RunId, name: &str) -> Result<(), Refusal> {
    let record = inner.run(run).await?;
    if !record.spec.writable_workspace || record.phase != atenea_core::Phase::Ended {
        return Ok(());
    }
    let Ok(prepared) = Prepared::load(inner, run) else { return Ok(()) };
    if !prepared.source.is_repository() {
        let cause = format!("{} is no repository", prepared.source.root.shown());
        return Err(Refusal::new(Code::ExportNotRepository, cause));
    }
    let request =
        Request::ReadRef { repository: prepared.source, name: RawPath(name.as_bytes().to_vec()) };
    match inner.workers.ask(rights(record.spec.owner), &request, |_| {}).await? {
        Answer::Ref(None) => Ok(()),
        Answer::Ref(Some(value)) => {
            Err(Refusal::new(Code::ExportRefExists, format!("{name} exists already at {value}")))
        }
        other => Err(unexpected(&other)),
    }
}

/// Writes the accepted changes. Repeating it after a crash makes the same commit (R3).
pub(super) async fn export(
    inner: &Arc<Inner>,
    run: &RunId,
    target: ExportTarget,
    at_wall_ms: u64,
) -> Vec<Observation> {
    let work = async {
        match target {
            ExportTarget::Ref(name) => export_ref(inner, run, &name, at_wall_ms).await.map(Some),
            ExportTarget::Patch => export_patch(inner, run).await.map(|()| None),
        }
    };
    // The agent's content decides how long it takes; giving up kills the worker and its git.
    let limit = std::time::Duration::from_secs(EXPORT_SECONDS_MAX);
    let done = tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let cause = format!("it could not be written in {EXPORT_SECONDS_MAX} s");
        Err(Refusal::new(Code::FsTooLarge, cause)
            .with_help("export to a ref, which compares no content, or copy the workspace"))
    });
    match done {
        Ok(commit) => vec![Observation::Exported { run: run.clone(), commit }],
        Err(refusal) => {
            inner.failures().insert(run.clone(), refusal.clone());
            vec![Observation::ExportFailed { run: run.clone(), refusal }]
        }
    }
}

async fn export_ref(
    inner: &Inner,
    run: &RunId,
    name: &str,
    at_wall_ms: u64,
) -> Result<String, Refusal> {
    let prepared = Prepared::load(inner, run)?;
    let sealed = sealed(&prepared, run)?;
    let record = inner.run(run).await?;
    let who = writer_of(&prepared.source);
    let pack = inner.dirs.pack(run);
    forget_file(&pack)?;
    let title = record.spec.name.as_ref().map_or_else(|| run.to_string(), ToString::to_string);
    let text = format!("{}: changes of run {title}\n\nAtenea-Run: {run}\n", record.spec.program);
    let request = Request::PackExport {
        store: inner.dirs.base(run).as_path().into(),
        sealed,
        knows_base: knows_base(inner, &record, &prepared.source, who).await?,
        message: atenea_workspace::export::Message { text, seconds: at_wall_ms / 1_000 },
        identity: prepared.identity,
        pack: pack.as_path().into(),
        reader: who.map(|who| (who.uid, who.gid)),
    };
    let commit = match inner.workers.ask(None, &request, |_| {}).await? {
        Answer::Packed(packed) => packed.commit,
        other => return Err(unexpected(&other)),
    };
    let request = Request::ImportRef {
        repository: prepared.source,
        name: RawPath(name.as_bytes().to_vec()),
        commit: commit.clone(),
        expected: None,
        pack: pack.as_path().into(),
    };
    let imported = inner.workers.ask(who, &request, |_| {}).await;
    forget_file(&pack)?;
    match imported? {
        Answer::Imported(_) => Ok(commit),
        other => Err(unexpected(&other)),
    }
}

/// Whether the repository still has the commit the run started from: it may have been pruned.
async fn knows_base(
    inner: &Inner,
    record: &Run,
    source: &Source,
    who: Option<As>,
) -> Result<bool, Refusal> {
    let Some(commit) = record.base_commit.clone() else { return Ok(false) };
    let request = Request::Knows { repository: source.clone(), commit };
    match inner.workers.ask(who, &request, |_| {}).await? {
        Answer::Knows(knows) => Ok(knows),
        other => Err(unexpected(&other)),
    }
}

/// Removes what an export that broke off may have left.
fn forget_file(file: &std::path::Path) -> Result<(), Refusal> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(files::io_refusal(file, &error))
        }
        _ => Ok(()),
    }
}

/// S6: refs are written with the rights of the repository's owner, so that nothing in it ends up
/// belonging to somebody else.
fn writer_of(source: &Source) -> Option<As> {
    let own = rustix::process::geteuid().as_raw();
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(source.owner)).ok().flatten();
    let gid = user.map_or(source.owner, |user| user.gid.as_raw());
    (own == 0 && source.owner != 0).then_some(As { uid: source.owner, gid })
}

async fn export_patch(inner: &Inner, run: &RunId) -> Result<(), Refusal> {
    let prepared = Prepared::load(inner, run)?;
    let sealed = sealed(&prepared, run)?;
    let file = inner.dirs.patch(run);
    forget_file(&file)?;
    let store = inner.dirs.base(run).as_path().into();
    let request = Request::ExportPatch { store, sealed, file: file.as_path().into() };
    match inner.workers.ask(None, &request, |_| {}).await? {
        Answer::Patch(_) => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Deletes a workspace that a person gave up, or in which nothing was written.
pub(super) async fn discard(inner: &Arc<Inner>, run: &RunId) -> Vec<Observation> {
    match super::cleanup::remove_workspace(inner, run).await {
        Ok(()) => vec![Observation::Discarded { run: run.clone() }],
        Err(refusal) => {
            tracing::error!("workspace of {run}: {refusal}");
            vec![Observation::ChoreFailed { run: run.clone(), chore: Chore::Discard, refusal }]
        }
    }
}

/// Removes a workspace that no agent ever saw.
pub(super) async fn remove_unseen(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    super::cleanup::remove_workspace(inner, run).await?;
    Ok(Observation::WorkspaceRemoved { run: run.clone() })
}
