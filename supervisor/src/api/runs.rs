//! Handlers of `/v1/runs`.

use atenea_core::event::ExportTarget;
use atenea_core::input::Command;
use atenea_core::run::{Run, Workspace};
use atenea_core::{Code, Phase, Refusal, RunId};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};

use super::problem::Asked;
use super::types::{
    CancelRequest, DiffView, ExportRequest, ExportResult, NewRun, RunAccepted, RunStatus, RunsQuery,
};
use super::{ApiError, App, Peer, view};
use crate::clock;
use crate::driver::admission;
use crate::receipt::Issued;

type Answer<T> = Result<T, ApiError>;

/// `POST /v1/runs`
pub(super) async fn create(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Json<NewRun>, axum::extract::rejection::JsonRejection>,
) -> Answer<(StatusCode, Json<RunAccepted>)> {
    let Json(new) = body.map_err(bad_body)?;
    let key = match headers.get("idempotency-key") {
        None => None,
        Some(value) => {
            let text = value.to_str().unwrap_or_default();
            Some(atenea_core::IdempotencyKey::parse(text)?)
        }
    };
    let admitted = admission::request(&app, peer, new, key).await?;
    let status = if admitted.existing { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(admitted)))
}

/// A body that is no JSON of the right shape, as a refusal.
pub(super) fn bad_body(rejection: axum::extract::rejection::JsonRejection) -> ApiError {
    Refusal::new(Code::ApiBadRequest, rejection.body_text()).into()
}

/// Finds a run by id, prefix or name.
pub(super) async fn find(app: &App, text: &str) -> Result<Run, Refusal> {
    app.handle.read(|state| state.find(text).cloned()).await
}

fn row_of(app: &App, run: &Run) -> RunStatus {
    let progress = app.host.progress(&run.id);
    view::run_status(run, &app.dirs, clock::now().boot_ms, progress)
}

/// The status of one run; its parts are read from disk, which a list of all runs does not do.
pub(super) async fn status_of(app: &App, run: &Run) -> RunStatus {
    let mut status = row_of(app, run);
    if matches!(run.workspace, Workspace::Sealed | Workspace::Exported) {
        status.changes = app.host.changes(&run.id);
    }
    status
}

/// `GET /v1/runs`
pub(super) async fn list(
    State(app): State<App>,
    Asked(query): Asked<RunsQuery>,
) -> Answer<Json<Vec<RunStatus>>> {
    let wanted = query.state.as_deref();
    let fits = |run: &Run| match wanted {
        None => true,
        Some("live") => run.phase != Phase::Ended,
        Some(name) => run.phase.as_str() == name,
    };
    let mut runs: Vec<Run> =
        app.handle.read(|state| state.runs.values().filter(|r| fits(r)).cloned().collect()).await;
    runs.sort_by_key(|run: &Run| run.seq.0);
    Ok(Json(runs.iter().map(|run| row_of(&app, run)).collect()))
}

