//! `run`: makes a manifest of file and options, sends it, relays the streams, exits like the command.

use std::path::PathBuf;

use atenea_core::manifest::{
    self, LimitsTable, Manifest, Overrides, from_flags, narrow, parse_allow, parse_env, parse_mount,
};
use atenea_core::size::{Count, Cpus, Millis, Size};
use atenea_core::{Code, Nanos, Refusal};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::args::{Global, RunArgs};
use super::client::{Client, run_path, whole};
use super::output::Output;
use super::progress::ProgressLine;
use super::terminal::{RawMode, size_of_terminal};
use super::{Done, connect, text};
use crate::api::types::{
    CancelRequest, FRAME_BYTES_MAX, FrameKind, NewRun, RunAccepted, RunStatus, frame,
};
use crate::config;

type Io = TokioIo<hyper::upgrade::Upgraded>;

pub(super) async fn run(global: &Global, output: &Output, args: RunArgs) -> Done {
    let manifest = make_manifest(global, &args)?;
    let tty = if args.tty { Some(size_of_terminal()?) } else { None };
    let body = NewRun {
        manifest: serde_json::to_value(&manifest)
            .map_err(|e| Refusal::new(Code::ManifestBadValue, e.to_string()))?,
        name: args.name.clone(),
        foreground: !args.detach,
        tty,
        term: std::env::var("TERM").ok().filter(|_| args.tty),
    };
    let client = connect::ensured(global).await?;
    let key = args.idempotency_key.as_deref();
    let accepted: RunAccepted = client.give(Method::POST, "/v1/runs", &body, key).await?;
    if !manifest.profile().is_enforced() {
        label(&client, output, accepted.run.as_str()).await?;
    }
    if output.json {
        output.object(&serde_json::json!({ "event": "accepted", "run": accepted.run }));
    }
    if args.detach {
        if !output.json {
            output.data(&format!("{}\n", accepted.run));
        }
        let status: RunStatus = client.get(&run_path(accepted.run.as_str(), "")?).await?;
        let refused = status.outcome.as_deref() == Some("refused");
        return Ok(if refused { finish(output, &status, false) } else { 0 });
    }
    let status = attached(&client, output, accepted.run.as_str(), args.tty).await?;
    Ok(finish(output, &status, true))
}

/// Says that a run is not contained; one that was refused never starts.
async fn label(client: &Client, output: &Output, run: &str) -> Result<(), Refusal> {
    let status: RunStatus = client.get(&run_path(run, "")?).await?;
    if status.outcome.as_deref() != Some("refused") {
        output.say(&format!("UNSANDBOXED: {run} can do on this host whatever you can do"));
    }
    Ok(())
}

/// Says how a run ended and gives the exit status.
pub(super) fn finish(output: &Output, status: &RunStatus, was_attached: bool) -> u8 {
    if output.json {
        output.object(&serde_json::json!({
            "event": "ended",
            "run": status.run,
            "outcome": status.outcome,
            "exit": status.exit,
            "client_status": status.client_status,
            "cause": status.cause,
        }));
    } else if let Some(cause) = &status.cause {
        let code = Code::parse(&cause.code).unwrap_or(Code::RecoveryLost);
        let refusal = Refusal::new(code, text::safe(&cause.cause));
        output.must_say(&output.pasteable(&refusal).to_string());
    }
    if was_attached && !output.json {
        for (code, count) in &status.denials {
            output.say(&format!("refused: {code} x{count}"));
        }
        if let Some(next) = text::next_steps(status, &output.program) {
            output.say(&next);
        }
    }
    let code = status.client_status.unwrap_or(i32::from(crate::exit::RUN_FAILED));
    u8::try_from(code).unwrap_or(crate::exit::RUN_FAILED)
}

/// Parses a duration of the command line into milliseconds; `0s` is allowed here.
pub(super) fn parse_duration(option: &str, text: &str) -> Result<u64, Refusal> {
    if matches!(text, "0" | "0s") {
        return Ok(0);
    }
    Millis::parse(text).map(Millis::ms).map_err(|e| bad_limit(option, text, &e))
}

fn bad_limit(option: &str, text: &str, error: &dyn std::fmt::Display) -> Refusal {
    let example = match option {
        "cpus" => "1.5",
        "pids" => "256",
        "grace" => "10s",
        "expires" => "8h",
        "timeout" => "30m",
        _ => "2GiB",
    };
    Refusal::new(Code::ManifestBadLimit, format!("--{option} {text:?}: {error}"))
        .with_help(format!("for example: --{option} {example}"))
}

fn make_manifest(global: &Global, args: &RunArgs) -> Result<Manifest, Refusal> {
    let flags = overrides(args)?;
    let Some(file) = &args.manifest else {
        let mut flags = flags;
        let here = current_directory()?;
        let root = project_root(&here);
        let implicit = flags.workspace.is_none();
        if implicit {
            flags.workspace = Some(utf8(&root.clone().into_os_string())?);
        }
        let mut manifest = from_flags(flags)?;
        // The command starts where the person is.
        if implicit
            && let Ok(below) = here.strip_prefix(&root)
            && !below.as_os_str().is_empty()
        {
            manifest.command.cwd = Some(utf8(&below.to_owned().into_os_string())?);
        }
        return Ok(manifest);
    };
    let base = read_manifest(file)?;
    let config = config::load(global.config.as_deref())?;
    narrow(&base, flags, &config.ceilings())
}

