//! The engine-neutral description of one sandbox.
//!
//! A plan says *what* the agent will see and be allowed to use; nothing in it names an engine. It is
//! compiled by [`compile`], a pure function, and carried out by the launcher helper. Order is part of
//! its meaning: mounts are made first to last, and none lies inside a tree an agent could have written.

mod admission;
mod compile;
mod etc;
mod explain;
mod input;
mod os_bytes;
mod runtime;
mod target;

pub use admission::{TmpfsSizes, check_memory, tmpfs_bytes};
pub use compile::compile;
pub use input::{Grant, PlanInput, WorkspaceInput, default_listeners, default_rlimits};
pub use os_bytes::OsBytes;
pub use runtime::{HostRuntime, RuntimeEntry};

use std::net::SocketAddrV4;

use atenea_core::{Profile, RunId};
use serde::{Deserialize, Serialize};

/// Where the agent's HOME is.
pub const HOME: &str = "/home/agent";
/// User and group of the agent inside.
pub const INSIDE_ID: u32 = 1000;
/// Name of the agent's user and group inside.
pub const AGENT_NAME: &str = "agent";
/// Where `atenea-init` is inside.
pub const INIT_PATH: &str = "/atenea/init";

/// All that is needed to make one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPlan {
    /// The run it is for.
    pub run: RunId,
    /// The run's profile.
    pub profile: Profile,
    /// What is mounted, in order. The first entry is the root.
    pub mounts: Vec<Mount>,
    /// Namespaces of its own; every one is named, none is optional.
    pub namespaces: Vec<Namespace>,
    /// Who the agent is outside and inside.
    pub ids: IdMap,
    /// Command and arguments.
    pub argv: Vec<OsBytes>,
    /// The complete environment, `NAME=VALUE` each.
    pub env: Vec<OsBytes>,
    /// Working directory inside.
    pub cwd: OsBytes,
    /// Host name inside.
    pub hostname: String,
    /// Resource limits of each process.
    pub rlimits: Vec<Rlimit>,
    /// Sockets made inside the network namespace and handed to the supervisor, in this order.
    pub listeners: Vec<Listener>,
    /// Limits of the whole run.
    pub limits: GroupLimits,
    /// Terminal of the agent: rows and columns.
    pub tty: Option<(u16, u16)>,
}

/// One thing at one place of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path inside.
    pub target: OsBytes,
    /// What is there.
    pub what: MountKind,
}

/// What a [`Mount`] puts at its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountKind {
    /// A filesystem in memory, bounded in bytes and inodes.
    Tmpfs {
        /// Bytes.
        size: u64,
        /// Files, directories and links together.
        nr_inodes: u64,
        /// Permission bits of its root.
        mode: u32,
        /// Whether its root belongs to the agent.
        of_agent: bool,
    },
    /// A file or directory of the host.
    Bind {
        /// Path on the host.
        source: OsBytes,
        /// What was vetted at that path; compared again after the mount is made.
        vetted: FileIdentity,
        /// Whether it is a directory.
        directory: bool,
        /// Whether writing is refused.
        read_only: bool,
    },
    /// A procfs of the sandbox's own pid namespace.
    Proc,
    /// A minimal device directory: null, zero, full, random, urandom, tty, pts of its own.
    Dev,
    /// A symbolic link.
    Symlink {
        /// Where it points.
        to: OsBytes,
    },
    /// A file of ours.
    File {
        /// All of it.
        contents: OsBytes,
        /// Permission bits.
        mode: u32,
    },
    /// A directory of ours.
    Dir,
    /// The filesystem mounted at the target becomes read-only: nothing is added after this.
    Seal,
}

/// Device and inode number: what the path named when it was vetted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// A namespace of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Namespace {
    /// User and group ids, capabilities.
    User,
    /// Mounts.
    Mount,
    /// Network.
    Net,
    /// System V IPC and POSIX message queues.
    Ipc,
    /// Process ids.
    Pid,
    /// Host name.
    Uts,
    /// View of the control groups.
    Cgroup,
}

impl Namespace {
    /// All of them: a sandbox has every one (S2).
    pub const ALL: [Namespace; 7] = [
        Namespace::User,
        Namespace::Mount,
        Namespace::Net,
        Namespace::Ipc,
        Namespace::Pid,
        Namespace::Uts,
        Namespace::Cgroup,
    ];
}

/// Who the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// User on the host, never 0.
    pub outside_uid: u32,
    /// Group on the host, never 0.
    pub outside_gid: u32,
    /// User inside.
    pub inside_uid: u32,
    /// Group inside.
    pub inside_gid: u32,
}

/// One `setrlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// A socket made inside the sandbox's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// What it is for.
    pub role: ListenerRole,
    /// Protocol.
    pub transport: Transport,
    /// Address inside.
    pub address: SocketAddrV4,
}

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerRole {
    /// HTTP proxy.
    HttpProxy,
    /// SOCKS5 proxy.
    SocksProxy,
    /// DNS stub.
    Dns,
    /// Broker endpoint.
    Broker,
    /// A granted destination on its synthetic address.
    Granted,
}

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A listening stream socket.
    Tcp,
    /// A bound datagram socket.
    Udp,
}

/// Limits that are set on the run's control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// CPU bandwidth in thousandths of a CPU.
    pub cpu_millis: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Tasks.
    pub pids: u64,
}

impl From<&atenea_core::Limits> for GroupLimits {
    fn from(limits: &atenea_core::Limits) -> Self {
        GroupLimits {
            cpu_millis: limits.cpu_millis,
            memory_bytes: limits.memory_bytes,
            pids: limits.pids,
        }
    }
}

/// A small plan for unit tests.
#[cfg(test)]
pub(crate) fn fixture() -> SandboxPlan {
    compile(compile::tests::input()).unwrap()
}
