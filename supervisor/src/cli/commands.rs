//! Commands other than `run`: each is one or two requests and their answer for people or programs.

use atenea_core::{Code, Refusal};
use hyper::Method;

use super::args::{BudgetCommand, Command, Global};
use super::client::{Client, encode, run_path, whole};
use super::output::{Output, print_all, print_bytes};
use super::run::{parse_duration, read_manifest};
use super::{Done, connect, text};
use crate::api::types::{
    AccountView, ApprovalView, Approve, CancelRequest, DiffView, ExportRequest, ExportResult, Info,
    RunStatus, SetBudget, StopRequest, ViolationView,
};

pub(super) async fn dispatch(global: &Global, output: &Output, command: Command) -> Done {
    match command {
        Command::Status { run, all, watch } => status(global, output, run, all, watch).await,
        Command::Cancel { runs, grace, reason } => {
            cancel(global, output, runs, grace, reason).await
        }
        Command::Wait { run } => wait(global, output, &run).await,
        Command::Logs { run, follow, stream } => logs(global, &run, follow, stream.into()).await,
        Command::Receipt { run } => receipt(global, &run).await,
        Command::Diff { run } => diff(global, output, &run).await,
        Command::Export { run, reference, patch } => {
            export(global, output, &run, reference, patch).await
        }
        Command::Discard { run } => discard(global, output, &run).await,
        Command::Budget(command) => budget(global, output, command).await,
        Command::Approve { file, step, expires, uses } => {
            approve(global, output, file, step, expires, uses).await
        }
        Command::Violations { run, code } => violations(global, output, run, code).await,
        Command::Info => info(global, output).await,
        Command::Stop { now } => stop(global, output, now).await,
        // The others are handled before, each in its own module.
        _ => Ok(crate::exit::USAGE),
    }
}

