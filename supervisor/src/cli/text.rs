//! What people read: tables and sentences. Nothing here is parsed by programs.

use atenea_core::Limits;
use atenea_core::size::{Cpus, Millis, Size};
use atenea_workspace::{RawPath, path};

use crate::api::types::{AccountView, ApprovalView, Info, RunStatus, ViolationView};
use crate::clock;

/// Makes a value safe for a line of a terminal: what reorders, hides or obeys is escaped, and a line
/// that breaks becomes a blank.
pub fn safe(text: &str) -> String {
    path::shown(text.replace('\n', " ").as_bytes())
}

/// The same for whole lines: whatever goes to a terminal and is not somebody's own bytes.
pub(super) fn safe_lines(text: &str) -> String {
    path::shown_text(text.as_bytes())
}

/// A file's name as the API gives it: text, or a list of bytes when it is none. Everything in it
/// that cannot be seen is escaped, so that the file can be told.
pub(super) fn name(value: Option<&serde_json::Value>) -> String {
    let read = |value: &serde_json::Value| serde_json::from_value::<RawPath>(value.clone()).ok();
    value.and_then(read).map_or_else(|| "?".to_owned(), |name| name.shown())
}

/// Lays rows out in columns.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = String>| {
        let padded: Vec<String> =
            cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut out = line(&mut head.iter().map(|h| (*h).to_owned()));
    for row in rows {
        out.push_str(&line(&mut row.iter().cloned()));
    }
    out
}

/// All runs.
pub fn runs(rows: &[RunStatus]) -> String {
    let head =
        ["RUN", "NAME", "STATE", "OUTCOME", "PROFILE", "PROGRAM", "TIME", "HELD", "WORKSPACE"];
    let cells: Vec<Vec<String>> = rows.iter().map(run_cells).collect();
    table(&head, &cells)
}

fn run_cells(run: &RunStatus) -> Vec<String> {
    let dash = || "-".to_owned();
    let state = match &run.stuck {
        Some(_) => format!("{} (stuck)", run.state),
        None => run.state.clone(),
    };
    vec![
        run.run.to_string(),
        run.name.clone().unwrap_or_else(dash),
        state,
        outcome(run),
        profile(run),
        safe(&run.program),
        run.running_ms.map_or_else(dash, clock::human_ms),
        if run.budget.usd_held == "0" { dash() } else { format!("${}", run.budget.usd_held) },
        match run.changed {
            0 => run.workspace.clone(),
            n => format!("{} ({n} changed)", run.workspace),
        },
    ]
}

fn profile(run: &RunStatus) -> String {
    if run.enforced { run.profile.clone() } else { format!("{} UNSANDBOXED", run.profile) }
}

fn outcome(run: &RunStatus) -> String {
    let Some(outcome) = &run.outcome else { return "-".to_owned() };
    match run.exit.as_ref().map(|e| (e.status, e.signal)) {
        Some((Some(status), _)) => format!("{outcome} {status}"),
        Some((_, Some(signal))) => format!("{outcome} signal {signal}"),
        _ => outcome.clone(),
    }
}

/// One run in detail.
pub fn run(run: &RunStatus) -> String {
    let mut lines = vec![
        ("run", run.run.to_string()),
        ("name", run.name.clone().unwrap_or_default()),
        ("state", run.state.clone()),
        ("outcome", if run.outcome.is_some() { outcome(run) } else { String::new() }),
        (
            "cause",
            run.cause
                .as_ref()
                .map_or_else(String::new, |c| format!("{}: {}", c.code, safe(&c.cause))),
        ),
        ("cancelled", run.cancel_reason.as_deref().map_or_else(String::new, safe)),
        ("profile", profile(run)),
        ("program", safe(&run.program)),
        ("limits", limits(&run.limits)),
        ("requested", clock::rfc3339(run.requested_ms)),
        ("time", run.running_ms.map_or_else(String::new, clock::human_ms)),
        ("budget", budget(run)),
        ("workspace", run.workspace.clone()),
        ("path", run.workspace_path.as_deref().map_or_else(String::new, safe)),
        (
            "changed",
            if run.changed > 0 { changed(run).replace(" changed", "") } else { String::new() },
        ),
        (
            "stuck",
            run.stuck
                .as_ref()
                .map_or_else(String::new, |c| format!("{}: {}", c.code, safe(&c.cause))),
        ),
        ("leftovers", run.leftovers.join(", ")),
        ("events", format!("{}..{}", run.seq.0, run.seq.1)),
    ];
    for (code, count) in &run.denials {
        lines.push(("refused", format!("{code} x{count}")));
    }
    if let Some(digest) = &run.receipt {
        lines.push(("receipt", digest.to_string()));
    }
    let shown = lines.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("{name:>10}  {value}\n")).collect()
}

fn limits(limits: &Limits) -> String {
    // None of them is zero; one that were would be left out.
    let named = [
        ("cpus", Cpus::from_millis(limits.cpu_millis).map(|v| v.to_string())),
        ("memory", Size::from_bytes(limits.memory_bytes).map(|v| v.to_string())),
        ("pids", Some(limits.pids.to_string())),
        ("disk", Size::from_bytes(limits.disk_bytes).map(|v| v.to_string())),
        ("output", Size::from_bytes(limits.output_bytes).map(|v| v.to_string())),
        ("duration", Millis::from_ms(limits.duration_ms).map(|v| v.to_string())),
    ];
    let shown = named.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
    shown.collect::<Vec<_>>().join(", ")
}

/// What a cancel does to a run.
pub fn cancelled(run: &RunStatus, kill: bool) -> String {
    let id = &run.run;
    match (run.state.as_str(), kill) {
        ("ended", _) => format!("{id}: has ended already: {}", outcome(run)),
        (_, true) => format!("{id}: is being killed"),
        (_, false) => format!("{id}: is being cancelled"),
    }
}

