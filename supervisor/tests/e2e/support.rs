//! What tests look with: commands, repositories, processes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

pub(crate) use crate::world::World;

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
    pub(crate) fn of(output: std::process::Output) -> Out {
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

    /// Itself, when it told these words to a person.
    #[track_caller]
    pub(crate) fn tells(self, words: &str) -> Out {
        assert!(self.err.contains(words), "no {words:?}: {self:?}");
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

/// Reads lines until one is `wanted`. The other end may be a program that hangs.
#[track_caller]
fn read_until<R: std::io::Read + std::os::fd::AsFd>(lines: &mut BufReader<R>, wanted: &str) {
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut seen = Vec::new();
    loop {
        if lines.buffer().is_empty() {
            let fd = lines.get_ref();
            let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(ready, 1, "nothing comes although {wanted:?} should: {seen:?}");
        }
        let mut line = String::new();
        let read = lines.read_line(&mut line).unwrap();
        assert!(read > 0, "it ended without {wanted:?}: {seen:?}");
        if line.trim_end() == wanted {
            return;
        }
        seen.push(line);
    }
}

/// A command that runs beside the test; it ends with it.
pub(crate) struct Spawned {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    errors: BufReader<std::process::ChildStderr>,
    stdin: Option<std::process::ChildStdin>,
}

impl Spawned {
    /// Starts it with pipes for stdin and stdout.
    #[track_caller]
    pub(crate) fn new(command: &mut Command) -> Spawned {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        Spawned { child, lines, errors, stdin }
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

    /// Reads lines of its stdout until one is `wanted`.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: &str) {
        read_until(&mut self.lines, wanted);
    }

    /// Reads lines of its stderr until one is `wanted`.
    #[track_caller]
    pub(crate) fn until_error(&mut self, wanted: &str) {
        read_until(&mut self.errors, wanted);
    }

    /// Waits for its end; gives what was not read yet.
    #[track_caller]
    pub(crate) fn end(mut self) -> Out {
        drop(self.stdin.take());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        std::io::Read::read_to_end(&mut self.lines, &mut out).unwrap();
        std::io::Read::read_to_end(&mut self.errors, &mut err).unwrap();
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
