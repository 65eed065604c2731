//! Messages on the supervision socket (`SOCK_SEQPACKET`, one message a packet, MessagePack with
//! field names) and the plan that init reads from a memfd.

use serde::{Deserialize, Serialize};

/// Descriptors init starts with. 0, 1 and 2 are the agent's streams.
pub const FD_SUPERVISE: i32 = 3;
/// Memfd holding an [`InitPlan`].
pub const FD_PLAN: i32 = 4;
/// Memfd holding the agent's seccomp program: an array of `struct sock_filter`.
pub const FD_SECCOMP: i32 = 5;
/// The largest message either side sends, bytes: a self-test report is below 8 KiB.
pub const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// The largest plan, bytes: arguments and environment are bounded by the manifest.
pub const PLAN_BYTES_MAX: usize = 4 << 20;

/// All that init needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitPlan {
    /// Must equal init's own version (`CARGO_PKG_VERSION`).
    pub version: String,
    /// Command and arguments; searched in `PATH` of `env` when it has no slash. Bytes, no NUL.
    pub argv: Vec<Vec<u8>>,
    /// The complete environment, `NAME=VALUE` each.
    pub env: Vec<Vec<u8>>,
    /// Working directory inside.
    pub cwd: Vec<u8>,
    /// Terminal to make for the agent: rows and columns.
    pub tty: Option<(u16, u16)>,
    /// `(resource, soft, hard)` for `setrlimit`.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// A host file that exists and must not be visible inside (self-test).
    pub canary: Vec<u8>,
}

/// What init tells the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// Hardened, self-tested and waiting for [`ToInit::Go`]. Carries the terminal's master side as
    /// a descriptor, when the plan has a tty.
    Ready {
        /// One entry for each forbidden act that was tried.
        self_test: Vec<SelfTest>,
    },
    /// The agent's program was executed; its pid in the sandbox's pid namespace.
    Started {
        /// Pid inside.
        pid: i32,
    },
    /// The agent's program could not be executed (ENOENT → 127, else 126).
    ExecFailed {
        /// `errno` of `execve`.
        errno: i32,
    },
    /// The agent itself ended (its descendants may still be there; init ends right after).
    Exited {
        /// Wait status as `waitpid` gives it.
        wait_status: i32,
        /// User time of all reaped children, microseconds.
        user_us: u64,
        /// System time of all reaped children, microseconds.
        system_us: u64,
        /// Largest resident set of one process, KiB.
        max_rss_kib: u64,
    },
    /// A step of init failed: the agent was not and will not be started.
    Failed {
        /// Name of the step.
        step: String,
        /// `errno`, 0 when there is none.
        errno: i32,
        /// What was seen.
        detail: String,
    },
}

/// One forbidden act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfTest {
    /// Stable name, for example `unshare_user`.
    pub name: String,
    /// Whether the act was refused, as it must be.
    pub refused: bool,
    /// How (`EPERM`, `killed`, …) or what was reached.
    pub detail: String,
}

/// What the helper tells init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// Start the agent. Sent once, after the intent is journalled (S1).
    Go,
    /// Send this signal to the agent's process group.
    Signal {
        /// Signal number.
        signal: i32,
    },
    /// The terminal's new size.
    Resize {
        /// Rows.
        rows: u16,
        /// Columns.
        cols: u16,
    },
}
