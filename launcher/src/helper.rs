//! The launcher helper: the one process that holds what privilege there is.
//!
//! It has one thread and an event loop. It spawns every sandbox from that thread, because the
//! parent-death signal follows the *thread* that forked; reaps only what it spawned, through pidfds;
//! and when its control socket reaches its end, because the supervisor ended or died, it kills every
//! run, waits a bounded time, removes the control groups and exits. It decides nothing.

mod clock;
mod context;
mod dispatch;
mod host_process;
mod launch;
mod process;
mod removal;
mod run;
mod sandbox;
mod shutdown;
mod trial;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use atenea_core::{Refusal, RunId};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::packet::{Assembler, Incoming, Outgoing};
use crate::protocol::{Event, FromHelper, Reply};
use crate::sys;

use self::context::Context;
use self::run::{Run, Source};

/// Messages that wait for a supervisor that does not read; above it no request is taken.
const OUT_MAX: usize = 1024;

/// Descriptors of the helper: enough for thousands of runs.
const DESCRIPTORS_MAX: u64 = 65_536;

/// Entry point of the hidden subcommand; the control socket is `socket_fd`.
pub fn main(socket_fd: RawFd) -> ! {
    let status = match Helper::new(socket_fd).and_then(Helper::serve) {
        Ok(()) => 0,
        // The supervisor sees the end of the socket; there is nobody else to tell.
        Err(error) => {
            complain(&error);
            1
        }
    };
    sys::process::exit_now(status)
}

/// Writes a line to the log, which may lie on a full disk: `eprintln!` would panic then.
fn complain(what: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "atenea-sup launcher helper: {what}");
}

struct Helper {
    socket: OwnedFd,
    assembler: Assembler,
    out: VecDeque<Outgoing>,
    signals: SignalFd,
    /// Soft limit of descriptors before it was raised: what an unsandboxed command starts with.
    descriptors: u64,
    context: Option<Context>,
    runs: BTreeMap<RunId, Run>,
}

/// Which descriptor is ready.
enum Ready {
    Control { readable: bool, writable: bool },
    Signals,
    Run(RunId, Source),
}

/// A descriptor to wait for; without a run it is the one of the signals.
type Waiting<'a> = (Option<(&'a RunId, Source)>, BorrowedFd<'a>, PollFlags);

impl Helper {
    fn new(socket_fd: RawFd) -> io::Result<Self> {
        let socket = sys::fd::inherited(socket_fd)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        // What the caller had open beyond this is none of a run's business (S5).
        sys::fd::close_on_exec_from(3)?;
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        assert!(threads == 1, "the helper has {threads} threads");
        // An inherited "ignore" of SIGCHLD would reap children behind our back.
        sys::process::default_signals();
        // A key pressed in the terminal of whoever started the supervisor is not for us.
        let _ = rustix::process::setsid();
        let signals = blocked_signals()?;
        let descriptors = raise_descriptor_limit()?;
        Ok(Helper {
            descriptors,
            socket,
            assembler: Assembler::default(),
            out: VecDeque::new(),
            signals,
            context: None,
            runs: BTreeMap::new(),
        })
    }

    fn serve(mut self) -> io::Result<()> {
        let end = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // However it ended: nothing of ours stays.
        self.shut_down();
        end
    }

    /// Waits for something and handles it; false when the supervisor is gone.
    fn turn(&mut self) -> io::Result<bool> {
        for ready in self.wait()? {
            match ready {
                Ready::Control { readable, writable } => {
                    if writable && !self.flush()? || readable && !self.read_requests()? {
                        return Ok(false);
                    }
                }
                Ready::Signals => {
                    if self.asked_to_end()? {
                        return Ok(false);
                    }
                }
                Ready::Run(run, source) => self.run_ready(&run, source),
            }
        }
        self.advance();
        self.flush()
    }

    fn wait(&self) -> io::Result<Vec<Ready>> {
        let mut flags = PollFlags::empty();
        if self.out.len() < OUT_MAX {
            flags |= PollFlags::IN;
        }
        if !self.out.is_empty() {
            flags |= PollFlags::OUT;
        }
        let mut sources: Vec<Waiting<'_>> = Vec::new();
        for (id, run) in &self.runs {
            for (source, fd, flags) in run.sources() {
                sources.push((Some((id, source)), fd, flags));
            }
        }
        sources.push((None, self.signals.as_fd(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        fds.extend(sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
        let timeout = self.timeout();
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let mut ready = Vec::new();
        for (fd, (source, _, _)) in fds.iter().skip(1).zip(&sources) {
            if fd.revents().is_empty() {
                continue;
            }
            ready.push(match source {
                Some((run, source)) => Ready::Run((*run).clone(), *source),
                None => Ready::Signals,
            });
        }
        // Requests last: what happened before them is told before them.
        if let Some(control) = fds.first().map(PollFd::revents).filter(|r| !r.is_empty()) {
            ready.push(Ready::Control {
                readable: control.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
                writable: control.contains(PollFlags::OUT),
            });
        }
        Ok(ready)
    }

    fn timeout(&self) -> Option<Timespec> {
        let next = self.runs.values().filter_map(Run::next_look_ms).min()?;
        let wait_ms = next.saturating_sub(clock::now_ms());
        Some(Timespec {
            tv_sec: i64::try_from(wait_ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(wait_ms % 1000).unwrap_or(0) * 1_000_000,
        })
    }

    /// Sends what the socket takes; false when the supervisor is gone.
    fn flush(&mut self) -> io::Result<bool> {
        while let Some(message) = self.out.front_mut() {
            match message.send_some(self.socket.as_fd()) {
                Ok(true) => drop(self.out.pop_front()),
                Ok(false) => return Ok(true),
                Err(error) if is_gone(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes all requests that are there; false when the supervisor is gone.
    fn read_requests(&mut self) -> io::Result<bool> {
        while self.out.len() < OUT_MAX {
            match self.assembler.receive(self.socket.as_fd())? {
                Incoming::Message(body, fds) => self.request(&body, fds)?,
                Incoming::WouldBlock => return Ok(true),
                Incoming::Closed => return Ok(false),
            }
        }
        Ok(true)
    }

    /// SIGTERM ends the helper as the end of its socket does; other keys and hang-ups do not.
    fn asked_to_end(&self) -> io::Result<bool> {
        while let Some(info) = self.signals.read_signal()? {
            if i32::try_from(info.ssi_signo) == Ok(libc::SIGTERM) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn reply(&mut self, id: u64, result: Result<Reply, Refusal>, fds: Vec<OwnedFd>) {
        self.queue(&FromHelper::Reply { id, result }, fds);
    }

    fn event(&mut self, event: Event) {
        self.queue(&FromHelper::Event(event), Vec::new());
    }

    fn queue(&mut self, message: &FromHelper, fds: Vec<OwnedFd>) {
        let body = rmp_serde::to_vec_named(message).map_err(io::Error::other);
        match body.and_then(|body| Outgoing::new(body, fds)) {
            Ok(outgoing) => self.out.push_back(outgoing),
            // Bounded types cannot fail to encode; without memory for a memfd the supervisor is
            // better off seeing our end than missing one message.
            Err(error) => {
                complain(&format_args!("a message cannot be sent: {error}"));
                self.shut_down();
                sys::process::exit_now(1)
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Each run holds about a dozen descriptors here, so the soft limit goes as far as it may. Returns
/// what it was.
fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(DESCRIPTORS_MAX).max(soft), hard)?;
    Ok(soft)
}

fn blocked_signals() -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    for signal in
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE]
    {
        mask.add(signal);
    }
    mask.thread_block()?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}