/// Reads a manifest file.
///
/// # Errors
/// `manifest.unreadable`, `manifest.too_large`, or what parsing refuses.
pub(super) fn read_manifest(file: &std::path::Path) -> Result<Manifest, Refusal> {
    // One byte more than parsing takes: what is too large is refused there.
    let most = manifest::tree::DOCUMENT_BYTES_MAX.saturating_add(1);
    let bytes = crate::files::read_regular(file, most)
        .map_err(|e| Refusal::new(Code::ManifestUnreadable, format!("{}: {e}", file.display())))?;
    manifest::parse_bytes(&bytes).map_err(|refusal| {
        let Refusal { code, cause, help } = refusal;
        // A file is no command line: what it lacks is written into it.
        let help = match code {
            Code::ManifestNoCommand => {
                "write `argv = [\"PROGRAM\", \"ARGUMENT\"]` below `[command]`".to_owned()
            }
            _ => help,
        };
        Refusal { code, cause: format!("{}: {cause}", file.display()), help }
    })
}

fn overrides(args: &RunArgs) -> Result<Overrides, Refusal> {
    let mut env = std::collections::BTreeMap::new();
    for text in &args.env {
        let (name, value) = parse_env(text)?;
        let value = match value {
            Some(value) => value,
            None => std::env::var(&name).map_err(|_| {
                let cause = format!("--env {name}: the variable is not set here, or not UTF-8");
                Refusal::new(Code::ManifestBadValue, cause)
            })?,
        };
        env.insert(name, value);
    }
    let argv: Vec<String> = args.command.iter().map(utf8).collect::<Result<_, _>>()?;
    let mut mounts = Vec::new();
    for text in &args.mount {
        mounts.push(mount_grant(text)?);
    }
    Ok(Overrides {
        profile: args.profile.map(Into::into),
        effects: None,
        workspace: args.workspace.as_ref().map(|p| resolved(p)).transpose()?,
        argv: (!argv.is_empty()).then_some(argv),
        env,
        mounts,
        network: args.allow.iter().map(|a| parse_allow(a)).collect::<Result<_, _>>()?,
        budget: args.budget.as_deref().map(Nanos::parse_usd).transpose()?,
        limits: limits(args)?,
        parent: args.parent.clone(),
    })
}

fn limits(args: &RunArgs) -> Result<LimitsTable, Refusal> {
    let size = |what: &'static str, text: &Option<String>| {
        let parse = |t: &String| Size::parse(t).map_err(|e| bad_limit(what, t, &e));
        text.as_ref().map(parse).transpose()
    };
    let pids = |text: &String| {
        let bad = |why: &str| bad_limit("pids", text, &why);
        let number: u64 = text.parse().map_err(|_| bad("not a whole number"))?;
        Count::new(number).ok_or_else(|| bad("must be at least 1"))
    };
    Ok(LimitsTable {
        cpus: args
            .cpus
            .as_ref()
            .map(|t| Cpus::parse(t).map_err(|e| bad_limit("cpus", t, &e)))
            .transpose()?,
        memory: size("memory", &args.memory)?,
        pids: args.pids.as_ref().map(pids).transpose()?,
        disk: size("disk", &args.disk)?,
        output: size("output", &args.output)?,
        duration: args
            .timeout
            .as_ref()
            .map(|t| Millis::parse(t).map_err(|e| bad_limit("timeout", t, &e)))
            .transpose()?,
        ..LimitsTable::default()
    })
}

fn utf8(word: &std::ffi::OsString) -> Result<String, Refusal> {
    word.to_str().map(str::to_owned).ok_or_else(|| {
        Refusal::new(Code::ManifestBadValue, format!("{word:?} is not UTF-8"))
            .with_help("a manifest is text; pass such a word through a file")
    })
}

/// `SRC[:DST]` with a source that may be relative; without a target, it appears at its own path.
fn mount_grant(text: &str) -> Result<manifest::Mount, Refusal> {
    let (source, target) = match text.find(":/") {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    };
    let source = resolved(&PathBuf::from(source))?;
    match target {
        Some(target) => parse_mount(&format!("{source}:{target}")),
        None => parse_mount(&source),
    }
}

/// The path without symbolic links: what is granted is what was looked at.
fn resolved(path: &std::path::Path) -> Result<String, Refusal> {
    let real = std::fs::canonicalize(path).map_err(|e| {
        let code = match e.kind() {
            std::io::ErrorKind::PermissionDenied => Code::FsNotYours,
            _ => Code::FsNotFound,
        };
        Refusal::new(code, format!("{}: {e}", path.display()))
    })?;
    utf8(&real.into_os_string())
}

fn current_directory() -> Result<PathBuf, Refusal> {
    std::env::current_dir()
        .and_then(std::fs::canonicalize)
        .map_err(|e| Refusal::new(Code::FsNotFound, format!("the current directory: {e}")))
}

