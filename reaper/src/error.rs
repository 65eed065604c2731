//! What can go wrong while looking or removing.

use std::io;
use std::path::PathBuf;

use atenea_core::{Code, Refusal, RunId};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A step that failed. Whatever it did before that needs no undoing: repeat it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file system is mounted inside what was to be deleted; nothing below it was touched.
    #[error("{path:?} is a mount point or busy; it was not entered")]
    MountBelow {
        /// Where.
        path: PathBuf,
    },
    /// A workspace would have been deleted without a permission (C4).
    #[error("the workspace of {run} was neither exported nor discarded")]
    WorkspaceKept {
        /// Whose.
        run: RunId,
    },
    /// The permission is another run's.
    #[error("a permission for {permitted} does not cover {run}")]
    OtherRun {
        /// Whose workspace was to be deleted.
        run: RunId,
        /// Whom the permission is for.
        permitted: RunId,
    },
    /// Not the name of a part of a run's directory.
    #[error("{name:?} is not a part of a run's directory")]
    BadPart {
        /// As given.
        name: PathBuf,
    },
    /// A directory was replaced or moved while it was being deleted.
    #[error("{path:?} changed while it was being deleted")]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// Processes of the run do not end; uninterruptible sleep looks like this.
    #[error("processes of {name} do not end: {pids:?}")]
    Stuck {
        /// Name of the group.
        name: String,
        /// They, as far as they can be seen.
        pids: Vec<u32>,
    },
    /// A control group could not be read, killed or removed.
    #[error("control group of {name}")]
    Group {
        /// Name of the group, or of the instance.
        name: String,
        /// Why.
        source: atenea_cgroup::Error,
    },
    /// A kernel file does not have the form it must have.
    #[error("{path:?} cannot be understood")]
    Unparsable {
        /// The file.
        path: PathBuf,
    },
    /// Any other system call that failed.
    #[error("cannot {action} {path:?}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Error::Io { action, path: path.into(), source: source.into() }
    }

    /// As a user sees it, with every cause.
    pub fn refusal(&self) -> Refusal {
        let code = match self {
            Error::MountBelow { .. }
            | Error::WorkspaceKept { .. }
            | Error::OtherRun { .. }
            | Error::Stuck { .. }
            | Error::Group { .. } => Code::ProcessCleanupStuck,
            _ => Code::FsIo,
        };
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(inner) = cause {
            text.push_str(": ");
            text.push_str(&inner.to_string());
            cause = inner.source();
        }
        Refusal::new(code, text)
    }
}
