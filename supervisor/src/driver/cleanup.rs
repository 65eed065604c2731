//! Cleanup effects. Every one may be repeated after any crash (R2) and works for runs of another
//! generation, of which only the journal and the disk are left.

use std::sync::Arc;
use std::time::Duration;

use atenea_core::event::{Chore, CleanupStep};
use atenea_core::input::Observation;
use atenea_core::run::{Run, Workspace};
use atenea_core::{Code, Phase, Refusal, RunId};
use atenea_launcher::protocol::{Reply, Request};
use atenea_reaper::{Part, Permission, State, kill_group, remove_part};

use super::host::Inner;
use crate::crash::{self, Place};

/// How long a killed group may take to become empty before the try counts as failed (C3).
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long captures may take to reach the end of their pipes after everybody who could write is
/// dead. A write end elsewhere would be a leak; the run does not hang on it.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// Tries of a deletion, and the pause between them: a worker that was killed may have left a `git`
/// behind that ends by itself in a moment.
const DELETE_TRIES: u32 = 5;
const DELETE_PAUSE: Duration = Duration::from_millis(200);

/// Kills, proves empty and removes the run's group (C1).
pub(super) async fn remove_group(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let done = Observation::CleanupDone { run: run.clone(), step: CleanupStep::Group };
    if inner.live.get(run).is_some() {
        return match inner.helper.call(Request::RemoveGroup { run: run.clone() }).await? {
            Reply::Removed => {
                forget_if_over(inner, run).await;
                Ok(done)
            }
            other => Err(stuck(format!("the helper answered {other:?}"))),
        };
    }
    let Some(group) = inner.leftovers().remove(run) else {
        // The scan at start saw no group of this run, and nobody makes one for it any more.
        return Ok(done);
    };
    let (group, result) = blocking(move || {
        let result = kill_group(&group, KILL_PATIENCE)
            .and_then(|_| atenea_reaper::remove_group(&group))
            .map_err(|e| stuck(e.to_string()));
        (group, result)
    })
    .await?;
    if let Err(refusal) = result {
        inner.leftovers().insert(run.clone(), group);
        return Err(refusal);
    }
    Ok(done)
}

fn stuck(cause: String) -> Refusal {
    Refusal::new(Code::ProcessCleanupStuck, cause)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(|e| stuck(e.to_string()))
}

/// Closes listeners, connections and streams. What was refused and not reported yet is reported
/// before the step is.
pub(super) async fn close_boundary(inner: &Arc<Inner>, run: &RunId) -> Vec<Observation> {
    if let Some(live) = inner.live.get(run) {
        let (boundary, endpoint, captures) = live.with(|parts| {
            parts.fds = None;
            parts.token = None;
            if let Some(accountant) = parts.accountant.take() {
                accountant.abort();
            }
            (parts.boundary.take(), parts.endpoint.take(), std::mem::take(&mut parts.captures))
        });
        if let Some(boundary) = boundary {
            boundary.close().await;
        }
        if let Some(endpoint) = endpoint {
            endpoint.close().await;
        }
        *live.stdin.lock().await = None;
        live.stdin_ready.send_replace(true);
        for capture in captures {
            let stop = capture.abort_handle();
            if tokio::time::timeout(DRAIN_PATIENCE, capture).await.is_err() {
                tracing::warn!("output of {run} has no end; it is cut");
                stop.abort();
            }
        }
    }
    // Denials were handed over in tasks of their own; they go first.
    tokio::task::yield_now().await;
    vec![Observation::CleanupDone { run: run.clone(), step: CleanupStep::Boundary }]
}

/// Writes the receipt from the durable state. A failure is shown and tried again: a run without its
/// receipt has not ended.
pub(super) async fn write_receipt(inner: &Arc<Inner>, run: &RunId) -> Vec<Observation> {
    match try_receipt(inner, run).await {
        Ok(digest) => {
            crash::moment(Place::ReceiptOnDisk);
            finish(inner, run).await;
            vec![Observation::ReceiptWritten { run: run.clone(), digest }]
        }
        Err(refusal) => {
            tracing::error!("receipt of {run}: {refusal}");
            vec![Observation::ChoreFailed { run: run.clone(), chore: Chore::Receipt, refusal }]
        }
    }
}

async fn try_receipt(inner: &Arc<Inner>, run: &RunId) -> Result<atenea_core::Digest, Refusal> {
    let record = inner.run(run).await?;
    let last = record.settled_seq.unwrap_or(record.seq.1);
    let head = head_at(inner, last)?;
    crate::receipt::write(&record, &inner.dirs, &head)
}

/// Hash of the journal at a sequence.
fn head_at(inner: &Inner, seq: u64) -> Result<String, Refusal> {
    let mut records = inner.journal.records(seq).map_err(|e| super::record::refusal(&e))?;
    match records.next() {
        Some(Ok(record)) => Ok(record.hash.to_string()),
        Some(Err(error)) => Err(super::record::refusal(&error)),
        None => Err(Refusal::new(Code::JournalDamaged, format!("there is no record {seq}"))),
    }
}

/// Forgets what only a live run needs. The manifest holds arguments and variables: it goes when
/// nothing can need it any more.
async fn finish(inner: &Arc<Inner>, run: &RunId) {
    let _ = std::fs::remove_file(inner.dirs.manifest(run));
    let Ok(record) = inner.run(run).await else { return };
    // C1: what could not be removed is tried again through the helper, which still knows the run.
    if record.leftovers().is_empty() {
        inner.live.remove(run);
    }
    if record.go_intended {
        let inner = Arc::clone(inner);
        let who = super::workspace::rights(record.spec.owner);
        tokio::spawn(async move { inner.workers.prepare(who) });
    }
}

/// Forgets a run whose last leftover was removed after its end.
async fn forget_if_over(inner: &Arc<Inner>, run: &RunId) {
    if inner.run(run).await.is_ok_and(|record| record.phase == Phase::Ended) {
        inner.live.remove(run);
    }
}

/// Deletes the workspace and what it started from.
pub(super) async fn remove_workspace(inner: &Arc<Inner>, run: &RunId) -> Result<(), Refusal> {
    let record = inner.run(run).await?;
    let permission = permission(&record)?;
    for attempt in 1..=DELETE_TRIES {
        let (root, run, permission) =
            (inner.dirs.root().to_owned(), run.clone(), permission.clone());
        let removed = blocking(move || {
            let state = State::open(&root)?;
            remove_part(&state, &run, Part::Workspace(&permission))
        })
        .await?;
        match removed {
            Ok(_) => return Ok(()),
            Err(error) if attempt == DELETE_TRIES => return Err(stuck(error.to_string())),
            Err(error) => tracing::debug!("workspace of {}: {error}", record.id),
        }
        tokio::time::sleep(DELETE_PAUSE).await;
    }
    Ok(())
}

/// C4: why this workspace may be deleted, as the journal says.
fn permission(run: &Run) -> Result<Permission, Refusal> {
    if run.phase == Phase::Ended && run.workspace == Workspace::Discarding {
        return Ok(Permission::discarded(run.id.clone()));
    }
    if !run.go_intended {
        return Ok(Permission::never_started(run.id.clone()));
    }
    Err(stuck(format!("the workspace of {} is {}", run.id, run.workspace.as_str())))
}
