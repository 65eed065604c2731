//! Where things lie in the state directory.
//!
//! ```text
//! STATE/journal/            store, anchor, lock, reserve
//! STATE/instance            random id that names our control groups
//! STATE/supervisor.log      what an on-demand supervisor says
//! STATE/cache/              snapshots and packs, shared and read-only
//! STATE/staging/            empty; the launcher mounts over it in namespaces of its own
//! STATE/runs/RUN/           0711: manifest.json, stdout, stderr, receipt.json
//! STATE/runs/RUN/ws/        0700: nobody but the supervisor passes, whatever the agent makes of
//!                           the mode of what is in it
//! STATE/runs/RUN/ws/tree    the run's own workspace, and nothing else the agent sees (C4)
//! STATE/runs/RUN/base.git   what the workspace started from; never seen by the agent
//! ```

use std::path::{Path, PathBuf};

use atenea_core::RunId;

/// A state directory that was checked by [`crate::config::ensure_state_dir`].
#[derive(Clone, Debug)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// Names the places below `root`.
    pub fn new(root: PathBuf) -> Self {
        StateDir { root }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Store, anchor and lock.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    /// The instance id.
    pub fn instance(&self) -> PathBuf {
        self.root.join("instance")
    }

    /// Log of an on-demand supervisor.
    pub fn log(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    /// Snapshots and packs.
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Mount point of the launcher's private staging.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// All runs.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// One run.
    pub fn run(&self, run: &RunId) -> PathBuf {
        self.runs().join(run.as_str())
    }

    /// The run's sealed manifest; holds arguments and environment, mode 0600.
    pub fn manifest(&self, run: &RunId) -> PathBuf {
        self.run(run).join("manifest.json")
    }

    /// What the workspace step found out, for later steps and for recovery.
    pub fn prepared(&self, run: &RunId) -> PathBuf {
        self.run(run).join("prepared.json")
    }

    /// What keeps others out of the workspace.
    pub fn workspace_guard(&self, run: &RunId) -> PathBuf {
        self.run(run).join("ws")
    }

    /// The run's own workspace.
    pub fn workspace(&self, run: &RunId) -> PathBuf {
        self.workspace_guard(run).join("tree")
    }

    /// What the workspace started from.
    pub fn base(&self, run: &RunId) -> PathBuf {
        self.run(run).join("base.git")
    }

    /// Captured output.
    pub fn stream(&self, run: &RunId, stream: Stream) -> PathBuf {
        self.run(run).join(stream.as_str())
    }

    /// The receipt.
    pub fn receipt(&self, run: &RunId) -> PathBuf {
        self.run(run).join("receipt.json")
    }

    /// The objects of an export on their way to the repository.
    pub fn pack(&self, run: &RunId) -> PathBuf {
        self.run(run).join("export.pack")
    }

    /// The accepted changes as a patch.
    pub fn patch(&self, run: &RunId) -> PathBuf {
        self.run(run).join("changes.patch")
    }
}

/// One of the two captured streams.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output, or everything of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Its file name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}
