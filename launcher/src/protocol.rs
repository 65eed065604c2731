//! What the supervisor and the launcher helper say to each other.
//!
//! Both are the same binary, so the format needs no evolution. Every request has a number, and one
//! reply with that number; events have none.

use std::os::fd::OwnedFd;

use atenea_core::{Refusal, RunId};
use serde::{Deserialize, Serialize};

pub use atenea_cgroup::{Identity as GroupIdentity, Usage as GroupUsage};
pub use atenea_init::wire::SelfTest;

use crate::plan::{GroupLimits, OsBytes, SandboxPlan};
use crate::probe::{Enforceable, HostSupport};

/// A numbered request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Numbered {
    /// Chosen by the sender; the reply has it too.
    pub id: u64,
    /// What is wanted.
    pub request: Request,
}

/// What the supervisor asks of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The first request: where things are.
    Configure(HelperConfig),
    /// Tries whether this host can enforce, with a real launch.
    Probe,
    /// Makes a run's control groups and sets its limits.
    MakeGroup {
        /// The run.
        run: RunId,
        /// Its limits.
        limits: GroupLimits,
    },
    /// Makes a sandbox up to the point where `atenea-init` waits for *go*.
    Create(CreateSandbox),
    /// Makes an unsandboxed process up to the point where it waits for *go*.
    CreateUnsandboxed(HostPlan),
    /// Starts the agent. Sent after the intent is journalled (S1).
    Go {
        /// The run.
        run: RunId,
    },
    /// Sends a signal to the agent's process group.
    Signal {
        /// The run.
        run: RunId,
        /// Signal number.
        signal: i32,
    },
    /// New size of the agent's terminal.
    Resize {
        /// The run.
        run: RunId,
        /// Rows.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// Kills everything in the run's groups.
    KillGroup {
        /// The run.
        run: RunId,
    },
    /// Kills everything, proves the groups empty and removes them.
    RemoveGroup {
        /// The run.
        run: RunId,
    },
    /// What the run used so far.
    Usage {
        /// The run.
        run: RunId,
    },
}

/// Where the helper finds things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperConfig {
    /// Name of this supervisor's part of the cgroup tree.
    pub instance: String,
    /// `atenea-init`, from the same build.
    pub init: OsBytes,
    /// bubblewrap at its system path.
    pub bubblewrap: OsBytes,
    /// An existing directory that everybody may search, over which each sandbox's tree is mounted in
    /// its own mount namespace. Nothing is ever written to the directory itself.
    pub staging: OsBytes,
    /// A host file that must not be visible inside (self-test).
    pub canary: OsBytes,
}

/// A request for a sandbox. Only a probe that found this host able to enforce gives the proof that
/// it is made with (S2).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreateSandbox {
    plan: SandboxPlan,
    stdin: Stdin,
}

impl CreateSandbox {
    /// Asks for the sandbox of a plan.
    pub fn new(_proof: &Enforceable, plan: SandboxPlan, stdin: Stdin) -> Self {
        CreateSandbox { plan, stdin }
    }

    /// The plan.
    pub fn plan(&self) -> &SandboxPlan {
        &self.plan
    }

    /// Where standard input comes from.
    pub fn stdin(&self) -> Stdin {
        self.stdin
    }
}

/// Where standard input of the agent comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// A pipe; the reply carries its write end.
    Pipe,
    /// The descriptor that the request carries.
    Passed,
}

/// An unsandboxed process of profile `trusted-host`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostPlan {
    /// The run.
    pub run: RunId,
    /// Command and arguments; searched in `PATH` of `env`.
    pub argv: Vec<OsBytes>,
    /// The complete environment, `NAME=VALUE` each.
    pub env: Vec<OsBytes>,
    /// Working directory.
    pub cwd: OsBytes,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Where standard input comes from.
    pub stdin: Stdin,
    /// Rows and columns of a terminal of its own, which is then all three streams.
    pub tty: Option<(u16, u16)>,
}

/// What the helper sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromHelper {
    /// To a request.
    Reply {
        /// The request's number.
        id: u64,
        /// What came of it.
        result: Result<Reply, Refusal>,
    },
    /// Something happened.
    Event(Event),
}

