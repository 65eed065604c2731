//! What a plan is compiled from: decisions that were made already, with nothing left to look up.

use std::net::{Ipv4Addr, SocketAddrV4};

use atenea_core::{Limits, Profile, RunId};

use super::{
    FileIdentity, HostRuntime, Listener, ListenerRole, OsBytes, Rlimit, TmpfsSizes, Transport,
};

/// Input of [`compile`](super::compile).
#[derive(Clone, Debug)]
pub struct PlanInput {
    /// The run.
    pub run: RunId,
    /// Its profile; `trusted-host` has no plan.
    pub profile: Profile,
    /// Command and arguments.
    pub argv: Vec<OsBytes>,
    /// The complete environment: names and values, in this order.
    pub env: Vec<(String, OsBytes)>,
    /// Working directory inside; the workspace when absent, else HOME.
    pub cwd: Option<OsBytes>,
    /// The workspace, when the run has one.
    pub workspace: Option<WorkspaceInput>,
    /// Read-only grants.
    pub grants: Vec<Grant>,
    /// The declared runtime.
    pub runtime: HostRuntime,
    /// User on the host that the run gets, never 0.
    pub outside_uid: u32,
    /// Group on the host that the run gets, never 0.
    pub outside_gid: u32,
    /// Effective limits.
    pub limits: Limits,
    /// Sizes of the filesystems in memory.
    pub tmpfs: TmpfsSizes,
    /// Sockets inside.
    pub listeners: Vec<Listener>,
    /// Resource limits of each process.
    pub rlimits: Vec<Rlimit>,
    /// Terminal: rows and columns.
    pub tty: Option<(u16, u16)>,
}

/// The workspace of a run.
#[derive(Clone, Debug)]
pub struct WorkspaceInput {
    /// Directory on the host that holds the snapshot or private clone.
    pub source: OsBytes,
    /// What was vetted there.
    pub vetted: FileIdentity,
    /// Where the agent sees it: by default the path of the user's own workspace.
    pub target: OsBytes,
}

/// A granted read-only file or directory.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Path on the host.
    pub source: OsBytes,
    /// What was vetted there.
    pub vetted: FileIdentity,
    /// Whether it is a directory.
    pub directory: bool,
    /// Where the agent sees it.
    pub target: OsBytes,
}

/// The sockets every run has, in the order in which they are handed over.
pub fn default_listeners() -> Vec<Listener> {
    let at = |role, transport, port| Listener {
        role,
        transport,
        address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
    };
    vec![
        at(ListenerRole::HttpProxy, Transport::Tcp, 3128),
        at(ListenerRole::SocksProxy, Transport::Tcp, 1080),
        at(ListenerRole::Dns, Transport::Udp, 53),
        at(ListenerRole::Dns, Transport::Tcp, 53),
        at(ListenerRole::Broker, Transport::Tcp, 7411),
    ]
}

/// Limits of each process: no core dumps, a bounded number of descriptors, no locked memory beyond
/// what common runtimes ask for.
pub fn default_rlimits() -> Vec<Rlimit> {
    let limit = |resource: libc::__rlimit_resource_t, soft, hard| Rlimit { resource, soft, hard };
    vec![
        limit(libc::RLIMIT_CORE, 0, 0),
        limit(libc::RLIMIT_NOFILE, 4096, 65_536),
        limit(libc::RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
        limit(libc::RLIMIT_MSGQUEUE, 0, 0),
        limit(libc::RLIMIT_RTPRIO, 0, 0),
    ]
}
