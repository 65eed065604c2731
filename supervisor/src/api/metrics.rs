//! `GET /metrics`: numbers for Prometheus (text exposition format 0.0.4). Nothing of what runs do is
//! in them: states, counts, money and sizes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use atenea_core::{Phase, State as Fold};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::App;

/// The format's own media type.
const MEDIA_TYPE: &str = "text/plain; version=0.0.4";

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<App>) -> Response {
    let mut out = app.handle.read(of_state).await;
    let journal_bytes = std::fs::metadata(app.dirs.journal().join("journal.redb"));
    let connections = app.connections.load(Ordering::SeqCst) as u64;
    gauge(&mut out, "atenea_connections", "Open connections to the control API.", connections);
    counter(&mut out, "atenea_journal_commits_total", "Durable commits.", app.journal.commits());
    let bytes = journal_bytes.map_or(0, |meta| meta.len());
    gauge(&mut out, "atenea_journal_file_bytes", "Length of the journal's store.", bytes);
    let poisoned = u64::from(app.journal.poisoned().is_some());
    gauge(&mut out, "atenea_journal_failed", "1 when a commit has failed.", poisoned);
    if let Some(bytes) = resident_bytes() {
        gauge(&mut out, "process_resident_memory_bytes", "Resident memory.", bytes);
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        gauge(&mut out, "process_open_fds", "Open descriptors.", fds.count() as u64);
    }
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], out).into_response()
}

fn of_state(state: &Fold) -> String {
    let mut out = String::new();
    let mut phases: BTreeMap<&str, u64> = Phase::ALL.iter().map(|p| (p.as_str(), 0)).collect();
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    let mut denials: BTreeMap<&str, u64> = BTreeMap::new();
    let mut stuck = 0;
    for run in state.runs.values() {
        *phases.entry(run.phase.as_str()).or_default() += 1;
        if let Some(outcome) = run.outcome.filter(|_| run.phase == Phase::Ended) {
            *outcomes.entry(outcome.as_str()).or_default() += 1;
        }
        for (code, count) in &run.denials {
            let sum = denials.entry(code.as_str()).or_default();
            *sum = sum.saturating_add(*count);
        }
        stuck += u64::from(run.stuck().is_some());
    }
    family(&mut out, "atenea_runs", "gauge", "Runs by state.", "state", &phases);
    family(&mut out, "atenea_runs_ended", "gauge", "Ended runs by outcome.", "outcome", &outcomes);
    family(
        &mut out,
        "atenea_denials",
        "gauge",
        "What runs were refused, by code.",
        "code",
        &denials,
    );
    gauge(&mut out, "atenea_runs_stuck", "Runs of which something cannot be removed.", stuck);
    gauge(&mut out, "atenea_queue_length", "Runs that wait for a place.", state.queue.len() as u64);
    gauge(&mut out, "atenea_generation", "Starts of a supervisor.", state.generation.0);
    counter(&mut out, "atenea_events_total", "Recorded events.", state.seq);
    money(&mut out, state);
    out
}

/// Money in nano-dollars, exact.
fn money(out: &mut String, state: &Fold) {
    let of = |amount: fn(&atenea_core::ledger::Account) -> u64| {
        let rows = state.ledger.accounts.iter();
        rows.map(|(name, account)| (name.as_str(), amount(account))).collect::<BTreeMap<_, _>>()
    };
    let kinds: [(&str, &str, BTreeMap<&str, u64>); 3] = [
        ("atenea_budget_limit_nanousd", "Limit of an account.", of(|a| a.limit.0)),
        ("atenea_budget_spent_nanousd", "Reported spend of the open period.", of(|a| a.spent.0)),
        ("atenea_budget_held_nanousd", "Sum of all holds.", of(|a| a.held.0)),
    ];
    for (name, help, values) in kinds {
        family(out, name, "gauge", help, "account", &values);
    }
}

fn gauge(out: &mut String, name: &str, help: &str, value: u64) {
    head(out, name, "gauge", help);
    let _ = writeln!(out, "{name} {value}");
}

fn counter(out: &mut String, name: &str, help: &str, value: u64) {
    head(out, name, "counter", help);
    let _ = writeln!(out, "{name} {value}");
}

/// Names of accounts, codes and states have no character that would have to be escaped.
fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    label: &str,
    values: &BTreeMap<&str, u64>,
) {
    head(out, name, kind, help);
    for (value, number) in values {
        let _ = writeln!(out, "{name}{{{label}=\"{value}\"}} {number}");
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// `VmRSS` of `/proc/self/status` (proc_pid_status(5)), which is in KiB.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}
