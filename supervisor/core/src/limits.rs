//! Limits of a run and its profile, as the state machine, the plan and the receipt use them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run is contained.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Read-only snapshot of the working state.
    Read,
    /// Private writable clone.
    WorkspaceWrite,
    /// On the host, unsandboxed and labelled so.
    TrustedHost,
}

impl Profile {
    /// The name used on the command line and in receipts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Profile::Read => "read",
            Profile::WorkspaceWrite => "workspace-write",
            Profile::TrustedHost => "trusted-host",
        }
    }

    /// Whether the run is contained by a sandbox (S2).
    pub const fn is_enforced(self) -> bool {
        !matches!(self, Profile::TrustedHost)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Effective limits of one run: every field is set, none is "unlimited".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// CPU bandwidth in thousandths of a CPU.
    pub cpu_millis: u64,
    /// Memory of all processes and tmpfs files together, bytes.
    pub memory_bytes: u64,
    /// Tasks (processes and threads).
    pub pids: u64,
    /// Bytes in each writable place.
    pub disk_bytes: u64,
    /// stdout and stderr together, bytes.
    pub output_bytes: u64,
    /// Wall time from the start of the agent, milliseconds on the boot clock.
    pub duration_ms: u64,
    /// Time between a polite stop and the kill, milliseconds.
    pub grace_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            cpu_millis: 2_000,
            memory_bytes: 2 << 30,
            pids: 256,
            disk_bytes: 1 << 30,
            output_bytes: 10 << 20,
            duration_ms: 30 * 60 * 1_000,
            grace_ms: 5_000,
        }
    }
}
