//! A process of profile `trusted-host`: no sandbox, but control groups, a gate and a kill.
//!
//! It is forked, enters the groups, becomes its user and waits; only a byte on its gate lets it
//! execute the command. The end of the gate, because the helper died, ends it unstarted (S1).

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atenea_cgroup::RunGroup;
use atenea_core::{Code, Refusal};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::launch::Streams;
use super::process::Process;
use super::run::Source;
use super::sandbox::Outcome;
use crate::plan::OsBytes;
use crate::protocol::{CreatedFds, HostPlan, Rusage};
use crate::spawn::{self, Entrances};
use crate::sys;
use crate::sys::process::exit_now;

pub(super) struct HostProcess {
    process: Process,
    /// Writing lets the command start.
    gate: Option<OwnedFd>,
    /// Its end means that the command was executed; an error number that it was not.
    executed: Option<OwnedFd>,
    going: bool,
    started: bool,
    /// Why it never came to its gate.
    unprepared: Option<i32>,
    /// The master side of its terminal, to change the size.
    terminal: Option<OwnedFd>,
}

/// What the helper itself is.
#[derive(Clone, Copy)]
pub(super) struct Own {
    /// Whether it is root.
    pub(super) root: bool,
    /// The soft limit of descriptors that it was started with.
    pub(super) descriptors: u64,
}

impl HostProcess {
    /// Starts the process up to its gate.
    pub(super) fn start(
        group: &RunGroup,
        plan: &HostPlan,
        passed: Option<OwnedFd>,
        own: Own,
    ) -> Result<(Self, CreatedFds), Refusal> {
        let uid = rustix::process::geteuid().as_raw();
        if !own.root && plan.uid != uid {
            return Err(refusal("without root a run has the supervisor's own uid"));
        }
        let program = Program::new(plan)?;
        Self::fork(group, plan, program, passed, own).map_err(|e| refusal(&e.to_string()))
    }

    fn fork(
        group: &RunGroup,
        plan: &HostPlan,
        program: Program,
        passed: Option<OwnedFd>,
        own: Own,
    ) -> io::Result<(Self, CreatedFds)> {
        let owner = own.root.then_some((plan.uid, plan.gid));
        let mut streams = Streams::new(plan.stdin, passed, owner)?;
        let terminal = plan.tty.map(|size| Terminal::open(size, owner)).transpose()?;
        if let Some(terminal) = &terminal {
            streams.child = terminal.streams()?;
        }
        let terminal = terminal.map(|terminal| terminal.master);
        let pty = terminal.as_ref().map(OwnedFd::try_clone).transpose()?;
        let (gate_child, gate) = pipe_with(PipeFlags::CLOEXEC)?;
        let (executed, executed_child) = pipe_with(PipeFlags::CLOEXEC)?;
        let helper = rustix::process::getpid();
        let entrances = Entrances::open(group)?;
        let process = match spawn::fork_into(group)? {
            None => {
                drop((gate, executed, terminal, pty));
                let ends = (gate_child, executed_child);
                Child { entrances, plan, program, streams: streams.child, helper, own }.run(ends)
            }
            Some((pid, pidfd)) => Process::new(pid, pidfd),
        };
        rustix::fs::fcntl_setfl(&executed, rustix::fs::OFlags::NONBLOCK)?;
        let this = HostProcess {
            process,
            gate: Some(gate),
            executed: Some(executed),
            going: false,
            started: false,
            unprepared: None,
            terminal,
        };
        let (stdout, stderr, stdin) = (streams.stdout, streams.stderr, streams.stdin);
        let fds = CreatedFds { stdout, stderr, stdin, pty, listeners: Vec::new() };
        Ok((this, fds))
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Tells its terminal the new size; without one there is nothing to tell.
    pub(super) fn resize(&self, size: (u16, u16)) -> Result<(), Refusal> {
        let Some(master) = &self.terminal else { return Ok(()) };
        set_size(master, size).map_err(|e| refusal(&format!("its terminal: {e}")))
    }

    pub(super) fn sources(&self) -> Vec<(Source, BorrowedFd<'_>)> {
        let mut sources = Vec::new();
        sources.extend(self.executed.as_ref().map(|fd| (Source::Report, fd.as_fd())));
        if !self.process.is_reaped() {
            sources.push((Source::Process, self.process.pidfd().as_fd()));
        }
        sources
    }

    pub(super) fn go(&mut self) -> Result<(), Refusal> {
        let gate = self
            .gate
            .take()
            .ok_or_else(|| Refusal::new(Code::ProcessRunEnded, "the process was let go already"))?;
        if let Some(errno) = self.unprepared {
            let why = io::Error::from_raw_os_error(errno);
            return Err(refusal(&format!("its groups, user or directory: {why}")));
        }
        self.going = true;
        rustix::io::write(&gate, b"g")
            .map(drop)
            .map_err(|e| Refusal::new(Code::ProcessRunEnded, format!("it has ended: {e}")))
    }

    pub(super) fn ready(&mut self, source: Source) -> Vec<Outcome> {
        match source {
            Source::Report => self.read_executed().into_iter().collect(),
            Source::Process => self.read_end(),
            Source::Init | Source::Oom => Vec::new(),
        }
    }

    fn read_executed(&mut self) -> Option<Outcome> {
        let mut number = [0u8; 4];
        let read = rustix::io::read(self.executed.as_ref()?, &mut number[..]);
        if matches!(read, Err(rustix::io::Errno::AGAIN)) {
            return None;
        }
        self.executed = None;
        let was_going = std::mem::replace(&mut self.going, false);
        match read {
            Ok(4) if !was_going => {
                self.unprepared = Some(i32::from_le_bytes(number));
                None
            }
            Ok(4) => Some(Outcome::ExecFailed { errno: i32::from_le_bytes(number) }),
            _ if was_going => {
                self.started = true;
                Some(Outcome::Started)
            }
            _ => Some(Outcome::LaunchFailed(refusal("it ended before it was let go"))),
        }
    }

    fn read_end(&mut self) -> Vec<Outcome> {
        let Ok(Some(ended)) = self.process.reap() else { return Vec::new() };
        let mut outcomes: Vec<Outcome> = self.read_executed().into_iter().collect();
        let wait_status = ended.wait_status;
        if self.started {
            let rusage = Rusage {
                user_us: ended.user_us,
                system_us: ended.system_us,
                max_rss_kib: ended.max_rss_kib,
            };
            outcomes.push(Outcome::Exited { wait_status, rusage });
        }
        outcomes.push(Outcome::Gone { wait_status });
        outcomes
    }
}

fn refusal(cause: &str) -> Refusal {
    Refusal::new(Code::ProcessLaunchFailed, format!("step host process: {cause}"))
}

/// A terminal of the host.
struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
}

