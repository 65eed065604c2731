//! Recovery at start: what is there is looked at before it is compared with what should be.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atenea_core::input::Observation;
use atenea_core::{Code, Phase, Refusal, RunId, State};
use atenea_reaper::{Layout, Leftover, Observed, RunGroup, State as Disk, kill_group};

use crate::driver::Handle;
use crate::driver::host::Inner;

/// How long start waits for the cleanup of what its predecessor left. What takes longer is stuck:
/// it goes on beside new work, and is shown.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(30);
/// How long a killed leftover may take to die.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// What the scan found.
pub(super) struct Scan {
    observed: Observed,
}

/// Looks at control groups and state directory. A host without control groups of ours can hold
/// none of our runs; any other failure stops the start: no sweep may run on "I could not read it".
///
/// # Errors
/// `host.no_supervisor` with what cannot be read.
pub(super) fn scan(root: &Path, instance: &str) -> Result<Option<Scan>, Refusal> {
    let unreadable = |e: &dyn std::fmt::Display| {
        Refusal::new(Code::HostNoSupervisor, format!("what was left cannot be read: {e}"))
    };
    let layout = match Layout::detect() {
        Ok(layout) => layout,
        Err(error) if error.is_host_support() => {
            tracing::warn!("no control groups: {error}");
            return Ok(None);
        }
        Err(error) => return Err(unreadable(&error)),
    };
    let disk = Disk::open(root).map_err(|e| unreadable(&e))?;
    let observed = atenea_reaper::observe(&disk, &layout, instance).map_err(|e| unreadable(&e))?;
    // Places of dead supervisors that hold nothing any more. Done before the helper makes ours.
    if let Err(error) = atenea_reaper::remove_instances(&layout, &observed.instances) {
        tracing::warn!("groups of dead supervisors: {error}");
    }
    Ok(Some(Scan { observed }))
}

/// What is left after the groups of known runs were taken out of a scan.
#[derive(Default)]
pub(super) struct Unknown {
    groups: Vec<RunGroup>,
    dirs: Vec<RunId>,
    /// Kept: what is in them belongs to somebody.
    pub(super) kept: Vec<PathBuf>,
    /// Files that were being written, and sockets that nobody listens on.
    files: Vec<Leftover>,
}

/// Splits a scan: groups of runs that the journal knows are left to their cleanup steps.
pub(super) fn split(scan: Option<Scan>, state: &State) -> (HashMap<RunId, RunGroup>, Unknown) {
    let mut known = HashMap::new();
    let mut unknown = Unknown::default();
    let Some(Scan { observed }) = scan else { return (known, unknown) };
    // We hold the lock: whoever wrote them is dead, and nothing lives yet of what we will write.
    unknown.files = observed.compare(|_| false, |run| state.runs.contains_key(run));
    unknown.files.retain(|left| matches!(left, Leftover::HalfMade(_) | Leftover::Socket(_)));
    for seen in observed.groups {
        // A run that has ended and left nothing has no cleanup step any more.
        let expected = |run: &RunId| state.active.contains(run);
        match seen.run.filter(expected) {
            Some(run) => drop(known.insert(run, seen.group)),
            None => unknown.groups.push(seen.group),
        }
    }
    for dir in observed.runs {
        if state.runs.contains_key(&dir.run) {
            continue;
        }
        if dir.is_precious() {
            // C4: somebody's work or proof without a record, after a loss a person accepted.
            tracing::warn!("{} is kept: no record knows its run", dir.path.display());
            unknown.kept.push(dir.path);
        } else {
            unknown.dirs.push(dir.run);
        }
    }
    for path in observed.foreign.iter().chain(&observed.mounts) {
        tracing::warn!("{} is not ours; it is left alone", path.display());
    }
    (known, unknown)
}

/// Kills and removes what is ours and no run accounts for; each removal is recorded.
pub(super) async fn remove_unknown(inner: &Inner, unknown: Unknown) {
    let root = inner.dirs.root().to_owned();
    let removed = tokio::task::spawn_blocking(move || remove_all(&root, unknown)).await;
    for (kind, name) in removed.unwrap_or_default() {
        tracing::info!("removed {kind} {name}, which no run accounts for");
        inner.observe(Observation::LeftoverRemoved { kind, name }).await;
    }
}

fn remove_all(root: &Path, unknown: Unknown) -> Vec<(String, String)> {
    let mut removed = Vec::new();
    for group in &unknown.groups {
        let name = group.name().to_owned();
        let gone =
            kill_group(group, KILL_PATIENCE).and_then(|_| atenea_reaper::remove_group(group));
        match gone {
            Ok(()) => removed.push(("group".to_owned(), name)),
            Err(error) => tracing::error!("group {name}: {error}"),
        }
    }
    match Disk::open(root) {
        Ok(disk) => {
            for run in unknown.dirs {
                match atenea_reaper::remove_run_dir(&disk, &run, None) {
                    Ok(_) => removed.push(("run directory".to_owned(), run.to_string())),
                    Err(error) => tracing::error!("directory of {run}: {error}"),
                }
            }
            removed.extend(unknown.files.iter().filter_map(|left| remove_file(&disk, left)));
        }
        Err(error) => tracing::error!("state directory: {error}"),
    }
    removed
}

fn remove_file(disk: &Disk, left: &Leftover) -> Option<(String, String)> {
    let (Leftover::HalfMade(path) | Leftover::Socket(path)) = left else { return None };
    match atenea_reaper::remove_leftover(disk, left) {
        Ok(_) => {
            let name = path.strip_prefix(disk.path()).unwrap_or(path);
            Some((left.kind().to_owned(), name.display().to_string()))
        }
        Err(error) => {
            tracing::error!("{}: {error}", path.display());
            None
        }
    }
}

/// Waits until everything of an earlier generation is over or stuck.
pub(super) async fn settled(handle: &Handle) {
    let over = |state: &State| {
        let mut live = state.active.iter().filter_map(|id| state.runs.get(id));
        live.all(|run| run.phase == Phase::Ended || run.stuck().is_some()).then_some(())
    };
    if tokio::time::timeout(CLEANUP_PATIENCE, handle.until(over)).await.is_err() {
        tracing::warn!("cleanup of earlier runs goes on");
    }
}

/// Kills every process of every group of ours, when nobody else can any more.
///
/// # Errors
/// What cannot be read.
pub(super) fn kill_everything(root: &Path, instance: &str) -> Result<(), Refusal> {
    let Some(scan) = scan(root, instance)? else { return Ok(()) };
    for seen in &scan.observed.groups {
        if let Err(error) = kill_group(&seen.group, KILL_PATIENCE) {
            tracing::error!("group {}: {error}", seen.group.name());
        }
    }
    Ok(())
}
