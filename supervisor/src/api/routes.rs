//! Every operation of the API. A new one is one row here.

use axum::http::StatusCode;

use super::route::Route;
use super::types::{
    AccountView, ApprovalView, Approve, CancelRequest, DiffView, EventsQuery, ExportRequest,
    ExportResult, Health, Info, LogsQuery, NewRun, RunAccepted, RunStatus, RunsQuery, SetBudget,
    StopRequest, SupportView, ViolationView, ViolationsQuery,
};
use super::{admin, approvals, attach, events, logs, metrics, openapi, runs};
use crate::journal_view::{StatsView, VerifyView};
use crate::receipt::Issued;

const OK: StatusCode = StatusCode::OK;
/// What `Idempotency-Key` means (B4).
const KEY: &str = "Repeats of a request with the same key are the same run; with the same key and another \
    request they are refused with `process.idempotency_mismatch`.";
const FRAMES: &str = "The connection now carries frames: one byte of kind, a 32-bit big-endian length, the \
    payload. Kinds: 0 stdin, 1 stdout, 2 stderr, 3 resize (TtySize), 4 status (RunStatus), 5 ended (RunStatus).";

/// All of them, in the order of the document.
pub(super) fn all() -> Vec<Route> {
    [of_runs(), of_work(), of_budgets(), of_the_journal(), of_the_supervisor()]
        .into_iter()
        .flatten()
        .collect()
}

fn of_runs() -> Vec<Route> {
    vec![
        Route::post("/v1/runs", "Requests a run.", runs::create)
            .header("Idempotency-Key", KEY)
            .takes::<NewRun>()
            .gives::<RunAccepted>(StatusCode::CREATED, "It was requested.")
            .gives::<RunAccepted>(OK, "It was requested before with this key."),
        Route::get("/v1/runs", "Lists runs, oldest first.", runs::list)
            .query::<RunsQuery>()
            .gives::<Vec<RunStatus>>(OK, "The runs."),
        Route::get("/v1/runs/{id}", "Shows one run.", runs::show)
            .gives::<RunStatus>(OK, "The run."),
        Route::post("/v1/runs/{id}/cancel", "Cancels a run.", runs::cancel)
            .takes::<CancelRequest>()
            .gives::<RunStatus>(OK, "The run, on its way to its end."),
        Route::get("/v1/runs/{id}/wait", "Waits for the end of a run.", runs::wait)
            .gives::<RunStatus>(OK, "The run has ended and its receipt is there."),
        Route::get("/v1/runs/{id}/logs", "Captured output of a run.", logs::logs)
            .query::<LogsQuery>()
            .streams("application/octet-stream", "The output, as the agent wrote it."),
        Route::get("/v1/runs/{id}/receipt", "The receipt of a run.", runs::receipt)
            .gives::<Issued>(OK, "The receipt, its digest and what happened after it."),
        Route::post("/v1/runs/{id}/attach", "Takes part in a run.", attach::attach)
            .says(StatusCode::SWITCHING_PROTOCOLS, FRAMES),
    ]
}

fn of_work() -> Vec<Route> {
    vec![
        Route::get("/v1/runs/{id}/diff", "What a run changed.", runs::diff)
            .gives::<DiffView>(OK, "The changes."),
        Route::post("/v1/runs/{id}/export", "Accepts what a run changed.", runs::export)
            .takes::<ExportRequest>()
            .gives::<ExportResult>(OK, "It is exported."),
        Route::post("/v1/runs/{id}/discard", "Drops what a run changed.", runs::discard)
            .gives::<RunStatus>(OK, "It is gone."),
    ]
}

fn of_budgets() -> Vec<Route> {
    vec![
        Route::get("/v1/budgets", "Lists accounts.", admin::budgets)
            .gives::<Vec<AccountView>>(OK, "The accounts."),
        Route::get("/v1/budgets/{name}", "Shows one account.", admin::budget)
            .gives::<AccountView>(OK, "The account."),
        Route::put("/v1/budgets/{name}", "Makes or changes an account.", admin::set_budget)
            .takes::<SetBudget>()
            .gives::<AccountView>(OK, "The account as it is now."),
        Route::get("/v1/approvals", "Lists the approvals that live.", approvals::list).gives::<Vec<
            ApprovalView,
        >>(
            OK,
            "The approvals.",
        ),
        Route::post(
            "/v1/approvals",
            "Allows a manifest for the step it names.",
            approvals::approve,
        )
        .takes::<Approve>()
        .gives::<ApprovalView>(OK, "The approval."),
    ]
}

fn of_the_journal() -> Vec<Route> {
    vec![
        Route::get(
            "/v1/events",
            "What is recorded, from a sequence on and then live.",
            events::events,
        )
        .query::<EventsQuery>()
        .header("Last-Event-ID", "The last sequence that was seen; it counts instead of `from`.")
        .streams("text/event-stream", "One event a record; its `id` is the sequence."),
        Route::get("/v1/violations", "Lists what runs were refused.", admin::violations)
            .query::<ViolationsQuery>()
            .gives::<Vec<ViolationView>>(OK, "The violations, oldest first."),
        Route::post("/v1/journal/verify", "Verifies the journal.", admin::verify)
            .gives::<VerifyView>(OK, "What was found; `ok` says whether it is whole."),
        Route::get("/v1/journal/stats", "Sizes of the journal.", admin::stats)
            .gives::<StatsView>(OK, "The sizes."),
        Route::get("/v1/journal/dump", "Every record of the journal.", admin::dump)
            .streams("application/x-ndjson", "One JSON object a line."),
    ]
}

fn of_the_supervisor() -> Vec<Route> {
    vec![
        Route::get("/metrics", "Numbers for Prometheus.", metrics::metrics)
            .streams("text/plain; version=0.0.4", "Text exposition format."),
        Route::get("/v1/info", "Who answers.", admin::info).gives::<Info>(OK, "The supervisor."),
        Route::get("/v1/health", "Whether it can work.", admin::health)
            .gives::<Health>(OK, "It can."),
        Route::get("/v1/doctor", "Whether this host can contain runs.", admin::doctor)
            .gives::<SupportView>(OK, "What its probe found."),
        Route::post("/v1/stop", "Stops the supervisor.", admin::stop)
            .takes::<StopRequest>()
            .says(StatusCode::ACCEPTED, "It admits nothing any more and ends when its runs have."),
        Route::get("/v1/openapi.json", "This document.", openapi::serve)
            .gives::<serde_json::Value>(OK, "The document."),
    ]
}
