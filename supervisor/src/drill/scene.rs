//! One case's throw-away place: directories, configuration, supervisors.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atenea_core::{Code, Refusal};

use crate::cli::args::Global;
use crate::cli::client::Client;
use crate::cli::commands::wait_for_end;
use crate::cli::connect::{self, Place};
use crate::config::Config;
use crate::crash::{Crash, HELPER_MARK, mark};

use super::story::Setting;

/// How long a supervisor may take to start, to end, or to answer. Longer than any bound of its own
/// that a story meets; a machine that drills is a busy one.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Files of a large workspace: preparing it takes longer than a cancel.
const LARGE_FILES: usize = 3_000;

/// The place.
pub(super) struct Scene {
    dir: tempfile::TempDir,
    global: Global,
    pub(super) place: Place,
    setting: Setting,
}

/// A supervisor of a drill.
pub(super) struct Life {
    child: Child,
    /// What it said when it was ready or not.
    pub(super) word: String,
}

impl Life {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.word.trim() == "ready"
    }
}

impl Scene {
    /// Makes the place with a repository or directory to work on.
    pub(super) fn new(config: &Config, setting: Setting, large: bool) -> Result<Self, Refusal> {
        let made = tempfile::Builder::new().prefix("atenea-drill.").tempdir();
        let dir = made.map_err(|e| io(&std::env::temp_dir(), &e))?;
        // Links in the way would make the same place look like two.
        let root = std::fs::canonicalize(dir.path()).map_err(|e| io(dir.path(), &e))?;
        let file = root.join("atenea-sup.toml");
        crate::files::replace(&file, configuration(config).as_bytes())?;
        let state = crate::config::ensure_state_dir(&root.join("state"))?;
        let global =
            Global { config: Some(file), state_dir: Some(state), quiet: true, ..Global::default() };
        let place = connect::place(&global)?;
        let scene = Scene { dir, global, place, setting };
        scene.fill(large)?;
        Ok(scene)
    }

    /// What the runs work on.
    pub(super) fn work(&self) -> PathBuf {
        self.root().join("work")
    }

    /// Everything of the case lies here.
    pub(super) fn root(&self) -> PathBuf {
        let path = self.dir.path();
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }

    /// Leaves the place for a person to look at.
    pub(super) fn keep(self) -> PathBuf {
        self.dir.keep()
    }

    pub(super) fn client(&self) -> Client {
        Client::new(self.place.socket.clone())
    }

    fn fill(&self, large: bool) -> Result<(), Refusal> {
        let work = self.work();
        std::fs::create_dir(&work).map_err(|e| io(&work, &e))?;
        write(&work.join("file"), "one\n")?;
        if large {
            for at in 0..LARGE_FILES {
                write(&work.join(format!("file-{at}")), "many\n")?;
            }
        }
        if matches!(self.setting, Setting::Read | Setting::Write) {
            git(&work, &["init", "-q", "-b", "main"])?;
            git(&work, &["config", "user.name", "Drill"])?;
            git(&work, &["config", "user.email", "drill@localhost"])?;
            // Nothing of git may go on when it has answered.
            git(&work, &["config", "gc.auto", "0"])?;
            git(&work, &["add", "."])?;
            git(&work, &["commit", "-q", "-m", "first"])?;
        }
        Ok(())
    }

    /// Starts a supervisor and waits for its word.
    pub(super) async fn start(&self, crash: Option<Crash>) -> Result<Life, Refusal> {
        let starting = connect::launch(&self.global, &self.place.dirs, crash)?;
        let pid = starting.child.id();
        match tokio::time::timeout(PATIENCE, starting.word()).await {
            Ok(Ok((child, word))) => Ok(Life { child, word }),
            Ok(Err(error)) => Err(Refusal::new(Code::HostNoSupervisor, error.to_string())),
            Err(_) => {
                let cause = format!("supervisor {pid} says nothing");
                Err(Refusal::new(Code::HostNoSupervisor, cause))
            }
        }
    }

