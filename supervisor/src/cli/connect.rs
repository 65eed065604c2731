//! Finding the supervisor that answers, and starting one when none does.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atenea_core::{Code, Refusal};

use super::args::Global;
use super::client::Client;
use super::output::Output;
use crate::api::types::Info;
use crate::config;
use crate::crash::Crash;
use crate::layout::StateDir;

/// How long the loser of a concurrent start waits for the winner to listen.
const WINNER_WAIT: Duration = Duration::from_secs(20);
/// Pause between its tries.
const WINNER_PAUSE: Duration = Duration::from_millis(20);

/// Where this user's supervisor is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The state directory.
    pub dirs: StateDir,
    /// The socket.
    pub socket: PathBuf,
}

/// Finds the place by options and environment; makes nothing.
///
/// # Errors
/// `host.state_dir`.
pub fn place(global: &Global) -> Result<Place, Refusal> {
    let root = config::state_dir(global.state_dir.as_deref())?;
    let socket = match &global.socket {
        Some(path) => path.clone(),
        None => config::socket_path(&root)?,
    };
    Ok(Place { dirs: StateDir::new(root), socket })
}

/// A client of the supervisor that runs, if one does.
///
/// # Errors
/// `host.no_supervisor`; `journal.locked` when it does not answer.
pub async fn existing(global: &Global) -> Result<Client, Refusal> {
    let place = place(global)?;
    let client = Client::new(place.socket);
    if client.answers().await? {
        return Ok(client);
    }
    let cause = format!("no supervisor listens on {}", client.socket().display());
    Err(Refusal::new(Code::HostNoSupervisor, cause).with_help(match global.socket {
        None => "any command that needs one starts it, for example: atenea-sup status",
        Some(_) => "with --socket none is started: leave it out, or correct it",
    }))
}

/// A supervisor and whether this command started it.
pub(super) struct Found {
    pub(super) client: Client,
    pub(super) started: bool,
}

/// A client of a supervisor; starts one when none answers.
///
/// # Errors
/// `host.no_supervisor`, or whatever kept the supervisor from starting.
pub async fn ensured(global: &Global) -> Result<Client, Refusal> {
    Ok(found(global).await?.client)
}

/// The same, for those who have to know whether it was there before.
///
/// # Errors
/// As [`ensured`].
pub(super) async fn found(global: &Global) -> Result<Found, Refusal> {
    let place = place(global)?;
    let client = Client::new(place.socket.clone());
    if client.answers().await? {
        warn_of_config(global, &client).await;
        return Ok(Found { client, started: false });
    }
    if global.socket.is_some() {
        return existing(global).await.map(|client| Found { client, started: false });
    }
    let root = config::ensure_state_dir(place.dirs.root())?;
    match start(global, &StateDir::new(root)).await {
        Ok(()) => Ok(Found { client, started: true }),
        // Somebody else was faster, or one that is going down still holds the lock.
        Err(refusal) if refusal.code == Code::JournalLocked => {
            let client = winner(global, &client, refusal).await?;
            Ok(Found { client, started: false })
        }
        Err(refusal) => Err(refusal),
    }
}

/// A supervisor keeps the configuration that it was started with, also when a command names another.
async fn warn_of_config(global: &Global, client: &Client) {
    let Some(file) = &global.config else { return };
    let Ok(info) = client.get::<Info>("/v1/info").await else { return };
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let same = info.config.as_deref().is_some_and(|read| real(Path::new(read)) == real(file));
    if same && !info.config_changed {
        return;
    }
    let why = match &info.config {
        _ if same => "has changed since the supervisor that runs has read it".to_owned(),
        Some(other) => format!("is not used: the supervisor that runs has read {other}"),
        None => "is not used: the supervisor that runs was started without one".to_owned(),
    };
    let output = Output::new(global);
    output.say(&format!(
        "warning: {} {why}; before a change: {} stop",
        file.display(),
        output.program
    ));
}

/// Waits for whoever won the start. When the lock is free again without a listener, starts once
/// more.
async fn winner(global: &Global, client: &Client, refusal: Refusal) -> Result<Client, Refusal> {
    let mut waited = Duration::ZERO;
    while waited < WINNER_WAIT {
        if client.answers().await? {
            return Ok(client.clone());
        }
        tokio::time::sleep(WINNER_PAUSE).await;
        waited += WINNER_PAUSE;
        if waited.as_millis().is_multiple_of(500) {
            match start(global, &place(global)?.dirs).await {
                Ok(()) => return Ok(client.clone()),
                Err(again) if again.code == Code::JournalLocked => {}
                Err(other) => return Err(other),
            }
        }
    }
    Err(refusal)
}

/// A supervisor that was started and has not said yet whether it is ready.
pub(crate) struct Starting {
    /// The process; nobody waits for it unless somebody does.
    pub(crate) child: Child,
    ready: OwnedFd,
}