async fn status(
    global: &Global,
    output: &Output,
    run: Option<String>,
    all: bool,
    watch: bool,
) -> Done {
    let client = connect::ensured(global).await?;
    if watch {
        super::output::end_with_reader();
    }
    let mut shown = String::new();
    loop {
        let now = status_text(&client, output, run.as_deref(), all).await?;
        if now != shown {
            if watch && output.interactive && !output.json {
                print_all("\x1b[H\x1b[2J");
            }
            // JSON escapes for itself.
            if output.json {
                print_all(&now)
            } else {
                output.data(&now)
            }
            shown = now;
        }
        if !watch {
            return Ok(0);
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

async fn status_text(
    client: &Client,
    output: &Output,
    run: Option<&str>,
    all: bool,
) -> Result<String, Refusal> {
    let line = |status: &RunStatus| serde_json::to_string(status).unwrap_or_default() + "\n";
    if let Some(run) = run {
        let status: RunStatus = client.get(&run_path(run, "")?).await?;
        return Ok(if output.json { line(&status) } else { text::run(&status) });
    }
    let mut rows: Vec<RunStatus> = client.get("/v1/runs").await?;
    // Without --all: what lives, what waits for a person, and what hangs.
    let interesting = |r: &RunStatus| {
        all || r.state != "ended" || r.workspace == "sealed" || !r.leftovers.is_empty()
    };
    rows.retain(interesting);
    Ok(if output.json { rows.iter().map(line).collect() } else { text::runs(&rows) })
}

async fn cancel(
    global: &Global,
    output: &Output,
    runs: Vec<String>,
    grace: Option<String>,
    reason: Option<String>,
) -> Done {
    let grace_ms = grace.as_deref().map(|text| parse_duration("grace", text)).transpose()?;
    let client = connect::ensured(global).await?;
    let body = CancelRequest { reason, grace_ms, kill: grace_ms == Some(0) };
    let mut worst = Ok(0);
    for run in runs {
        let answer: Result<RunStatus, Refusal> = match run_path(&run, "/cancel") {
            Ok(path) => client.give(Method::POST, &path, &body, None).await,
            Err(refusal) => Err(refusal),
        };
        match answer {
            Ok(status) if output.json => output.object(&status),
            Ok(status) => output.say(&text::cancelled(&status, body.kill)),
            Err(refusal) => {
                output.refusal(&refusal);
                worst = Ok(super::status_of(refusal.code));
            }
        }
    }
    worst
}

async fn wait(global: &Global, output: &Output, run: &str) -> Done {
    let client = connect::ensured(global).await?;
    let status: RunStatus = client.get(&run_path(run, "/wait")?).await?;
    Ok(super::run::finish(output, &status, false))
}

async fn logs(global: &Global, run: &str, follow: bool, stream: crate::layout::Stream) -> Done {
    use http_body_util::BodyExt;
    let client = connect::ensured(global).await?;
    let path = run_path(run, &format!("/logs?stream={}&follow={follow}", stream.as_str()))?;
    let response = client.send(Method::GET, &path, None, None, false).await?;
    if !response.status().is_success() {
        whole(response).await?;
        return Ok(crate::exit::REFUSED);
    }
    if follow {
        super::output::end_with_reader();
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|e| Refusal::new(Code::HostNoSupervisor, format!("the log broke off: {e}")))?;
        if let Some(data) = frame.data_ref() {
            print_bytes(data);
        }
    }
    Ok(0)
}

async fn receipt(global: &Global, run: &str) -> Done {
    let client = connect::ensured(global).await?;
    let body = client.get_bytes(&run_path(run, "/receipt")?).await?;
    print_bytes(&body);
    print_bytes(b"\n");
    Ok(0)
}

async fn diff(global: &Global, output: &Output, run: &str) -> Done {
    let client = connect::ensured(global).await?;
    let diff: DiffView = client.get(&run_path(run, "/diff")?).await?;
    if output.json {
        output.object(&diff);
        return Ok(0);
    }
    output.data(&diff.text);
    if diff == DiffView::default() {
        output.say("the run changed nothing");
    }
    for note in &diff.notes {
        output.say(&format!("note: {}", text::safe(note)));
    }
    for file in &diff.files {
        let flags = file.get("flags").and_then(|f| f.as_array()).cloned().unwrap_or_default();
        if !flags.is_empty() {
            let names: Vec<&str> = flags.iter().filter_map(|f| f.as_str()).collect();
            let name = text::name(file.get("path"));
            output.say(&format!("review: {name} ({})", names.join(", ")));
        }
    }
    Ok(0)
}

async fn export(
    global: &Global,
    output: &Output,
    run: &str,
    reference: Option<String>,
    patch: Option<std::path::PathBuf>,
) -> Done {
    // Before anything is exported: a file that is there is never written over.
    if let Some(file) = patch.as_deref().filter(|file| file.symlink_metadata().is_ok())
        && file.as_os_str() != "-"
    {
        return Err(Refusal::new(Code::FsIo, format!("{} exists already", file.display()))
            .with_help("choose another file for --patch; nothing was exported"));
    }
    let client = connect::ensured(global).await?;
    let body = ExportRequest { reference, patch: patch.is_some() };
    let path = run_path(run, "/export")?;
    let mut result: ExportResult = client.give(Method::POST, &path, &body, None).await?;
    if let Some(file) = patch.as_ref().filter(|file| file.as_os_str() != "-") {
        let content = result.patch.take().unwrap_or_default();
        crate::files::write_new(file, content.as_bytes())?;
        output.say(&format!("wrote {}", file.display()));
    }
    if output.json {
        output.object(&result);
        return Ok(0);
    }
    if let Some(content) = &result.patch {
        print_bytes(content.as_bytes());
    }
    if let (Some(name), Some(commit)) = (&result.reference, &result.commit) {
        output.data(&format!("{commit} {name}\n"));
        // Where files were not committed, they are in the commit below, and git would not merge
        // over them.
        let take = match result.uncommitted_base {
            true => format!("git diff --binary {name}^ {name} | git apply"),
            false => format!("git merge {name}"),
        };
        output.say(&format!("  look: git show {name}\n  take: {take}"));
    }
    say_notes(output, &result);
    Ok(0)
}

/// What the export does not carry, so that nobody believes it were there.
fn say_notes(output: &Output, result: &ExportResult) {
    for note in &result.notes {
        output.say(&format!("note: {}", text::safe(note)));
    }
}

async fn discard(global: &Global, output: &Output, run: &str) -> Done {
    let client = connect::ensured(global).await?;
    let path = run_path(run, "/discard")?;
    let status: RunStatus = client.give(Method::POST, &path, &(), None).await?;
    if output.json {
        output.object(&status);
    } else {
        output.say(&format!("{}: {}", status.run, status.workspace));
    }
    Ok(0)
}

async fn budget(global: &Global, output: &Output, command: BudgetCommand) -> Done {
    let client = connect::ensured(global).await?;
    let rows: Vec<AccountView> = match command {
        BudgetCommand::List => client.get("/v1/budgets").await?,
        BudgetCommand::Show { name } => {
            vec![client.get(&format!("/v1/budgets/{}", encode(&name))).await?]
        }
        BudgetCommand::Set { name, usd, per } => {
            let path = format!("/v1/budgets/{}", encode(&name));
            let body = SetBudget { usd, per: per.map(Into::into) };
            vec![client.give(Method::PUT, &path, &body, None).await?]
        }
    };
    if output.json {
        rows.iter().for_each(|row| output.object(row));
    } else {
        output.data(&text::accounts(&rows));
    }
    Ok(0)
}

async fn approve(
    global: &Global,
    output: &Output,
    file: Option<std::path::PathBuf>,
    step: Option<String>,
    expires: Option<String>,
    uses: Option<u32>,
) -> Done {
    let rows: Vec<ApprovalView> = match file {
        None => connect::ensured(global).await?.get("/v1/approvals").await?,
        Some(file) => {
            let manifest = serde_json::to_value(read_manifest(&file)?)
                .map_err(|e| Refusal::new(Code::ManifestBadValue, e.to_string()))?;
            let expires_ms =
                expires.as_deref().map(|text| parse_duration("expires", text)).transpose()?;
            let body = Approve { manifest, step, expires_ms, uses };
            let client = connect::ensured(global).await?;
            vec![client.give(Method::POST, "/v1/approvals", &body, None).await?]
        }
    };
    if output.json {
        rows.iter().for_each(|row| output.object(row));
    } else {
        output.data(&text::approvals(&rows));
    }
    Ok(0)
}

async fn violations(
    global: &Global,
    output: &Output,
    run: Option<String>,
    code: Option<String>,
) -> Done {
    let client = connect::ensured(global).await?;
    let mut path = "/v1/violations?".to_owned();
    if let Some(run) = run {
        path.push_str(&format!("run={}&", encode(&run)));
    }
    if let Some(code) = code {
        path.push_str(&format!("code={}&", encode(&code)));
    }
    let rows: Vec<ViolationView> = client.get(path.trim_end_matches(['&', '?'])).await?;
    if output.json {
        rows.iter().for_each(|row| output.object(row));
    } else {
        output.data(&text::violations(&rows));
    }
    Ok(0)
}

async fn info(global: &Global, output: &Output) -> Done {
    let client = connect::existing(global).await?;
    let info: Info = client.get("/v1/info").await?;
    if output.json {
        output.object(&info);
        return Ok(0);
    }
    output.data(&text::info(&info));
    Ok(0)
}

async fn stop(global: &Global, output: &Output, now: bool) -> Done {
    let client = match connect::existing(global).await {
        Ok(client) => client,
        Err(refusal) if refusal.code == Code::HostNoSupervisor => {
            said(output, None, "no supervisor runs");
            return Ok(0);
        }
        Err(refusal) => return Err(refusal),
    };
    let info: Info = client.get("/v1/info").await?;
    client.give::<_, ()>(Method::POST, "/v1/stop", &StopRequest { now }, None).await?;
    if info.live_runs > 0 && !now {
        let runs = if info.live_runs == 1 { "run" } else { "runs" };
        let text = format!("waiting for {} {runs}; to cancel: ", info.live_runs);
        output.say(&format!("{text}{} stop --now", output.program));
    }
    wait_for_end(info.pid).await;
    said(output, Some(info.pid), &format!("supervisor {} has stopped", info.pid));
    Ok(0)
}

fn said(output: &Output, stopped: Option<u32>, text: &str) {
    if output.json {
        output.object(&serde_json::json!({ "stopped": stopped }));
    } else {
        output.say(text);
    }
}

/// Waits until a process is gone, through a pidfd.
pub(crate) async fn wait_for_end(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return;
    };
    let flags = rustix::process::PidfdFlags::NONBLOCK;
    let Ok(pidfd) = rustix::process::pidfd_open(pid, flags) else { return };
    if let Ok(watched) = crate::watched::watch(pidfd, tokio::io::Interest::READABLE) {
        drop(watched.readable().await);
    }
}