    /// Waits until a supervisor has ended by itself, and ends it when it does not.
    pub(super) async fn ended(&self, mut life: Life) -> Result<(), String> {
        let pid = life.child.id();
        let waited = tokio::time::timeout(PATIENCE, wait_for_end(pid)).await;
        if waited.is_err() {
            let _ = life.child.kill();
        }
        let status = life.child.wait().map_err(|e| format!("supervisor {pid}: {e}"))?;
        match waited {
            Ok(()) => Ok(()),
            Err(_) => Err(format!("supervisor {pid} did not end by itself; killed: {status}")),
        }
    }

    /// Whether the log says that a place was reached.
    pub(super) fn was_reached(&self, crash: Crash) -> bool {
        let log = std::fs::read_to_string(self.place.dirs.log()).unwrap_or_default();
        log.lines().any(|line| line.ends_with(&mark(crash)))
    }
}

/// Helpers of all supervisors that were to be killed, as the log names them.
pub(super) fn helpers(scene: &Scene) -> Vec<u32> {
    let log = std::fs::read_to_string(scene.place.dirs.log()).unwrap_or_default();
    let number = |line: &str| line.rsplit_once(HELPER_MARK)?.1.trim().parse().ok();
    log.lines().filter_map(number).collect()
}

fn io(path: &Path, error: &std::io::Error) -> Refusal {
    crate::files::io_refusal(path, error)
}

fn write(path: &Path, text: &str) -> Result<(), Refusal> {
    std::fs::write(path, text).map_err(|e| io(path, &e))
}

/// Runs git without anybody's configuration.
pub(super) fn git(dir: &Path, args: &[&str]) -> Result<String, Refusal> {
    let failed = |why: &str| {
        Refusal::new(Code::HostNoGit, format!("git {}: {why}", args.first().unwrap_or(&"")))
    };
    let output = Command::new("git")
        .current_dir(dir)
        .args(["-c", "safe.directory=*"])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(&e.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim()))
}

/// The configuration of a drill: what this host needs is the person's, the rest its own. The only
/// commands that a `trusted-host` run of a drill gives are the drill's.
fn configuration(config: &Config) -> String {
    let text = |value: &dyn std::fmt::Display| serde_json::json!(value.to_string()).to_string();
    let list = |values: Vec<String>| serde_json::json!(values).to_string();
    let sandbox = &config.sandbox;
    let mut toml = String::from("[sandbox]\nallow_trusted_host = true\nidle_seconds = 120\n");
    let range = sandbox.uid_range;
    let _ = writeln!(toml, "[sandbox.uid_range]\nstart = {}\ncount = {}", range.start, range.count);
    let engine = &sandbox.bubblewrap;
    let _ = writeln!(toml, "[sandbox.bubblewrap]\npath = {}", text(&engine.path.display()));
    if !engine.digests.is_empty() {
        let digests = engine.digests.iter().map(ToString::to_string).collect();
        let _ = writeln!(toml, "digests = {}", list(digests));
    }
    let mounts = config.runtime_mounts.iter().map(|path| path.display().to_string()).collect();
    let _ = writeln!(toml, "[runtime.host]\nmounts = {}", list(mounts));
    toml.push_str("[limits.default]\ngrace = \"300ms\"\n");
    toml.push_str("[budget.default]\nusd = \"5\"\nper = \"total\"\n");
    // Few events between snapshots, so that starts use one; a small reserve, because each case has
    // its own.
    toml.push_str("[journal]\nsnapshot_every = 10\nreserve = \"1MiB\"\n");
    toml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_a_drill_is_one_that_the_program_reads() {
        let mut config = Config::default();
        config.runtime_mounts.push("/opt/a \"quoted\" place".into());
        config.sandbox.bubblewrap.digests.push(atenea_core::Digest::of(b"engine"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), configuration(&config)).unwrap();
        let read = crate::config::load(Some(file.path())).unwrap();
        assert!(read.sandbox.allow_trusted_host);
        assert_eq!(read.sandbox.bubblewrap, config.sandbox.bubblewrap);
        assert_eq!(read.sandbox.uid_range, config.sandbox.uid_range);
        assert_eq!(read.runtime_mounts, config.runtime_mounts);
        assert_eq!(read.budgets.len(), 1);
    }
}