impl Starting {
    /// Waits for its word: `ready`, a refusal as JSON, or nothing when it ended without one.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) async fn word(self) -> std::io::Result<(Child, String)> {
        Ok((self.child, read_ready(self.ready).await?))
    }
}

fn failed(error: std::io::Error) -> Refusal {
    Refusal::new(Code::HostNoSupervisor, format!("cannot start a supervisor: {error}"))
}

/// Starts a detached supervisor and waits until it listens or says why not.
async fn start(global: &Global, dirs: &StateDir) -> Result<(), Refusal> {
    let own = std::env::current_exe().map_err(failed)?;
    // Without a group of its own it still serves what needs none, and refuses the rest with the reason.
    let commands = super::scope::around(&own).into_iter().chain([Command::new(&own)]);
    let mut last = None;
    for command in commands {
        let starting = spawn(global, dirs, None, command)?;
        tracing::debug!("started supervisor {} in {}", starting.child.id(), dirs.root().display());
        let (mut child, told) = starting.word().await.map_err(failed)?;
        if told.trim() == "ready" {
            // It is detached; nobody waits for it, and its parent is about to exit.
            return Ok(());
        }
        let ended = tokio::task::spawn_blocking(move || child.wait()).await;
        if let Ok(refusal) = serde_json::from_str::<Refusal>(&told) {
            return Err(refusal);
        }
        last = ended.ok().and_then(Result::ok).and_then(|status| status.code());
    }
    // It ended before it could say so, and on a full disk its log says nothing either.
    if last == Some(crate::exit::JOURNAL_FAILED) {
        return Err(journal_failed(dirs));
    }
    let cause = "the supervisor ended before it was ready".to_owned();
    Err(Refusal::new(Code::HostNoSupervisor, cause)
        .with_help(format!("see {}", dirs.log().display())))
}

/// Why a start could not write its journal.
fn journal_failed(dirs: &StateDir) -> Refusal {
    /// Below this no commit fits, bytes.
    const COMMIT_BYTES: u64 = 1 << 20;
    if let Some(free) = crate::files::free_bytes(dirs.root()).filter(|free| *free < COMMIT_BYTES) {
        let cause = format!("{free} bytes are free, and recovery has to write");
        return Refusal::new(Code::FsDiskFull, cause)
            .with_help("free space; the next command recovers, nothing is lost");
    }
    Refusal::new(Code::JournalIo, "the supervisor could not write its journal at its start")
        .with_help(format!("see {}", dirs.log().display()))
}

/// Starts a detached supervisor, for a drill with a place at which it is killed.
///
/// # Errors
/// `host.no_supervisor` when it cannot be started.
pub(crate) fn launch(
    global: &Global,
    dirs: &StateDir,
    crash: Option<Crash>,
) -> Result<Starting, Refusal> {
    let own = std::env::current_exe().map_err(failed)?;
    let command = super::scope::around(&own).unwrap_or_else(|| Command::new(&own));
    spawn(global, dirs, crash, command)
}

/// `command` is this program, perhaps in a scope.
fn spawn(
    global: &Global,
    dirs: &StateDir,
    crash: Option<Crash>,
    mut command: Command,
) -> Result<Starting, Refusal> {
    let (ready, tell) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    command.arg("__supervisor").arg("--state-dir").arg(dirs.root());
    if let Some(file) = &global.config {
        command.arg("--config").arg(std::path::absolute(file).map_err(failed)?);
    }
    if global.verbose > 0 {
        command.arg(format!("-{}", "v".repeat(usize::from(global.verbose.min(2)))));
    }
    if let Some(crash) = crash {
        command.arg("--crash").arg(crash.to_string());
    }
    let log = log_file(dirs).map_err(failed)?;
    command.arg("--ready-fd").arg("0").stdin(Stdio::from(tell)).stdout(Stdio::null()).stderr(log);
    command.current_dir("/");
    // The write end goes with the command, so that the end of the child is the end of the pipe.
    let child = command.spawn().map_err(failed)?;
    Ok(Starting { child, ready })
}

fn log_file(dirs: &StateDir) -> std::io::Result<Stdio> {
    use std::os::unix::fs::OpenOptionsExt;
    /// A log that has grown above this starts anew, bytes.
    const LOG_BYTES_MAX: u64 = 1 << 20;
    let path = dirs.log();
    let large = std::fs::metadata(&path).is_ok_and(|m| m.len() > LOG_BYTES_MAX);
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(!large)
        .write(true)
        .truncate(large)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    Ok(Stdio::from(file))
}

async fn read_ready(fd: OwnedFd) -> std::io::Result<String> {
    debug_assert!(fd.as_raw_fd() >= 0);
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        std::fs::File::from(fd).read_to_string(&mut text).map(|_| text)
    });
    read.await.map_err(std::io::Error::other)?
}