/// The nearest directory above that has a `.git`; the supervisor looks again, properly.
fn project_root(here: &std::path::Path) -> PathBuf {
    let has_git = |dir: &&std::path::Path| dir.join(".git").symlink_metadata().is_ok();
    here.ancestors().find(has_git).unwrap_or(here).to_owned()
}

/// Relays stdin, stdout and stderr until the run has ended.
async fn attached(
    client: &Client,
    output: &Output,
    run: &str,
    tty: bool,
) -> Result<RunStatus, Refusal> {
    let path = run_path(run, "/attach")?;
    let response = client.send(Method::POST, &path, Some(Vec::new()), None, true).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        whole(response).await?;
        return Err(lost("the supervisor did not attach"));
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(|e| lost(&e.to_string()))?;
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
    // Restored when this is dropped, also on an error.
    let _raw = if tty { RawMode::enter()? } else { None };
    let (send, mut frames) = mpsc::channel(8);
    super::terminal::read_stdin(send.clone());
    let signals =
        tokio::spawn(watch_signals(client.clone(), run.to_owned(), send, tty, output.clone()));
    let write = async {
        while let Some((kind, body)) = frames.recv().await {
            write_frame(&mut writer, kind, &body).await?;
        }
        std::future::pending::<std::io::Result<()>>().await
    };
    let result = tokio::select! {
        status = receive(&mut reader, output) => status,
        // A failed write means that the other side is going away; what it said last still counts.
        _ = write => receive(&mut reader, output).await,
    };
    signals.abort();
    result
}

fn lost(why: &str) -> Refusal {
    Refusal::new(Code::RecoveryLost, format!("the connection to the supervisor ended: {why}"))
        .with_help("look: atenea-sup status --all")
}

async fn receive(reader: &mut ReadHalf<Io>, output: &Output) -> Result<RunStatus, Refusal> {
    let mut progress = ProgressLine::default();
    let mut body = Vec::new();
    loop {
        let mut head = [0u8; 5];
        reader.read_exact(&mut head).await.map_err(|e| lost(&e.to_string()))?;
        let [kind, a, b, c, d] = head;
        let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        // A status may be longer than a piece of output; both are bounded.
        if len > FRAME_BYTES_MAX.saturating_mul(4) {
            return Err(lost("a frame is too long"));
        }
        body.resize(len, 0);
        reader.read_exact(&mut body).await.map_err(|e| lost(&e.to_string()))?;
        match FrameKind::from_u8(kind) {
            Some(FrameKind::Stdout) if !output.json => super::output::print_bytes(&body),
            Some(FrameKind::Stderr) if !output.json => {
                use std::io::Write;
                let _ = std::io::stderr().write_all(&body);
            }
            Some(FrameKind::Status) => {
                if let Ok(status) = serde_json::from_slice::<RunStatus>(&body) {
                    progress.show(output, status.progress);
                }
            }
            Some(FrameKind::Ended) => {
                progress.show(output, None);
                return serde_json::from_slice(&body).map_err(|e| lost(&e.to_string()));
            }
            _ => {}
        }
    }
}

async fn write_frame(
    writer: &mut WriteHalf<Io>,
    kind: FrameKind,
    body: &[u8],
) -> std::io::Result<()> {
    writer.write_all(&frame(kind, body)?).await?;
    writer.flush().await
}

/// The first Ctrl-C cancels with grace, the second one kills; a new terminal size is passed on. In
/// raw mode Ctrl-C is the agent's, as in any terminal program.
async fn watch_signals(
    client: Client,
    run: String,
    frames: mpsc::Sender<(FrameKind, Vec<u8>)>,
    tty: bool,
    output: Output,
) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut resized)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::window_change()),
    ) else {
        return;
    };
    let mut times = 0;
    loop {
        tokio::select! {
            _ = interrupt.recv() => times += 1,
            _ = terminate.recv() => times += 1,
            _ = resized.recv() => {
                if tty && let Ok(size) = size_of_terminal()
                    && let Ok(body) = serde_json::to_vec(&size)
                {
                    let _ = frames.send((FrameKind::Resize, body)).await;
                }
                continue;
            }
        }
        if times > 2 {
            output.say("leaving; the supervisor goes on ending the run");
            std::process::exit(i32::from(crate::exit::RUN_FAILED));
        }
        let kill = times > 1;
        output.say(if kill { "killing" } else { "cancelling; once more kills" });
        // Beside the signals: a supervisor that does not answer must not keep anybody from leaving.
        tokio::spawn(cancel(client.clone(), run.clone(), kill, output.clone()));
    }
}

async fn cancel(client: Client, run: String, kill: bool, output: Output) {
    let body = CancelRequest { reason: Some("interrupted".to_owned()), grace_ms: None, kill };
    let Ok(path) = run_path(&run, "/cancel") else { return };
    let sent: Result<RunStatus, Refusal> = client.give(Method::POST, &path, &body, None).await;
    if let Err(refusal) = sent {
        output.refusal(&refusal);
    }
}
