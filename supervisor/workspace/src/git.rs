//! git as a child process that can run nothing but itself.
//!
//! The configuration of a user's repository is data somebody may have planted. What could start a
//! program is overridden here from the environment (which wins over every file), system and global
//! files are not read, the network is off, and the environment holds nothing else. That is still
//! not enough for `filter.*`, whose names cannot be enumerated: therefore no command that compares
//! or converts file content may run in a user's repository. Allowed there: `rev-parse`,
//! `symbolic-ref`, `config`, `ls-files` (without `-m` and `-d`), `ls-tree`, `cat-file`,
//! `pack-objects`, `index-pack`, `update-ref`, `check-ref-format` and `worktree list`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use atenea_core::{Code, Refusal};

use crate::path::shown;

/// Bytes of git's error output that are kept.
const STDERR_MAX: u64 = 16 << 10;
/// Files larger than this are shown as binary instead of being compared in memory.
const BIG_FILE: &str = "16m";
/// The id of the tree without entries.
pub(crate) const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// Settings that keep git from starting anything (S7).
const SETTINGS: &[(&str, &str)] = &[
    ("advice.graftFileDeprecated", "false"),
    ("core.fsmonitor", "false"),
    ("core.logAllRefUpdates", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.untrackedCache", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", "false"),
    ("core.sshCommand", "false"),
    ("core.gitProxy", "false"),
    ("core.alternateRefsCommand", "false"),
    ("core.bigFileThreshold", BIG_FILE),
    ("core.quotePath", "true"),
    ("core.commitGraph", "false"),
    ("core.fsync", "all"),
    ("credential.helper", ""),
    ("protocol.allow", "never"),
    ("submodule.recurse", "false"),
    ("index.sparse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("diff.external", ""),
    ("gpg.program", "false"),
    ("safe.directory", "*"),
];

/// Where programs are looked for, by us and by git.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

fn find(program: &str) -> Option<PathBuf> {
    PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|path| path.is_file())
}

/// One git command. It ends with the thread that starts it, also when that is killed: git may wait
/// for ever, for example for a pipe in the place of a `.gitignore`, and must not outlive a
/// supervisor that is killed meanwhile. Only the child itself can ask the kernel for that, and code
/// between fork and exec needs `unsafe`, so `setpriv` asks and becomes git. What remains is a worker
/// that is killed in the moment before `setpriv` asks.
pub(crate) struct Git {
    command: Command,
    /// Whether there is a git at all.
    there: bool,
    name: String,
    settings: Vec<(OsString, OsString)>,
}

impl Git {
    /// Prepares `git NAME`.
    pub(crate) fn new(name: &str) -> Self {
        let git = find("git");
        let mut command = match (find("setpriv"), &git) {
            (Some(setpriv), Some(git)) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(git);
                command
            }
            // Nothing is started: see `spawn`.
            _ => Command::new("/nonexistent"),
        };
        command.env_clear();
        for (key, value) in [
            ("PATH", PATH),
            ("HOME", "/nonexistent"),
            ("XDG_CONFIG_HOME", "/nonexistent"),
            ("LC_ALL", "C"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_ATTR_SOURCE", EMPTY_TREE),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_ALLOW_PROTOCOL", "none"),
            ("GIT_GRAFT_FILE", "/dev/null"),
            ("GIT_ASKPASS", "false"),
            ("GIT_SSH_COMMAND", "false"),
            ("GIT_EDITOR", "false"),
            ("GIT_PAGER", "cat"),
            ("GIT_LITERAL_PATHSPECS", "1"),
        ] {
            command.env(key, value);
        }
        command.current_dir("/").arg("--no-pager").arg(name);
        let settings = SETTINGS.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let there = git.is_some();
        Git { command, there, name: name.to_owned(), settings: settings.collect() }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn set(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.settings.push((key.into(), value.into()));
        self
    }

