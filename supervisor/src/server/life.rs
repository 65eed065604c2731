//! From the first task of the runtime to the last: recovery, serving, stopping.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use atenea_broker::TokenTable;
use atenea_core::event::BoundaryInfo;
use atenea_core::input::Command;
use atenea_core::{Code, Digest, Generation, Refusal, Settings, State};
use atenea_journal::{Holder, Journal};
use atenea_launcher::plan::HostRuntime;
use atenea_launcher::probe::HostSupport;
use atenea_launcher::protocol::{HelperConfig, Reply, Request};
use tokio::net::UnixListener;
use tokio::sync::watch;

use super::ready::Ready;
use super::{Opened, notify, recovery, signals};
use crate::api::{self, App};
use crate::config::{self, Config, InForce};
use crate::crash::{self, Place};
use crate::driver::helper::HelperClient;
use crate::driver::host::{Host, Parts};
use crate::driver::{Driver, Handle, record, told};
use crate::{clock, files};

/// How often an idle supervisor looks whether it is still idle.
const IDLE_LOOK: Duration = Duration::from_millis(250);
/// Time for clients that found the socket just before it went away.
const LAST_CLIENTS: Duration = Duration::from_millis(100);

/// Lives. Returns the exit status.
pub(super) async fn live(opened: Opened, ready: Ready) -> u8 {
    let journal = opened.journal.clone();
    match start(opened, ready.is_daemon()).await {
        Ok(running) => {
            ready.ready();
            running.serve().await
        }
        Err(refusal) => {
            tracing::error!("{refusal}");
            ready.refused(&refusal);
            drop(journal.close());
            crate::exit::REFUSED
        }
    }
}

struct Running {
    app: App,
    listener: UnixListener,
    daemon: bool,
    stop: watch::Receiver<bool>,
    helper_end: tokio::task::JoinHandle<String>,
    driver: tokio::task::JoinHandle<()>,
}

async fn start(opened: Opened, daemon: bool) -> Result<Running, Refusal> {
    let Opened { config, dirs, socket, helper, journal, state, instance } = opened;
    let helper_pid = helper.pid();
    let (sender, receiver, _pidfd) = helper.into_parts();
    let (helper, events) = HelperClient::start(sender, receiver)
        .map_err(|e| Refusal::new(Code::ProcessHelperDied, e.to_string()))?;
    let in_force = InForce::new(config);
    let config = in_force.now();
    let scan = recovery::scan(dirs.root(), &instance)?;
    crash::moment(Place::Scanned);
    configure(&helper, &config, &dirs, &instance).await?;
    let support = probe(&helper).await?;
    crash::moment(Place::Probed);
    check_runtime(&config)?;
    let (leftovers, unknown) = recovery::split(scan, &state);
    let generation = Generation(state.generation.0 + 1);
    let settings = settings(&config);
    let (driver, handle) =
        Driver::new(state, settings, journal.clone(), config.journal.snapshot_every);
    let host = Host::new(Parts {
        dirs: dirs.clone(),
        config: in_force.clone(),
        helper,
        boundary: boundary_info(&config),
        support,
        tokens: TokenTable::new(generation),
        instance,
        journal: journal.clone(),
        leftovers,
        unaccounted: unknown.kept.clone(),
    });
    host.connect(handle.clone());
    let running = tokio::spawn(driver.run(Arc::new(host.clone())));
    let helper_end = tokio::spawn(told::listen(Arc::clone(host.inner()), events));
    recover(&handle, &host, &journal, generation, unknown).await?;
    budgets(&handle, &config).await?;
    let listener = listen(&socket)?;
    crash::moment(Place::Listening);
    let (stop, stopped) = watch::channel(false);
    let app = App {
        handle,
        host: Arc::new(host),
        dirs,
        config: in_force,
        journal,
        helper: helper_pid,
        socket: socket.display().to_string(),
        mode: if daemon { "daemon" } else { "on-demand" },
        stop,
        connections: Arc::new(AtomicUsize::new(0)),
    };
    Ok(Running { app, listener, daemon, stop: stopped, helper_end, driver: running })
}

