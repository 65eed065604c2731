//! One sandbox from its launch to its end: what its descriptors say becomes outcomes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atenea_core::{Code, Refusal};
use atenea_init::wire::{FromInit, MESSAGE_BYTES_MAX, SelfTest, ToInit};
use rustix::net::SendFlags;

use super::clock;
use super::process::Process;
use super::run::Source;
use crate::packet::{Assembler, Incoming, receive_packet};
use crate::plan::SandboxPlan;
use crate::protocol::{CreatedFds, Rusage};
use crate::spawn::Report;
use crate::sys::process::Ended;

/// A launch that takes longer has failed: the medians are in milliseconds.
const LAUNCH_MS_MAX: u64 = 30_000;
/// How much of bubblewrap's words goes into a refusal.
const WORDS_BYTES_MAX: usize = 1024;

/// What a sandbox told.
pub(super) enum Outcome {
    /// Everything is in place; the agent waits for *go*.
    Created { self_test: Vec<SelfTest>, fds: CreatedFds },
    /// It will never start.
    LaunchFailed(Refusal),
    /// The agent's program was executed.
    Started,
    /// It could not be.
    ExecFailed { errno: i32 },
    /// The agent ended.
    Exited { wait_status: i32, rusage: Rusage },
    /// The outermost process ended.
    Gone { wait_status: i32 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Launching,
    Waiting,
    Going,
    Running,
    /// The launch failed, or the agent ended.
    Over,
}

pub(super) struct Sandbox {
    plan: SandboxPlan,
    process: Process,
    report: Option<OwnedFd>,
    assembler: Assembler,
    supervise: Option<OwnedFd>,
    streams: Option<(OwnedFd, OwnedFd, Option<OwnedFd>)>,
    listeners: Option<Vec<OwnedFd>>,
    phase: Phase,
    deadline_ms: u64,
}

impl Sandbox {
    pub(super) fn new(
        plan: SandboxPlan,
        process: Process,
        (report, supervise): (OwnedFd, OwnedFd),
        streams: (OwnedFd, OwnedFd, Option<OwnedFd>),
    ) -> Self {
        Sandbox {
            plan,
            process,
            report: Some(report),
            assembler: Assembler::default(),
            supervise: Some(supervise),
            streams: Some(streams),
            listeners: None,
            phase: Phase::Launching,
            deadline_ms: clock::now_ms() + LAUNCH_MS_MAX,
        }
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// What to wait for. Earlier sources are handled first: reports, then init, then the end.
    pub(super) fn sources(&self) -> Vec<(Source, BorrowedFd<'_>)> {
        let mut sources = Vec::new();
        sources.extend(self.report.as_ref().map(|fd| (Source::Report, fd.as_fd())));
        sources.extend(self.supervise.as_ref().map(|fd| (Source::Init, fd.as_fd())));
        if !self.process.is_reaped() {
            sources.push((Source::Process, self.process.pidfd().as_fd()));
        }
        sources
    }

    /// When the launch must be over, while it is not.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        (self.phase == Phase::Launching).then_some(self.deadline_ms)
    }

    /// Gives up a launch that took too long.
    pub(super) fn check_deadline(&mut self) -> Option<Outcome> {
        let late = self.deadline_ms().is_some_and(|deadline| clock::now_ms() >= deadline);
        late.then(|| self.fail(Code::ProcessLaunchFailed, "step launch: took too long"))
    }

    /// Handles one ready descriptor.
    pub(super) fn ready(&mut self, source: Source) -> Vec<Outcome> {
        match source {
            Source::Report => self.read_report().into_iter().collect(),
            Source::Init => self.read_init(),
            Source::Process => self.read_end(),
            Source::Oom => Vec::new(),
        }
    }

    /// Reads what the child reported until its end, which is the exec of bubblewrap.
    fn read_report(&mut self) -> Option<Outcome> {
        loop {
            let report = self.report.as_ref()?;
            match self.assembler.receive(report.as_fd()) {
                Ok(Incoming::WouldBlock) => return None,
                Ok(Incoming::Closed) => self.report = None,
                Ok(Incoming::Message(body, fds)) => match rmp_serde::from_slice(&body) {
                    Ok(Report::Listeners) => self.listeners = Some(fds),
                    Ok(Report::Failed(refusal)) => return Some(self.fail_with(refusal)),
                    Err(error) => return Some(self.broken("report", &error.to_string())),
                },
                Err(error) => return Some(self.broken("report", &error.to_string())),
            }
        }
    }

    fn read_init(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while let Some(socket) = &self.supervise {
            match receive_packet(socket.as_fd(), MESSAGE_BYTES_MAX) {
                Ok(Some((body, fds))) => match rmp_serde::from_slice(&body) {
                    Ok(message) => outcomes.extend(self.said(message, fds)),
                    Err(error) => outcomes.push(self.broken("init", &error.to_string())),
                },
                Err(rustix::io::Errno::AGAIN) => break,
                // Its end is told by the process itself.
                Ok(None) | Err(rustix::io::Errno::CONNRESET) => self.supervise = None,
                Err(error) => outcomes.push(self.broken("init", &error.to_string())),
            }
        }
        outcomes
    }

