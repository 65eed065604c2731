//! A place for one test: state directory, working directory, supervisor, and their end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Out, Spawned, Watched, marked, program};

/// Seconds after which a command counts as hanging.
const PATIENCE: &str = "60";

/// One test's place. Its end stops the supervisor and checks that no group of its runs is left.
pub(crate) struct World {
    dir: tempfile::TempDir,
    configured: bool,
}

impl World {
    /// Without a configuration file.
    pub(crate) fn new() -> World {
        program();
        let dir = tempfile::Builder::new().prefix("atenea-e2e.").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        World { dir, configured: false }
    }

    /// With this configuration.
    pub(crate) fn configured(text: &str) -> World {
        let mut world = World::new();
        std::fs::write(world.dir.path().join("atenea-sup.toml"), text).unwrap();
        world.configured = true;
        world
    }

    /// Everything of the test lies here.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where commands are given.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// The state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The directory of a run.
    pub(crate) fn run_dir(&self, run: &str) -> PathBuf {
        self.state().join("runs").join(run)
    }

    /// Names in the directory of runs.
    pub(crate) fn run_dirs(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.state().join("runs")) else { return Vec::new() };
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Control groups of runs of this supervisor.
    pub(crate) fn groups(&self) -> Vec<PathBuf> {
        let Ok(instance) = std::fs::read_to_string(self.state().join("instance")) else {
            return Vec::new();
        };
        let places = named(Path::new("/sys/fs/cgroup"), &format!("atenea-{}", instance.trim()));
        let below = places.iter().flat_map(|place| std::fs::read_dir(place).into_iter().flatten());
        let runs = below.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("r_"));
        runs.map(|e| e.path()).collect()
    }

    /// A command of the program that waits for more arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg("--kill-after=5").arg(PATIENCE).arg(program());
        self.with_options(&mut command);
        command
    }

    /// Adds the options that lead to this place.
    pub(crate) fn with_options(&self, command: &mut Command) {
        command.arg("--state-dir").arg(self.state());
        if self.configured {
            command.arg("--config").arg(self.dir().join("atenea-sup.toml"));
        } else {
            // Not the one of whoever runs the tests.
            command.env("XDG_CONFIG_HOME", self.dir().join("none"));
        }
        command.current_dir(self.work()).stdin(Stdio::null());
    }

    /// Runs a command of the program in the working directory.
    #[track_caller]
    pub(crate) fn sup(&self, args: &[&str]) -> Out {
        self.sup_in(&self.work(), args)
    }

    /// The same in another directory.
    #[track_caller]
    pub(crate) fn sup_in(&self, dir: &Path, args: &[&str]) -> Out {
        Out::of(self.command().current_dir(dir).args(args).output().unwrap())
    }

    /// `run OPTIONS -- sh -c SCRIPT`
    #[track_caller]
    pub(crate) fn shell(&self, options: &[&str], script: &str) -> Out {
        let args = [&["run"], options, &["--", "sh", "-c", script]].concat();
        self.sup(&args)
    }

    /// Starts `sh -c SCRIPT` detached and gives the run's id.
    #[track_caller]
    pub(crate) fn detached(&self, options: &[&str], script: &str) -> String {
        let args = [&["run", "--detach"], options, &["--", "sh", "-c", script]].concat();
        self.sup(&args).ends(0).out.trim().to_owned()
    }

    /// The same, and waits until it has printed the line `ready`.
    #[track_caller]
    pub(crate) fn ready(&self, options: &[&str], script: &str) -> String {
        let run = self.detached(options, script);
        let mut command = self.command();
        let mut logs = Spawned::new(command.args(["logs", "--follow", &run]));
        logs.until("ready");
        run
    }

    /// The status of a run.
    #[track_caller]
    pub(crate) fn status(&self, run: &str) -> Value {
        self.sup(&["--json", "status", run]).ends(0).object()
    }

    /// The receipt of a run, without its digest.
    #[track_caller]
    pub(crate) fn receipt(&self, run: &str) -> Value {
        self.sup(&["receipt", run]).ends(0).object()["receipt"].clone()
    }

    /// The only run there is, or the last one.
    #[track_caller]
    pub(crate) fn last(&self) -> Value {
        self.sup(&["--json", "status", "--all"]).ends(0).json().pop().expect("a run")
    }

    /// An account.
    #[track_caller]
    pub(crate) fn account(&self, name: &str) -> Value {
        self.sup(&["--json", "budget", "show", name]).ends(0).object()
    }

    /// The supervisor that answers.
    #[track_caller]
    pub(crate) fn supervisor(&self) -> Watched {
        let info = self.sup(&["--json", "info"]).ends(0).object();
        Watched::new(i32::try_from(info["pid"].as_i64().unwrap()).unwrap())
    }

    /// C1: nothing of a run, and nothing of a supervisor that was stopped, outlives it.
    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        let instance = std::fs::read_to_string(self.state().join("instance")).unwrap_or_default();
        let groups = named(Path::new("/sys/fs/cgroup"), &format!("atenea-{}", instance.trim()));
        assert_eq!(groups, Vec::<PathBuf>::new(), "control groups are left");
        let dir = self.dir().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(dir), "mounts are left: {mounts}");
        assert_eq!(marked(dir), Vec::<i32>::new(), "processes are left");
    }

    /// The launcher helper of a supervisor.
    #[track_caller]
    pub(crate) fn helper(&self, supervisor: &Watched) -> Watched {
        let pid = supervisor.pid;
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_helper = |pid: &&str| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|b| *b == 0).any(|word| word == b"__launcher"))
        };
        let found = children.split_whitespace().find(is_helper).expect("a helper");
        Watched::new(found.parse().unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let stopped = self.sup(&["stop", "--now"]);
            let log = std::fs::read_to_string(self.state().join("supervisor.log"));
            eprintln!("stop: {stopped:?}\nsupervisor.log:\n{}", log.unwrap_or_default());
            return;
        }
        let running = self.sup(&["info"]).status == 0;
        let helper = running.then(|| self.helper(&self.supervisor()));
        self.sup(&["stop", "--now"]).ends(0);
        if let Some(helper) = helper {
            helper.ended();
        }
        self.nothing_is_left();
    }
}

/// Directories with a name, anywhere in a tree of control groups.
fn named(dir: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())) {
        match entry.file_name() == name {
            true => found.push(entry.path()),
            false => found.extend(named(&entry.path(), name)),
        }
    }
    found
}
