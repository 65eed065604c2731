//! The supervisor process: start in the order of recovery, serve, stop in order.
//!
//! Start: helper (before any thread exists) → lock and journal → fold → scan of what is there →
//! `SupervisorStarted` → kill and reap → finish cleanups → listen. Nothing is admitted before.

mod life;
mod notify;
mod privilege;
mod ready;
mod recovery;
mod signals;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atenea_core::{Code, Refusal, State};
use atenea_journal::{Holder, Journal, Options};
use atenea_launcher::client::Helper;

use crate::cli::args::Global;
use crate::config::{self, Config};
use crate::crash::{self, Place};
use crate::driver::record;
use crate::layout::StateDir;
use crate::{clock, files};

pub use ready::Ready;

/// Where the launcher helper finds its socket.
pub const LAUNCHER_FD: i32 = atenea_launcher::client::HELPER_FD;

/// Everything that is opened before the runtime starts.
struct Opened {
    config: Config,
    dirs: StateDir,
    socket: PathBuf,
    helper: Helper,
    journal: Journal,
    state: State,
    instance: String,
}

/// Runs the supervisor; `ready` hears when it listens, or why it does not.
pub fn main(global: &Global, ready: Ready) -> ExitCode {
    init_log(global);
    if !ready.is_daemon() {
        // Detached from the terminal of the command that started it.
        let _ = rustix::process::setsid();
    }
    let opened = match open(global) {
        Ok(opened) => opened,
        Err(refusal) => {
            tracing::error!("{refusal}");
            ready.refused(&refusal);
            return ExitCode::from(crate::exit::REFUSED);
        }
    };
    // Two threads: one may wait for the disk while the other serves.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let refusal = Refusal::new(Code::HostNoSupervisor, error.to_string());
            ready.refused(&refusal);
            return ExitCode::from(crate::exit::REFUSED);
        }
    };
    let status = runtime.block_on(life::live(opened, ready));
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    ExitCode::from(status)
}

fn init_log(global: &Global) {
    let level = match global.verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    crate::log::init(level);
}

/// Opens everything in order. What fails here leaves nothing behind.
fn open(global: &Global) -> Result<Opened, Refusal> {
    // Directories get their modes from us; files are created with explicit ones.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let config = config::load(global.config.as_deref())?;
    let root = config::ensure_state_dir(&config::state_dir(global.state_dir.as_deref())?)?;
    let socket = match &global.socket {
        Some(path) => path.clone(),
        None => config::socket_path(&root)?,
    };
    let dirs = StateDir::new(root);
    refuse_lost_journal(&dirs)?;
    if dirs.journal().symlink_metadata().is_ok() {
        own_dir(&dirs.journal())?;
    }
    let instance = instance(&dirs)?;
    // On a unified host our own group must be a leaf before anybody is put into a child of it. A
    // host that cannot do it refuses enforced runs, with the probe's reason.
    if let Err(refusal) = atenea_launcher::client::prepare_groups(&instance) {
        tracing::warn!("{refusal}");
    }
    // Before any thread exists.
    let own = std::env::current_exe()
        .map_err(|e| Refusal::new(Code::HostNoSupervisor, format!("own path: {e}")))?;
    let helper = Helper::start(&own)?;
    crash::helper_is(helper.pid());
    crash::moment(Place::HelperStarted);
    privilege::drop_unneeded()?;
    // J4: the lock comes before everything else that happens in the state directory.
    let holder = Holder::this_process("atenea-sup", clock::now().wall_ms);
    let opened = Journal::open(&dirs.journal(), options(&config), holder)
        .map_err(|e| record::refusal(&e))?;
    crash::moment(Place::Locked);
    let state = record::fold(&opened.journal)?;
    crash::moment(Place::Folded);
    make_dirs(&dirs)?;
    Ok(Opened { config, dirs, socket, helper, journal: opened.journal, state, instance })
}

/// How the journal is opened without a configuration.
pub fn journal_options() -> Options {
    options(&Config::default())
}