async fn configure(
    helper: &HelperClient,
    config: &Config,
    dirs: &crate::layout::StateDir,
    instance: &str,
) -> Result<(), Refusal> {
    let request = Request::Configure(HelperConfig {
        instance: instance.to_owned(),
        init: atenea_launcher::client::default_init_path()?.as_path().into(),
        bubblewrap: config.sandbox.bubblewrap.path.as_path().into(),
        staging: staging(dirs).as_path().into(),
        // It exists, is private, and no sandbox may ever see it.
        canary: dirs.instance().as_path().into(),
    });
    helper.call(request).await.map(drop)
}

/// Over which directory a sandbox's tree is mounted, in its own mount namespace: nothing is ever
/// written there. A run's uid has to be able to walk to it, which a state directory in somebody's
/// home does not allow.
fn staging(dirs: &crate::layout::StateDir) -> std::path::PathBuf {
    let own = dirs.staging();
    let walkable = |dir: &Path| {
        dir.ancestors().all(|part| {
            std::fs::metadata(part).is_ok_and(|m| m.is_dir() && m.permissions().mode() & 1 == 1)
        })
    };
    // Not `/tmp`: bubblewrap puts a filesystem of its own there.
    let others = ["/mnt", "/media", "/srv", "/opt"].map(std::path::PathBuf::from);
    std::iter::once(own.clone()).chain(others).find(|dir| walkable(dir)).unwrap_or(own)
}

async fn probe(helper: &HelperClient) -> Result<HostSupport, Refusal> {
    match helper.call(Request::Probe).await? {
        Reply::Probed(support) => Ok(support),
        other => Err(Refusal::new(Code::ProcessHelperDied, format!("it answered {other:?}"))),
    }
}

/// A configured part of the runtime that is not there is an error of the start, not of each run.
fn check_runtime(config: &Config) -> Result<(), Refusal> {
    let more: Vec<&Path> = config.runtime_mounts.iter().map(AsRef::as_ref).collect();
    HostRuntime::discover(&more).map(drop)
}

pub(super) fn settings(config: &Config) -> Settings {
    let range = config.sandbox.uid_range;
    let root = rustix::process::geteuid().is_root();
    Settings {
        max_concurrent: config.sandbox.max_concurrent,
        approval_required: config.approval_required,
        uid_range: root.then_some((range.start, range.count)),
        ..Settings::default()
    }
}

fn boundary_info(config: &Config) -> BoundaryInfo {
    let path = &config.sandbox.bubblewrap.path;
    let said = std::process::Command::new(path).arg("--version").env_clear().output();
    let version = said.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    BoundaryInfo {
        kind: "bubblewrap".to_owned(),
        version: version.unwrap_or_default(),
        digest: std::fs::read(path).ok().map(|bytes| Digest::of(&bytes)),
    }
}

/// Design 01, recovery order: the scan is done; record the start, kill and reap, finish cleanups.
async fn recover(
    handle: &Handle,
    host: &Host,
    journal: &Journal,
    generation: Generation,
    unknown: recovery::Unknown,
) -> Result<(), Refusal> {
    let boot = clock::boot_id()
        .map_err(|e| Refusal::new(Code::HostNoSupervisor, format!("boot id: {e}")))?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    handle.command(Command::Start { boot, version }).await?;
    let mut holder = Holder::this_process("atenea-sup", clock::now().wall_ms);
    holder.generation = Some(generation.0);
    journal.set_holder(holder).map_err(|e| record::refusal(&e))?;
    crash::moment(Place::Recorded);
    recovery::remove_unknown(host.inner(), unknown).await;
    crash::moment(Place::UnknownRemoved);
    recovery::settled(handle).await;
    crash::moment(Place::Settled);
    Ok(())
}

