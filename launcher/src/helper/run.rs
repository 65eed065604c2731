//! One run as the helper knows it: its groups, its process, its removal.

use std::os::fd::{AsFd, BorrowedFd};

use atenea_cgroup::{OomWatch, RunGroup};
use atenea_core::Refusal;
use rustix::event::PollFlags;

use super::context::group_refusal;
use super::host_process::HostProcess;
use super::process::Process;
use super::removal::Removal;
use super::sandbox::{Outcome, Sandbox};

/// A descriptor of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// What the child reports before bubblewrap is executed.
    Report,
    /// What `atenea-init` says.
    Init,
    /// The end of the outermost process.
    Process,
    /// The memory limit.
    Oom,
}

/// What runs in the groups.
pub(super) enum Agent {
    /// Contained.
    Sandbox(Box<Sandbox>),
    /// Not contained (`trusted-host`).
    Host(HostProcess),
}

impl Agent {
    pub(super) fn process(&self) -> &Process {
        match self {
            Agent::Sandbox(sandbox) => sandbox.process(),
            Agent::Host(host) => host.process(),
        }
    }

    fn sources(&self) -> Vec<(Source, BorrowedFd<'_>)> {
        match self {
            Agent::Sandbox(sandbox) => sandbox.sources(),
            Agent::Host(host) => host.sources(),
        }
    }

    pub(super) fn ready(&mut self, source: Source) -> Vec<Outcome> {
        match self {
            Agent::Sandbox(sandbox) => sandbox.ready(source),
            Agent::Host(host) => host.ready(source),
        }
    }

    pub(super) fn go(&mut self) -> Result<(), Refusal> {
        match self {
            Agent::Sandbox(sandbox) => sandbox.go(),
            Agent::Host(host) => host.go(),
        }
    }
}

/// One run.
pub(super) struct Run {
    pub(super) group: RunGroup,
    pub(super) oom: Option<OomWatch>,
    pub(super) agent: Option<Agent>,
    /// The request that waits for `Created`.
    pub(super) creating: Option<u64>,
    /// The request that waits for `Started`.
    pub(super) going: Option<u64>,
    pub(super) removal: Option<Removal>,
}

impl Run {
    pub(super) fn new(group: RunGroup, oom: OomWatch) -> Self {
        Run { group, oom: Some(oom), agent: None, creating: None, going: None, removal: None }
    }

    /// Kills everything of the run: its groups, and its outermost process wherever it is.
    pub(super) fn kill(&self) -> Result<(), Refusal> {
        if let Some(agent) = self.agent.as_ref().filter(|agent| !agent.process().is_reaped()) {
            agent.process().kill();
        }
        self.group.kill().map_err(|e| group_refusal(&e))
    }

    pub(super) fn sources(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut sources: Vec<_> = self
            .agent
            .iter()
            .flat_map(Agent::sources)
            .map(|(source, fd)| (source, fd, PollFlags::IN))
            .collect();
        sources.extend(self.oom.as_ref().map(|oom| (Source::Oom, oom.as_fd(), oom.poll_flags())));
        sources
    }

    /// When this run must be looked at again without an event.
    pub(super) fn next_look_ms(&self) -> Option<u64> {
        let launch = match &self.agent {
            Some(Agent::Sandbox(sandbox)) => sandbox.deadline_ms(),
            _ => None,
        };
        let removal = self.removal.as_ref().map(Removal::next_look_ms);
        launch.into_iter().chain(removal).min()
    }

    /// Whether the outermost process is still there.
    pub(super) fn has_process(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| !agent.process().is_reaped())
    }
}