fn options(config: &Config) -> Options {
    Options {
        reserve_bytes: config.journal.reserve_bytes,
        schema_supported: atenea_core::event::Event::SCHEMA,
        ..Options::default()
    }
}

fn make_dirs(dirs: &StateDir) -> Result<(), Refusal> {
    use std::os::unix::fs::DirBuilderExt;
    // Searchable but not listable: the path of a run's own directory has to be walked by its uid.
    for dir in [dirs.cache(), dirs.staging(), dirs.runs()] {
        match std::fs::DirBuilder::new().mode(0o711).create(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(files::io_refusal(&dir, &e));
            }
            _ => {}
        }
        let opened = own_dir(&dir)?;
        rustix::fs::fchmod(&opened, rustix::fs::Mode::from_raw_mode(0o711))
            .map_err(|e| not_ours(&dir, &e.to_string()))?;
    }
    Ok(())
}

/// Opens a directory of ours, and never through a link: what one points to is not ours to change.
fn own_dir(dir: &Path) -> Result<OwnedFd, Refusal> {
    let flags = rustix::fs::OFlags::DIRECTORY
        | rustix::fs::OFlags::NOFOLLOW
        | rustix::fs::OFlags::RDONLY
        | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, rustix::fs::Mode::empty())
        .map_err(|e| not_ours(dir, &format!("no directory of its own ({e})")))?;
    let owner = rustix::fs::fstat(&opened).map_err(|e| not_ours(dir, &e.to_string()))?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Err(not_ours(dir, &format!("it belongs to uid {owner}")));
    }
    Ok(opened)
}

fn not_ours(dir: &Path, why: &str) -> Refusal {
    Refusal::new(Code::HostStateDir, format!("{}: {why}", dir.display()))
        .with_help("it must be a directory of this user, made by atenea-sup")
}

/// J3, B3: a state directory that has run directories had a journal. Without it, holds and work
/// would be forgotten in silence.
fn refuse_lost_journal(dirs: &StateDir) -> Result<(), Refusal> {
    let journal = dirs.journal();
    let there = ["journal.redb", "anchor"].iter().any(|name| journal.join(name).exists());
    let runs = std::fs::read_dir(dirs.runs()).is_ok_and(|mut entries| entries.next().is_some());
    if there || !runs {
        return Ok(());
    }
    let cause = format!("{} has runs but no journal", dirs.root().display());
    Err(Refusal::new(Code::JournalTruncated, cause).with_help(format!(
        "restore {} from a backup; or, to begin anew, move {} away first",
        journal.display(),
        dirs.runs().display()
    )))
}

/// The id in the names of our control groups: the same for the life of the state directory, so that
/// a restarted supervisor finds what its predecessor left, wherever that was started.
fn instance(dirs: &StateDir) -> Result<String, Refusal> {
    let path = dirs.instance();
    match std::fs::read_to_string(&path) {
        Ok(text) if is_instance(text.trim()) => return Ok(text.trim().to_owned()),
        Ok(_) => {
            let cause = format!("{} holds no instance id", path.display());
            return Err(Refusal::new(Code::HostStateDir, cause)
                .with_help("remove the file only when no process of a run is left"));
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(files::io_refusal(&path, &e)),
    }
    let bits = getrandom::u64()
        .map_err(|e| Refusal::new(Code::HostStateDir, format!("no random bytes: {e}")))?;
    let id = format!("{bits:016x}");
    // Two that start at once agree: the id is complete under another name before it gets this one.
    let new = path.with_extension(&id);
    files::replace(&new, id.as_bytes())?;
    let linked = std::fs::hard_link(&new, &path);
    let _ = std::fs::remove_file(&new);
    match linked {
        Ok(()) => Ok(id),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let text = std::fs::read_to_string(&path).map_err(|e| files::io_refusal(&path, &e))?;
            Ok(text.trim().to_owned())
        }
        Err(e) => Err(files::io_refusal(&path, &e)),
    }
}

fn is_instance(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit())
}