    fn said(&mut self, message: FromInit, fds: Vec<OwnedFd>) -> Option<Outcome> {
        match (self.phase, message) {
            (Phase::Launching, FromInit::Ready { self_test }) => {
                // The listeners were sent before bubblewrap was executed, so they are there.
                if let Some(failure) = self.read_report() {
                    return Some(failure);
                }
                Some(self.created(self_test, fds))
            }
            (Phase::Launching, FromInit::Failed { step, errno, detail }) => {
                let cause = format!("step init {step}: {detail}: {}", errno_text(errno));
                Some(self.fail(Code::ProcessLaunchFailed, &cause))
            }
            (Phase::Going, FromInit::Started { .. }) => {
                self.phase = Phase::Running;
                Some(Outcome::Started)
            }
            (Phase::Going, FromInit::ExecFailed { errno }) => {
                self.phase = Phase::Over;
                Some(Outcome::ExecFailed { errno })
            }
            (Phase::Running, FromInit::Exited { wait_status, user_us, system_us, max_rss_kib }) => {
                self.phase = Phase::Over;
                let rusage = Rusage { user_us, system_us, max_rss_kib };
                Some(Outcome::Exited { wait_status, rusage })
            }
            (Phase::Over, _) => None,
            (_, other) => {
                Some(self.broken("init", &format!("said what it may not say now: {other:?}")))
            }
        }
    }

    /// S4: a self-test that did not refuse everything is the end of the launch.
    fn created(&mut self, self_test: Vec<SelfTest>, fds: Vec<OwnedFd>) -> Outcome {
        let succeeded: Vec<String> = self_test
            .iter()
            .filter(|test| !test.refused)
            .map(|test| format!("{} ({})", test.name, test.detail))
            .collect();
        if self_test.is_empty() || !succeeded.is_empty() {
            let cause = format!("not refused inside: {}", succeeded.join(", "));
            return self.fail(Code::ProcessSelfTestFailed, &cause);
        }
        let mut fds = fds.into_iter();
        let pty = self.plan.tty.and_then(|_| fds.next());
        let complete = fds.next().is_none() && pty.is_some() == self.plan.tty.is_some();
        let listeners = self.listeners.take().unwrap_or_default();
        match self.streams.take() {
            Some((stdout, stderr, stdin))
                if complete && listeners.len() == self.plan.listeners.len() =>
            {
                self.phase = Phase::Waiting;
                let _ = rustix::fs::fcntl_setfl(&stderr, rustix::fs::OFlags::empty());
                let fds = CreatedFds { stdout, stderr, stdin, pty, listeners };
                Outcome::Created { self_test, fds }
            }
            _ => self.fail(Code::ProcessLaunchFailed, "step init: descriptors are missing"),
        }
    }

    fn read_end(&mut self) -> Vec<Outcome> {
        let ended = match self.process.reap() {
            Ok(Some(ended)) => ended,
            Ok(None) => return Vec::new(),
            Err(error) => return vec![self.broken("process", &error.to_string())],
        };
        // What was said before the end counts before the end.
        let mut outcomes: Vec<Outcome> = self.read_report().into_iter().collect();
        outcomes.extend(self.read_init());
        if self.phase == Phase::Launching {
            let cause = format!("step bubblewrap: {}", self.last_words(ended));
            outcomes.push(self.fail(Code::HostBubblewrapUnusable, &cause));
        }
        self.supervise = None;
        outcomes.push(Outcome::Gone { wait_status: ended.wait_status });
        outcomes
    }

    /// What bubblewrap or init said, for people only: nothing is decided by it.
    fn last_words(&self, ended: Ended) -> String {
        let mut words = [0u8; WORDS_BYTES_MAX];
        let said = self
            .streams
            .as_ref()
            .and_then(|(_, stderr, _)| rustix::io::read(stderr, &mut words[..]).ok())
            .and_then(|length| words.get(..length))
            .map(|words| words.trim_ascii().escape_ascii().to_string())
            .unwrap_or_default();
        format!("wait status {:#x}: {said}", ended.wait_status)
    }

    /// Lets the agent start.
    pub(super) fn go(&mut self) -> Result<(), Refusal> {
        if self.phase != Phase::Waiting {
            return Err(Refusal::new(Code::ProcessRunEnded, "the sandbox does not wait for go"));
        }
        self.phase = Phase::Going;
        self.tell(&ToInit::Go)
    }

    pub(super) fn tell(&self, message: &ToInit) -> Result<(), Refusal> {
        let ended = |why: String| Refusal::new(Code::ProcessRunEnded, why);
        let socket = self.supervise.as_ref().ok_or_else(|| ended("init has ended".to_owned()))?;
        let body = rmp_serde::to_vec_named(message).map_err(|e| ended(e.to_string()))?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(socket, &body, flags)
            .map(drop)
            .map_err(|error| ended(format!("init does not listen: {}", io::Error::from(error))))
    }

    fn broken(&mut self, who: &str, why: &str) -> Outcome {
        self.fail(Code::ProcessLaunchFailed, &format!("step {who}: {why}"))
    }

    fn fail(&mut self, code: Code, cause: &str) -> Outcome {
        self.fail_with(Refusal::new(code, cause))
    }

    /// Ends the launch. Closing init's socket ends init; the caller kills the group as well.
    fn fail_with(&mut self, refusal: Refusal) -> Outcome {
        self.phase = Phase::Over;
        self.supervise = None;
        self.report = None;
        self.listeners = None;
        Outcome::LaunchFailed(refusal)
    }
}

fn errno_text(errno: i32) -> String {
    if errno == 0 { "no errno".to_owned() } else { io::Error::from_raw_os_error(errno).to_string() }
}