/// The success of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// `Configure`.
    Configured {
        /// Pid of the helper.
        pid: i32,
        /// The kernel's boot id.
        boot_id: String,
        /// Whether the helper is root.
        root: bool,
    },
    /// `Probe`.
    Probed(HostSupport),
    /// `MakeGroup`.
    GroupMade {
        /// For the journal.
        identity: GroupIdentity,
    },
    /// `Create` and `CreateUnsandboxed`. Carries descriptors: see [`FdLayout`].
    Created(Created),
    /// `Go`: the agent's program was executed.
    Started,
    /// `Go`: it could not be executed (ENOENT → 127, else 126). The run has ended.
    ExecFailed {
        /// `errno` of `execve`.
        errno: i32,
    },
    /// `Signal`, `Resize`, `KillGroup`.
    Done,
    /// `RemoveGroup`: nothing of the run exists any more (C1).
    Removed,
    /// `Usage`.
    Usage(RunUsage),
}

/// A run that waits for *go*.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The run.
    pub run: RunId,
    /// For the journal.
    pub identity: ProcessIdentity,
    /// What was tried inside, all of it refused (S4). Empty for an unsandboxed run.
    pub self_test: Vec<SelfTest>,
    /// What the descriptors are.
    pub fds: FdLayout,
}

/// Identity of a process across restarts: a pid alone means nothing (R1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The kernel's boot id.
    pub boot_id: String,
    /// Process id of the outermost process of the run.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Inode of its pidfd; unique within a boot where the kernel has pidfs.
    pub pidfd_inode: u64,
    /// Its control groups.
    pub group: GroupIdentity,
}

/// The descriptors of a [`Reply::Created`], in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdLayout {
    /// The write end of standard input, when it is a pipe.
    pub stdin: bool,
    /// The master side of the terminal.
    pub pty: bool,
    /// Listeners, in the plan's order.
    pub listeners: usize,
}

/// The descriptors of a [`Reply::Created`], by name.
#[derive(Debug)]
pub struct CreatedFds {
    /// Read end of standard output.
    pub stdout: OwnedFd,
    /// Read end of standard error.
    pub stderr: OwnedFd,
    /// Write end of standard input.
    pub stdin: Option<OwnedFd>,
    /// Master side of the terminal.
    pub pty: Option<OwnedFd>,
    /// Listeners, in the plan's order.
    pub listeners: Vec<OwnedFd>,
}

impl CreatedFds {
    /// Names the descriptors that came with a reply; `None` when their number is wrong.
    pub fn split(layout: FdLayout, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let stdout = fds.next()?;
        let stderr = fds.next()?;
        let stdin = if layout.stdin { Some(fds.next()?) } else { None };
        let pty = if layout.pty { Some(fds.next()?) } else { None };
        let listeners: Vec<OwnedFd> = fds.by_ref().take(layout.listeners).collect();
        let complete = listeners.len() == layout.listeners && fds.next().is_none();
        complete.then_some(CreatedFds { stdout, stderr, stdin, pty, listeners })
    }

    /// In the order of the reply.
    pub(crate) fn join(self) -> (FdLayout, Vec<OwnedFd>) {
        let layout = FdLayout {
            stdin: self.stdin.is_some(),
            pty: self.pty.is_some(),
            listeners: self.listeners.len(),
        };
        let mut fds = vec![self.stdout, self.stderr];
        fds.extend(self.stdin);
        fds.extend(self.pty);
        fds.extend(self.listeners);
        (layout, fds)
    }
}

/// What a run used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUsage {
    /// CPU, memory, tasks.
    pub group: GroupUsage,
    /// Processes that the kernel ended for want of memory.
    pub oom_kills: u64,
    /// Forks refused because of the pids limit.
    pub fork_refusals: u64,
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The agent itself ended.
    AgentExited {
        /// The run.
        run: RunId,
        /// Wait status as `waitpid` gives it.
        wait_status: i32,
        /// What it used.
        rusage: Rusage,
    },
    /// The outermost process of the run ended and was reaped.
    SandboxGone {
        /// The run.
        run: RunId,
        /// Its wait status: what is known when no `AgentExited` came.
        wait_status: i32,
    },
    /// The run hit its memory limit; all of it was killed.
    Oom {
        /// The run.
        run: RunId,
    },
}

/// Resource use of the agent and its reaped children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rusage {
    /// User time, microseconds.
    pub user_us: u64,
    /// System time, microseconds.
    pub system_us: u64,
    /// Largest resident set of one process, KiB.
    pub max_rss_kib: u64,
}