/// Accounts of the configuration are made, and changed when the configuration did.
pub(super) async fn budgets(handle: &Handle, config: &Config) -> Result<(), Refusal> {
    for (account, rule) in &config.budgets {
        let same = |state: &State| {
            let found = state.ledger.accounts.get(account);
            found.is_some_and(|a| a.limit == rule.usd && a.per == rule.per)
        };
        if !handle.read(same).await {
            let (account, limit, per) = (account.clone(), rule.usd, Some(rule.per));
            handle.command(Command::SetBudget { account, limit, per }).await?;
        }
    }
    Ok(())
}

/// Listens on the socket. We hold the journal's lock: one that is there is a dead supervisor's.
fn listen(socket: &Path) -> Result<UnixListener, Refusal> {
    config::ensure_socket_dir(socket)?;
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(files::io_refusal(socket, &e));
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(|e| files::io_refusal(socket, &e))?;
    // Its directory is private already.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .map_err(|e| files::io_refusal(socket, &e))?;
    Ok(listener)
}

impl Running {
    async fn serve(self) -> u8 {
        let Running { app, listener, daemon, stop, helper_end, driver } = self;
        let served = tokio::spawn(api::serve(listener, app.clone()));
        tokio::spawn(notify::watchdog(app.clone()));
        let obeyed = tokio::spawn(signals::obey(app.clone(), daemon));
        tokio::select! {
            () = end(&app, daemon, stop) => {}
            dead = helper_end => {
                let cause = dead.unwrap_or_else(|e| e.to_string());
                return helper_died(&app, &cause).await;
            }
            _ = driver => return crate::exit::REFUSED,
        }
        served.abort();
        obeyed.abort();
        close(&app).await
    }
}

/// Waits for a reason to stop, then for the runs.
async fn end(app: &App, daemon: bool, mut stop: watch::Receiver<bool>) {
    let cause = tokio::select! {
        _ = stop.wait_for(|asked| *asked) => "somebody asked",
        () = nothing_to_do(app), if !daemon => "idle",
    };
    tracing::info!("stopping: {cause}");
    notify::stopping(cause);
    let over = |state: &State| (!state.busy()).then_some(());
    app.handle.until(over).await;
    let _ = std::fs::remove_file(&app.socket);
    crash::moment(Place::SocketRemoved);
    tokio::time::sleep(LAST_CLIENTS).await;
}

async fn close(app: &App) -> u8 {
    if let Err(refusal) = app.handle.command(Command::Stopped).await {
        tracing::warn!("{refusal}");
    }
    let snapshot = app.handle.read(|state| record::put_snapshot(&app.journal, state)).await;
    if let Err(error) = snapshot {
        tracing::debug!("no snapshot: {error}");
    }
    crash::moment(Place::SnapshotMade);
    let closed = app.journal.clone().close();
    crash::moment(Place::Closed);
    match closed {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("{error}");
            crate::exit::NO
        }
    }
}

async fn nothing_to_do(app: &App) {
    let mut quiet = Duration::ZERO;
    loop {
        tokio::time::sleep(IDLE_LOOK).await;
        let busy = app.handle.read(State::busy).await;
        let connected = app.connections.load(Ordering::SeqCst) > 0;
        quiet = if busy || connected { Duration::ZERO } else { quiet + IDLE_LOOK };
        if quiet >= Duration::from_millis(app.config.now().sandbox.idle_ms) {
            return;
        }
    }
}

/// The helper died alone: admit nothing, kill by cgroup what there is, exit. The next start
/// recovers.
async fn helper_died(app: &App, cause: &str) -> u8 {
    tracing::error!("the launcher helper died: {cause}");
    let _ = std::fs::remove_file(&app.socket);
    let (root, instance) = (app.dirs.root().to_owned(), app.host.inner().instance.clone());
    let killed = tokio::task::spawn_blocking(move || recovery::kill_everything(&root, &instance));
    if let Ok(Err(refusal)) = killed.await {
        tracing::error!("{refusal}");
    }
    u8::try_from(crate::exit::HELPER_DIED).unwrap_or(crate::exit::REFUSED)
}
