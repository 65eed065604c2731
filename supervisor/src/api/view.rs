//! Runs and accounts as clients see them.

use atenea_core::event::Exit;
use atenea_core::ledger::Account;
use atenea_core::run::{Run, Workspace};
use atenea_core::{AccountName, Code, Phase};

use super::types::{AccountView, BudgetView, CauseView, ExitStatus, Progress, RunStatus};
use crate::layout::StateDir;

/// The status of one run. `now_boot_ms` tells how long a running one runs.
pub fn run_status(
    run: &Run,
    dirs: &StateDir,
    now_boot_ms: u64,
    progress: Option<Progress>,
) -> RunStatus {
    let ended = run.phase == Phase::Ended;
    let preparing = matches!(run.phase, Phase::Preparing);
    let until = run.ended_at.map_or(now_boot_ms, |ended| ended.boot_ms);
    let running_ms = run
        .started_at
        .map(|at| run.usage.wall_ms.unwrap_or_else(|| until.saturating_sub(at.boot_ms)));
    RunStatus {
        run: run.id.clone(),
        name: run.spec.name.as_ref().map(ToString::to_string),
        state: run.phase.as_str().to_owned(),
        outcome: run.outcome.map(|o| o.as_str().to_owned()),
        profile: run.spec.profile.to_string(),
        enforced: run.spec.profile.is_enforced(),
        program: run.spec.program.clone(),
        limits: run.spec.limits.clone(),
        exit: run.exit.map(|exit| exit_status(exit, run.cause.as_ref())),
        client_status: ended.then(|| run.client_status()),
        cause: run.cause.as_ref().map(cause),
        cancel_reason: run.cancel_reason.clone(),
        budget: budget(run),
        stuck: run.stuck().map(cause),
        leftovers: run.leftovers().iter().map(|s| format!("{s:?}").to_lowercase()).collect(),
        workspace: run.workspace.as_str().to_owned(),
        workspace_path: workspace_path(run, dirs),
        changed: run.changed,
        changes: None,
        seq: run.seq,
        requested_ms: run.requested_at.wall_ms,
        running_ms,
        denials: run.denials.iter().map(|(code, n)| (code.to_string(), *n)).collect(),
        progress: progress.filter(|_| preparing),
        receipt: run.receipt,
    }
}

fn workspace_path(run: &Run, dirs: &StateDir) -> Option<String> {
    match run.workspace {
        Workspace::None | Workspace::Discarded => None,
        _ => Some(dirs.workspace(&run.id).display().to_string()),
    }
}

/// Exit of an agent with the code behind it.
pub fn exit_status(exit: Exit, behind: Option<&(Code, String)>) -> ExitStatus {
    let (status, signal) = match exit {
        Exit::Status(status) => (Some(status), None),
        Exit::Signal(signal) => (None, Some(signal)),
        Exit::Unknown => (None, None),
    };
    ExitStatus { status, signal, cause: behind.map(|(code, _)| code.to_string()) }
}

/// A code with its cause.
pub fn cause((code, cause): &(Code, String)) -> CauseView {
    CauseView { code: code.to_string(), cause: cause.clone() }
}

/// Money of a run as text.
pub fn budget(run: &Run) -> BudgetView {
    let quality = run.money.quality.map(|q| {
        serde_json::to_value(q).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    });
    BudgetView {
        usd_held: run.money.held.to_string(),
        usd_reported: run.money.reported.to_string(),
        usd_unknown: run.money.unknown.to_string(),
        quality,
    }
}

/// One account.
pub fn account(name: &AccountName, account: &Account) -> AccountView {
    AccountView {
        name: name.to_string(),
        usd_limit: account.limit.to_string(),
        usd_spent: account.spent.to_string(),
        usd_held: account.held.to_string(),
        usd_available: account.available().to_string(),
        per: account.per,
        period: account.key.clone(),
    }
}
