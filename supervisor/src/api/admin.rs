//! Handlers for everything that is not one run: budgets, violations, journal, the supervisor.

use atenea_core::input::Command;
use atenea_core::{AccountName, Code, Nanos, Refusal};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::problem::Asked;
use super::types::{
    AccountView, Health, Info, SetBudget, StopRequest, SupportView, ViolationView, ViolationsQuery,
};
use super::{ApiError, App, runs, view};
use crate::driver::record;
use crate::journal_view::{StatsView, VerifyView};

type Answer<T> = Result<T, ApiError>;

/// `GET /v1/budgets`
pub(super) async fn budgets(State(app): State<App>) -> Json<Vec<AccountView>> {
    let rows = |state: &atenea_core::State| {
        state.ledger.accounts.iter().map(|(name, account)| view::account(name, account)).collect()
    };
    Json(app.handle.read(rows).await)
}

/// `GET /v1/budgets/{name}`
pub(super) async fn budget(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Answer<Json<AccountView>> {
    let name = AccountName::parse(&name)?;
    let missing = || {
        Refusal::new(Code::BudgetNoAccount, format!("there is no budget account {name}"))
            .with_help(format!("make it: atenea-sup budget set {name} USD"))
    };
    let found = app
        .handle
        .read(|s| s.ledger.accounts.get(&name).map(|account| view::account(&name, account)))
        .await;
    Ok(Json(found.ok_or_else(missing)?))
}

/// `PUT /v1/budgets/{name}`
pub(super) async fn set_budget(
    State(app): State<App>,
    Path(name): Path<String>,
    body: Result<Json<SetBudget>, axum::extract::rejection::JsonRejection>,
) -> Answer<Json<AccountView>> {
    let Json(SetBudget { usd, per }) = body.map_err(runs::bad_body)?;
    let account = AccountName::parse(&name)?;
    let limit = Nanos::parse_usd(&usd)?;
    app.handle.command(Command::SetBudget { account, limit, per }).await?;
    budget(State(app), Path(name)).await
}

/// `GET /v1/violations`
pub(super) async fn violations(
    State(app): State<App>,
    Asked(query): Asked<ViolationsQuery>,
) -> Answer<Json<Vec<ViolationView>>> {
    let only = match &query.run {
        Some(text) => Some(runs::find(&app, text).await?.id),
        None => None,
    };
    let prefix = query.code.unwrap_or_default();
    let rows = |state: &atenea_core::State| {
        let runs = state.runs.values().filter(|r| only.as_ref().is_none_or(|id| *id == r.id));
        let all =
            runs.flat_map(|r| r.violations.iter().map(|(s, v)| ViolationView::new(&r.id, *s, v)));
        let mut rows: Vec<ViolationView> = all.filter(|v| v.code.starts_with(&prefix)).collect();
        rows.sort_by_key(|v| v.seq);
        rows
    };
    Ok(Json(app.handle.read(rows).await))
}

/// `POST /v1/journal/verify`
pub(super) async fn verify(State(app): State<App>) -> Answer<Json<VerifyView>> {
    let journal = app.journal.clone();
    let report = tokio::task::spawn_blocking(move || journal.verify_live())
        .await
        .map_err(|e| Refusal::new(Code::JournalIo, e.to_string()))?
        .map_err(|e| record::refusal(&e))?;
    Ok(Json(crate::journal_view::report(&report)))
}

/// `GET /v1/journal/stats`
pub(super) async fn stats(State(app): State<App>) -> Answer<Json<StatsView>> {
    let stats = app.journal.stats_live().map_err(|e| record::refusal(&e))?;
    Ok(Json(crate::journal_view::stats(&stats)))
}

/// `GET /v1/journal/dump`: one JSON object a line.
pub(super) async fn dump(State(app): State<App>) -> Answer<Response> {
    let text = crate::journal_view::dump(&app.journal)?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response())
}

/// `GET /v1/info`
pub(super) async fn info(State(app): State<App>) -> Json<Info> {
    let (generation, live_runs, seq, stopping) = app
        .handle
        .read(|s| {
            let live = s.runs.values().filter(|r| r.phase != atenea_core::Phase::Ended).count();
            (s.generation.0, live, s.seq, s.stopping)
        })
        .await;
    let config = app.config.now();
    Json(Info {
        pid: std::process::id(),
        helper: app.helper,
        generation,
        state_dir: app.dirs.root().display().to_string(),
        socket: app.socket.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: app.mode.to_owned(),
        config: config.file.as_ref().map(|file| file.display().to_string()),
        config_changed: app.config_now().is_none_or(|now| now != *config),
        live_runs,
        stopping,
        unaccounted: app.host.inner().unaccounted.iter().map(|d| d.display().to_string()).collect(),
        seq,
    })
}

/// `GET /v1/health`
pub(super) async fn health(State(app): State<App>) -> Answer<Json<Health>> {
    match app.journal.poisoned() {
        None => Ok(Json(Health { ok: true })),
        Some(cause) => Err(Refusal::new(Code::JournalIo, cause).into()),
    }
}

/// `GET /v1/doctor`: what the supervisor's own probe found.
pub(super) async fn doctor(State(app): State<App>) -> Json<SupportView> {
    Json(app.host.support_view())
}

/// `POST /v1/stop`
pub(super) async fn stop(
    State(app): State<App>,
    body: Result<Json<StopRequest>, axum::extract::rejection::JsonRejection>,
) -> Answer<StatusCode> {
    let Json(StopRequest { now }) = body.map_err(runs::bad_body)?;
    app.handle.command(Command::Stop { now }).await?;
    app.stop.send_replace(true);
    Ok(StatusCode::ACCEPTED)
}

/// Everything else.
pub(super) async fn unknown(request: axum::extract::Request) -> ApiError {
    let cause = format!("there is no {} {}", request.method(), request.uri().path());
    Refusal::new(Code::ApiUnsupported, cause).into()
}