impl Terminal {
    /// Makes one that belongs to `owner`, as a login program does: a program may open it by name.
    fn open(size: (u16, u16), owner: Option<(u32, u32)>) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&master)?;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        if let Some((uid, _)) = owner {
            rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(uid)), None)?;
        }
        set_size(&master, size)?;
        Ok(Terminal { master, slave })
    }

    /// Standard input, output and error of the process that has it.
    fn streams(&self) -> io::Result<[OwnedFd; 3]> {
        Ok([self.slave.try_clone()?, self.slave.try_clone()?, self.slave.try_clone()?])
    }
}

fn set_size(master: &OwnedFd, (rows, cols): (u16, u16)) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}

/// The command as `execve` takes it, made before the fork.
struct Program {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn new(plan: &HostPlan) -> Result<Self, Refusal> {
        let text = |bytes: &OsBytes| {
            CString::new(bytes.as_bytes()).map_err(|_| refusal("an argument holds a NUL byte"))
        };
        let argv = plan.argv.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let env = plan.env.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let command = argv.first().ok_or_else(|| refusal("there is no command"))?;
        let candidates = if command.as_bytes().contains(&b'/') {
            vec![command.clone()]
        } else {
            let path = plan.env.iter().find_map(|v| v.as_bytes().strip_prefix(b"PATH="));
            path.unwrap_or(b"/usr/bin:/bin")
                .split(|b| *b == b':')
                .filter(|dir| dir.first() == Some(&b'/'))
                .filter_map(|dir| CString::new([dir, b"/", command.as_bytes()].concat()).ok())
                .collect()
        };
        Ok(Program { candidates, argv, env })
    }

    /// Tries the candidates in order, as a shell does: "no permission" is remembered, "not there" is
    /// not the last word.
    fn exec(&self) -> i32 {
        let mut last = libc::ENOENT;
        for candidate in &self.candidates {
            let Err(errno) = nix::unistd::execve(candidate, &self.argv, &self.env);
            match errno {
                nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR => {}
                nix::errno::Errno::EACCES => last = libc::EACCES,
                other => return other as i32,
            }
        }
        last
    }
}

struct Child<'a> {
    entrances: Entrances,
    plan: &'a HostPlan,
    program: Program,
    streams: [OwnedFd; 3],
    helper: Pid,
    own: Own,
}

impl Child<'_> {
    fn run(self, (gate, executed): (OwnedFd, OwnedFd)) -> ! {
        let errno = match self.prepare_and_exec(&gate) {
            Ok(never) => match never {},
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        let _ = rustix::io::write(&executed, &errno.to_le_bytes());
        exit_now(125)
    }

    fn prepare_and_exec(&self, gate: &OwnedFd) -> io::Result<Infallible> {
        let life =
            || spawn::bind_life(self.helper).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH));
        life()?;
        self.entrances.enter()?;
        sys::process::unblock_signals()?;
        rustix::process::setsid()?;
        if self.plan.tty.is_some() {
            rustix::process::ioctl_tiocsctty(&self.streams[0])?;
        }
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, self.own.descriptors, hard)?;
        if self.own.root {
            spawn::set_identity(self.plan.uid, self.plan.gid, &self.plan.groups)?;
            life()?;
        }
        // As the user, so that only directories the user may enter are entered.
        rustix::process::chdir(self.plan.cwd.as_path())?;
        let mut byte = [0u8; 1];
        if rustix::io::retry_on_intr(|| rustix::io::read(gate, &mut byte[..]))? != 1 {
            exit_now(125);
        }
        let above = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        let streams: Vec<OwnedFd> =
            self.streams.iter().map(|fd| above(fd.as_fd())).collect::<Result<_, _>>()?;
        sys::fd::close_on_exec_from(0)?;
        for (number, stream) in (0..).zip(&streams) {
            sys::fd::place(stream.as_fd(), number)?;
        }
        Err(io::Error::from_raw_os_error(self.program.exec()))
    }
}
