//! A place for one test: state directory, working directory, supervisor, and their end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

/// Seconds after which a command counts as hanging.
const PATIENCE: &str = "60";

/// The program under test. It needs `atenea-init` beside it.
pub(crate) fn program() -> &'static Path {
    let program = Path::new(env!("CARGO_BIN_EXE_atenea-sup"));
    let init = program.with_file_name("atenea-init");
    assert!(init.exists(), "{} is missing; use: make test", init.display());
    program
}

/// What a command gave.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Out {
    fn of(output: std::process::Output) -> Out {
        Out {
            status: output.status.code().expect("timeout(1) passes a status on"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Itself, when it ended with `status`.
    #[track_caller]
    pub(crate) fn ends(self, status: i32) -> Out {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Itself, when its stderr names `code` in the form of an error.
    #[track_caller]
    pub(crate) fn says(self, code: &str) -> Out {
        assert!(self.err.contains(&format!("error[{code}]")), "no {code}: {self:?}");
        self
    }

    /// Standard output as lines of JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        self.out.lines().map(parse).collect()
    }

    /// The one object on standard output.
    #[track_caller]
    pub(crate) fn object(&self) -> Value {
        let mut all = self.json();
        assert_eq!(all.len(), 1, "{self:?}");
        all.remove(0)
    }
}

/// Runs a command of the host to its end.
#[track_caller]
pub(crate) fn host(command: &mut Command) -> Out {
    Out::of(command.stdin(Stdio::null()).output().unwrap())
}

/// Runs git without the configuration of whoever runs the tests.
#[track_caller]
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).args(["-c", "safe.directory=*"]).args(args);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    host(&mut command).ends(0).out
}

/// Makes a repository with an identity and one commit.
pub(crate) fn repository(dir: &Path) {
    unborn(dir);
    std::fs::write(dir.join("file"), "one\n").unwrap();
    git(dir, &["add", "file"]);
    git(dir, &["commit", "-q", "-m", "first"]);
}

/// Makes a repository with an identity and no commit.
pub(crate) fn unborn(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
    git(dir, &["config", "user.name", "Ada"]);
    git(dir, &["config", "user.email", "ada@example.org"]);
}

/// Every file below a directory with mode and content, to see whether anything changed.
pub(crate) fn picture(dir: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt;
    let mut all = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let content = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            if meta.is_dir() {
                open.push(path.clone());
            }
            all.push((path, meta.permissions().mode(), content));
        }
    }
    all.sort();
    all
}

/// A process that is watched until it has ended, whoever its parent is.
pub(crate) struct Watched {
    pidfd: OwnedFd,
    /// Its id.
    pub(crate) pid: i32,
}

impl Watched {
    /// A process that lives.
    #[track_caller]
    pub(crate) fn new(pid: i32) -> Watched {
        let raw = Pid::from_raw(pid).unwrap();
        Watched { pidfd: pidfd_open(raw, PidfdFlags::empty()).unwrap(), pid }
    }

    /// Sends a signal; one that is gone needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Waits until it has ended.
    #[track_caller]
    pub(crate) fn ended(&self) {
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1, "process {} does not end", self.pid);
    }
}

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

/// Processes of the host whose command line or environment holds `mark`.
pub(crate) fn marked(mark: &str) -> Vec<i32> {
    let holds = |pid: &i32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    let names = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| holds(pid, "environ") || holds(pid, "cmdline")).collect()
}

/// A command that runs beside the test; it ends with it.
pub(crate) struct Spawned {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    stdin: Option<std::process::ChildStdin>,
}

impl Spawned {
    /// Starts it with pipes for stdin and stdout.
    #[track_caller]
    pub(crate) fn new(command: &mut Command) -> Spawned {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let stdin = child.stdin.take();
        Spawned { child, lines, stdin }
    }

    /// Writes to it.
    #[track_caller]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    /// Its id; `timeout` passes signals on to the program.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Reads lines until one is `wanted`.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: &str) {
        let mut seen = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "it ended without {wanted:?}: {seen:?}");
            if line.trim_end() == wanted {
                return;
            }
            seen.push(line);
        }
    }

    /// Waits for its end; gives what was not read yet.
    #[track_caller]
    pub(crate) fn end(mut self) -> Out {
        drop(self.stdin.take());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        std::io::Read::read_to_end(&mut self.lines, &mut out).unwrap();
        let stderr = self.child.stderr.as_mut().unwrap();
        std::io::Read::read_to_end(stderr, &mut err).unwrap();
        let status = self.child.wait().unwrap();
        Out::of(std::process::Output { status, stdout: out, stderr: err })
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // `timeout` passes SIGTERM on; SIGKILL would leave the program behind.
        if let Some(pid) = Pid::from_raw(self.pid()) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// A pipe whose write end becomes a command's stdin; what is written to it is read here.
pub(crate) fn answer_pipe() -> (File, Stdio) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (File::from(read), Stdio::from(write))
}