/// `GET /v1/runs/{id}`
pub(super) async fn show(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Answer<Json<RunStatus>> {
    let run = find(&app, &id).await?;
    Ok(Json(status_of(&app, &run).await))
}

/// `GET /v1/runs/{id}/wait`: answers when the receipt is there.
pub(super) async fn wait(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Answer<Json<RunStatus>> {
    let run = find(&app, &id).await?;
    let ended = until(&app, &run.id, |run| run.phase == Phase::Ended).await?;
    Ok(Json(status_of(&app, &ended).await))
}

/// Waits until a run is as wanted.
pub(super) async fn until(
    app: &App,
    id: &RunId,
    wanted: impl Fn(&Run) -> bool,
) -> Result<Run, Refusal> {
    let look = |state: &atenea_core::State| state.runs.get(id).filter(|r| wanted(r)).cloned();
    let gone = || Refusal::new(Code::ProcessStopping, "the supervisor is going down");
    app.handle.until(look).await.ok_or_else(gone)
}

/// `POST /v1/runs/{id}/cancel`
pub(super) async fn cancel(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Result<Json<CancelRequest>, axum::extract::rejection::JsonRejection>,
) -> Answer<Json<RunStatus>> {
    let Json(CancelRequest { reason, grace_ms, kill }) = body.map_err(bad_body)?;
    let run = find(&app, &id).await?.id;
    let reason = reason.unwrap_or_else(|| "cancelled by a client".to_owned());
    let reason: String = reason.chars().take(256).collect();
    app.handle.command(Command::Cancel { run: run.clone(), reason, grace_ms, kill }).await?;
    let run = find(&app, run.as_str()).await?;
    Ok(Json(status_of(&app, &run).await))
}

/// `GET /v1/runs/{id}/receipt`
pub(super) async fn receipt(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Answer<Json<Issued>> {
    let run = find(&app, &id).await?;
    if run.receipt.is_none() {
        let cause = format!("run {} is {}", run.id, run.phase.as_str());
        let refusal = Refusal::new(Code::ExportNotEnded, cause)
            .with_help("the receipt is written when the run has ended: atenea-sup wait RUN");
        return Err(ApiError::of_run(refusal, run.id));
    }
    Ok(Json(crate::receipt::with_amendments(&app.dirs, &run)?))
}

/// `GET /v1/runs/{id}/diff`
pub(super) async fn diff(State(app): State<App>, Path(id): Path<String>) -> Answer<Json<DiffView>> {
    let run = find(&app, &id).await?;
    if run.phase != Phase::Ended {
        let cause = format!("run {} is {}", run.id, run.phase.as_str());
        return Err(ApiError::of_run(Refusal::new(Code::ExportNotEnded, cause), run.id));
    }
    // Nothing was kept of it because nothing was changed.
    if run.left_unchanged() {
        return Ok(Json(DiffView::default()));
    }
    if !matches!(run.workspace, Workspace::Sealed | Workspace::Exported) {
        let cause = format!("the workspace of run {} is {}", run.id, run.workspace.as_str());
        return Err(ApiError::of_run(Refusal::new(Code::ExportNothing, cause), run.id));
    }
    let diff = app.host.diff(&run).await;
    Ok(Json(diff.map_err(|refusal| ApiError::of_run(refusal, run.id))?))
}

/// `POST /v1/runs/{id}/export`
pub(super) async fn export(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Result<Json<ExportRequest>, axum::extract::rejection::JsonRejection>,
) -> Answer<Json<ExportResult>> {
    let Json(ExportRequest { reference, patch }) = body.map_err(bad_body)?;
    let run = find(&app, &id).await?.id;
    let target = if patch {
        ExportTarget::Patch
    } else {
        ExportTarget::Ref(reference.unwrap_or_else(|| format!("refs/atenea/{run}")))
    };
    // Checked before the intent is journalled, so that a bad name leaves nothing behind.
    if let ExportTarget::Ref(name) = &target {
        app.host.check_ref(&run, name).await?;
    }
    app.host.forget_export_failure(&run);
    let intended = app.handle.command(Command::Export { run: run.clone(), target }).await;
    intended.map_err(|refusal| ApiError::of_run(refusal, run.clone()))?;
    let done = until(&app, &run, |r| !matches!(r.workspace, Workspace::Exporting { .. })).await?;
    // One that was exported before is so still, whatever became of this request.
    if let Some(refusal) = app.host.export_failure(&run) {
        return Err(ApiError::of_run(refusal, run));
    }
    match (&done.workspace, &done.exported) {
        (Workspace::Exported, Some((ExportTarget::Ref(name), commit))) => {
            let result = ExportResult {
                reference: Some(name.clone()),
                commit: commit.clone(),
                ..ExportResult::default()
            };
            Ok(Json(app.host.with_left_out(&run, result)?))
        }
        (Workspace::Exported, Some((ExportTarget::Patch, _))) => {
            let patch = Some(app.host.read_patch(&run)?);
            let result = ExportResult { patch, ..ExportResult::default() };
            Ok(Json(app.host.with_left_out(&run, result)?))
        }
        _ => Err(ApiError::of_run(Refusal::new(Code::ExportNothing, "the export failed"), run)),
    }
}

/// `POST /v1/runs/{id}/discard`
pub(super) async fn discard(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Answer<Json<RunStatus>> {
    let run = find(&app, &id).await?.id;
    let intended = app.handle.command(Command::Discard { run: run.clone() }).await;
    intended.map_err(|refusal| ApiError::of_run(refusal, run.clone()))?;
    let answered = |r: &Run| r.workspace != Workspace::Discarding || r.stuck().is_some();
    let done = until(&app, &run, answered).await?;
    match done.stuck() {
        Some((code, cause)) if done.workspace == Workspace::Discarding => {
            Err(ApiError::of_run(Refusal::new(*code, cause.clone()), run))
        }
        _ => Ok(Json(status_of(&app, &done).await)),
    }
}