    /// Runs in a directory; git looks for the repository from there.
    pub(crate) fn within(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs in a repository that is known already.
    pub(crate) fn repository(self, git_dir: &Path) -> Self {
        self.env("GIT_DIR", git_dir)
    }

    /// Names the work tree, whatever `core.worktree` says.
    pub(crate) fn work_tree(self, root: &Path) -> Self {
        self.env("GIT_WORK_TREE", root).within(root)
    }

    /// Attributes from the work tree count again: only for repositories of ours.
    pub(crate) fn with_attributes(mut self) -> Self {
        self.command.env_remove("GIT_ATTR_SOURCE");
        self
    }

    /// Reads the global configuration of a home directory: only for `config`, which runs nothing.
    pub(crate) fn with_home(mut self, home: &Path) -> Self {
        self.command.env_remove("GIT_CONFIG_GLOBAL").env_remove("XDG_CONFIG_HOME");
        self.env("HOME", home)
    }

    /// Takes our overrides back: only for `config`, which would answer with them.
    pub(crate) fn without_settings(mut self) -> Self {
        self.settings.retain(|(key, _)| key == "safe.directory");
        self
    }

    fn ready(&mut self) {
        self.command.env("GIT_CONFIG_COUNT", self.settings.len().to_string());
        for (n, (key, value)) in self.settings.iter().enumerate() {
            self.command.env(format!("GIT_CONFIG_KEY_{n}"), key);
            self.command.env(format!("GIT_CONFIG_VALUE_{n}"), value);
        }
    }

    fn spawn(&mut self) -> Result<Child, Refusal> {
        self.ready();
        self.command.stderr(Stdio::piped());
        self.command.spawn().map_err(|error| {
            let name = &self.name;
            if error.kind() != std::io::ErrorKind::NotFound {
                return Refusal::new(Code::FsIo, format!("starting git {name}: {error}"));
            }
            // The same error of the kernel stands for the directory it should start in.
            let within = self.command.get_current_dir().filter(|dir| !dir.is_dir());
            if let Some(dir) = within {
                let cause = format!("the directory {} is not there any more", dir.display());
                return Refusal::new(Code::FsNotFound, cause);
            }
            if self.there {
                return Refusal::new(Code::HostNoGit, "git cannot be started without setpriv")
                    .with_help("apt install util-linux");
            }
            Refusal::new(Code::HostNoGit, format!("starting git {name}: {error}"))
        })
    }

    /// Runs to its end without input, whatever its status is.
    pub(crate) fn outcome(mut self) -> Result<Outcome, Refusal> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = self.spawn()?;
        finish(child, &self.name, |_| Ok(()), |out| read_all(out))
    }

    /// Runs without input and gives its output; another status than 0 is a refusal.
    pub(crate) fn run(self) -> Result<Vec<u8>, Refusal> {
        self.outcome()?.must()
    }

    /// Runs with the input that `feed` writes, while its output is read by another thread.
    pub(crate) fn run_with(
        mut self,
        feed: impl FnOnce(&mut dyn Write) -> Result<(), Refusal>,
    ) -> Result<Outcome, Refusal> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = self.spawn()?;
        finish(child, &self.name, feed, |out| read_all(out))
    }

    /// Runs with input, output goes to a file.
    pub(crate) fn run_to_file(
        mut self,
        file: File,
        feed: impl FnOnce(&mut dyn Write) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::from(file));
        let child = self.spawn()?;
        finish(child, &self.name, feed, |_| Ok(Vec::new()))?.must().map(drop)
    }

    /// Runs with a file as input.
    pub(crate) fn run_from_file(mut self, file: File) -> Result<Vec<u8>, Refusal> {
        self.command.stdin(Stdio::from(file)).stdout(Stdio::piped());
        let child = self.spawn()?;
        finish(child, &self.name, |_| Ok(()), |out| read_all(out))?.must()
    }

    /// Runs without input and gives at most `max` bytes of output; `true` when there was more.
    pub(crate) fn run_bounded(mut self, max: u64) -> Result<(Vec<u8>, bool), Refusal> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = self.spawn()?;
        let outcome = finish(
            child,
            &self.name,
            |_| Ok(()),
            |out| {
                let mut bytes = Vec::new();
                out.take(max + 1).read_to_end(&mut bytes)?;
                Ok(bytes)
            },
        )?;
        let cut = outcome.stdout.len() as u64 > max;
        // When the reader stopped first, git ends by a broken pipe: that is no failure.
        let mut bytes = if cut { outcome.stdout } else { outcome.must()? };
        bytes.truncate(usize::try_from(max).unwrap_or(usize::MAX));
        Ok((bytes, cut))
    }
}