/// The supervisor that answers.
pub fn info(info: &Info) -> String {
    let config = match (&info.config, info.config_changed) {
        (None, false) => "none".to_owned(),
        (None, true) => "none; there is one now, which counts after `atenea-sup stop`".to_owned(),
        (Some(file), false) => file.clone(),
        (Some(file), true) => {
            format!("{file}; it has changed, which counts after `atenea-sup stop`")
        }
    };
    let live = match info.stopping {
        true => format!("{}, and stopping", info.live_runs),
        false => info.live_runs.to_string(),
    };
    let lines = [
        ("pid", info.pid.to_string()),
        ("helper", info.helper.to_string()),
        ("version", info.version.clone()),
        ("mode", info.mode.clone()),
        ("generation", info.generation.to_string()),
        ("state", info.state_dir.clone()),
        ("socket", info.socket.clone()),
        ("config", config),
        ("live runs", live),
        ("last event", info.seq.to_string()),
    ];
    let mut text: String =
        lines.iter().map(|(name, value)| format!("{name:<10}  {value}\n")).collect();
    for dir in &info.unaccounted {
        text.push_str(&format!("unknown     {dir}\n"));
    }
    text
}

fn budget(run: &RunStatus) -> String {
    let money = &run.budget;
    let quality = match money.quality.as_deref() {
        Some("none") => " (none reported)".to_owned(),
        Some(other) => format!(" ({other})"),
        None => String::new(),
    };
    format!(
        "held ${}, reported ${}, unknown ${}{quality}",
        money.usd_held, money.usd_reported, money.usd_unknown
    )
}

/// Budget accounts.
pub fn accounts(rows: &[AccountView]) -> String {
    let head = ["ACCOUNT", "LIMIT", "SPENT", "HELD", "AVAILABLE", "PER", "PERIOD"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|a| {
            vec![
                a.name.clone(),
                format!("${}", a.usd_limit),
                format!("${}", a.usd_spent),
                format!("${}", a.usd_held),
                format!("${}", a.usd_available),
                format!("{:?}", a.per).to_lowercase(),
                a.period.clone(),
            ]
        })
        .collect();
    table(&head, &cells)
}

/// Approvals.
pub fn approvals(rows: &[ApprovalView]) -> String {
    let head = ["STEP", "MANIFEST", "BY", "USED", "EXPIRES"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|a| {
            let used = format!("{} of {}", a.used, a.uses);
            vec![
                a.step.clone(),
                a.manifest.to_string(),
                format!("uid {}", a.by),
                used,
                a.expires.clone(),
            ]
        })
        .collect();
    table(&head, &cells)
}

/// Violations.
pub fn violations(rows: &[ViolationView]) -> String {
    let head = ["SEQ", "RUN", "CODE", "DECISION", "COUNT", "DETAIL"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|v| {
            vec![
                v.seq.to_string(),
                v.run.to_string(),
                v.code.clone(),
                v.decision.clone(),
                v.count.to_string(),
                safe(&v.detail),
            ]
        })
        .collect();
    table(&head, &cells)
}

/// What to do next after a foreground run; `program` begins a command.
pub fn next_steps(run: &RunStatus, program: &str) -> Option<String> {
    let nothing_to_take = run.changes.is_some_and(|parts| parts.files == 0);
    (run.workspace == "sealed").then(|| {
        let id = &run.run;
        let take = match nothing_to_take {
            true => String::new(),
            false => format!("\n  take: {program} export {id}"),
        };
        let what = changed(run);
        format!("{what}\n  look: {program} diff {id}{take}\n  drop: {program} discard {id}")
    })
}

/// What changed, with what no export carries told apart.
fn changed(run: &RunStatus) -> String {
    let files =
        |n: u64, kind: &str| format!("{n} {kind}{} changed", if n == 1 { "file" } else { "files" });
    let Some(parts) = run.changes else { return files(run.changed, "") };
    let mut words = Vec::new();
    if parts.files > 0 {
        words.push(files(parts.files, ""));
    }
    if parts.refused > 0 {
        words.push(format!("{} not exportable", parts.refused));
    }
    if parts.ignored > 0 {
        words.push(files(parts.ignored, "ignored "));
    }
    if words.is_empty() {
        let only =
            if parts.refs > 0 { "commits, branches or tags" } else { "something below .git" };
        words.push(format!("no file changed, only {only}"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_columns_and_ends_lines_clean() {
        let rows =
            [vec!["a".to_owned(), "long cell".to_owned()], vec!["bb".to_owned(), String::new()]];
        assert_eq!(table(&["X", "Y"], &rows), "X   Y\na   long cell\nbb\n");
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(safe("a b\x1b]0;evil\x07\n"), "a b\\u{1b}]0;evil\\u{7} ");
    }

    #[test]
    fn a_name_that_deceives_or_is_no_text_is_shown_so_that_the_file_can_be_told() {
        let shown = |json: &str| name(Some(&serde_json::from_str(json).unwrap()));
        assert_eq!(shown("\"rtl\u{202e}gpj.exe\""), "rtl\\u{202e}gpj.exe");
        assert_eq!(shown("\"two\\nlines\""), "two\\nlines");
        assert_eq!(shown("[99,97,102,233]"), "caf\\xe9");
        assert_eq!(safe("x\u{200b}y\u{202e}"), "x\\u{200b}y\\u{202e}");
        assert_eq!(safe_lines("a\u{202e}\n\tb\x1b"), "a\\u{202e}\n\tb\\u{1b}");
    }
}