/// How a command ended.
pub(crate) struct Outcome {
    name: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Outcome {
    pub(crate) fn ok(&self) -> bool {
        self.status.success()
    }

    /// The output, or a refusal with git's own words.
    pub(crate) fn must(self) -> Result<Vec<u8>, Refusal> {
        if self.ok() { Ok(self.stdout) } else { Err(self.refusal(Code::FsBadWorkspace)) }
    }

    /// A refusal with git's own words, escaped.
    pub(crate) fn refusal(&self, code: Code) -> Refusal {
        let words = shown(self.stderr.trim_ascii());
        let code = if words.contains("No space left on device") { Code::FsDiskFull } else { code };
        Refusal::new(code, format!("git {} ended with {}: {words}", self.name, self.status))
    }
}

fn read_all(mut out: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    out.read_to_end(&mut bytes)?;
    Ok(bytes)
}

type Reader<'a> = &'a mut (dyn Read + Send);

fn finish(
    mut child: Child,
    name: &str,
    feed: impl FnOnce(&mut dyn Write) -> Result<(), Refusal>,
    consume: impl FnOnce(Reader<'_>) -> std::io::Result<Vec<u8>> + Send,
) -> Result<Outcome, Refusal> {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let (fed, out, err) = std::thread::scope(|scope| {
        let out = scope.spawn(move || match stdout {
            Some(mut pipe) => consume(&mut pipe),
            None => Ok(Vec::new()),
        });
        let err = scope.spawn(move || drain(stderr));
        let fed = match stdin {
            Some(pipe) => feed_pipe(pipe, feed),
            None => Ok(()),
        };
        if fed.is_err() {
            // The input is incomplete: the command must not take its end for a good one.
            let _ = child.kill();
        }
        (fed, out.join(), err.join())
    });
    let status = child.wait().map_err(|error| crate::fail::io(format!("git {name}: {error}")))?;
    let stdout = out
        .map_err(|_| crate::fail::io(format!("git {name}: its reader panicked")))?
        .map_err(|error| crate::fail::io(format!("git {name}: {error}")))?;
    let stderr = err.unwrap_or_default();
    let outcome = Outcome { name: name.to_owned(), status, stdout, stderr };
    match fed {
        Ok(()) => Ok(outcome),
        // A broken pipe means that git gave up first: its own words say why.
        Err(FeedError::Pipe) => Err(outcome.refusal(Code::FsIo)),
        Err(FeedError::Refused(refusal)) => Err(refusal),
    }
}

enum FeedError {
    Pipe,
    Refused(Refusal),
}

fn feed_pipe(
    pipe: std::process::ChildStdin,
    feed: impl FnOnce(&mut dyn Write) -> Result<(), Refusal>,
) -> Result<(), FeedError> {
    let mut tracked = Tracked { inner: pipe, broken: false };
    let result = {
        let mut buffered = std::io::BufWriter::with_capacity(64 << 10, &mut tracked);
        let fed = feed(&mut buffered);
        let flushed = buffered.flush();
        // What a failed flush left must not be written again on drop.
        drop(buffered.into_parts());
        fed.and_then(|()| flushed.map_err(|error| crate::fail::io(format!("writing: {error}"))))
    };
    match result {
        Ok(()) => Ok(()),
        Err(_) if tracked.broken => Err(FeedError::Pipe),
        Err(refusal) => Err(FeedError::Refused(refusal)),
    }
}

/// Remembers that the pipe broke, so that the reader's own words win.
struct Tracked<W> {
    inner: W,
    broken: bool,
}

impl<W: Write> Write for Tracked<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.inner.write(bytes).inspect_err(|error| {
            self.broken |= error.kind() == std::io::ErrorKind::BrokenPipe;
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// Keeps the beginning and reads on to the end, so that the writer never blocks.
fn drain(pipe: Option<impl Read>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut pipe) = pipe {
        // Errors only shorten the text of an error.
        let _ = pipe.by_ref().take(STDERR_MAX).read_to_end(&mut kept);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    }
    kept
}

/// One line of output as a path: everything but the last newline belongs to it.
pub(crate) fn line_path(mut out: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    if out.last() == Some(&b'\n') {
        out.pop();
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The parts of an output that ends each of them with NUL.
pub(crate) fn nul_parts(out: &[u8]) -> impl Iterator<Item = &[u8]> {
    out.split(|byte| *byte == 0).filter(|part| !part.is_empty())
}
