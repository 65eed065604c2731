//! What can go wrong, with the object and both values; the supervisor maps these to codes.

use std::io;
use std::path::PathBuf;

use crate::Controller;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation on control groups that failed. Nothing half-made is left unless it says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has no cgroup v2 tree, so nothing can be killed as a whole.
    #[error("no cgroup v2 tree is mounted at {root:?} or below it")]
    NoCgroup2 {
        /// Where it was looked for.
        root: PathBuf,
    },
    /// A controller is neither on a v1 hierarchy nor available to our own v2 group.
    #[error("the {controller} controller is not available in {path:?}")]
    MissingController {
        /// Which.
        controller: Controller,
        /// The group that lacks it.
        path: PathBuf,
    },
    /// Our own group cannot be written: not root and not delegated, or mounted read-only.
    #[error("{path:?} is not writable")]
    NotWritable {
        /// What could not be made or written.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Our own group is not visible through the mounted hierarchy.
    #[error("own group {own:?} lies outside the part {root:?} that is mounted at {mount:?}")]
    Outside {
        /// Own group as the kernel names it.
        own: String,
        /// Root of the mount within the hierarchy.
        root: String,
        /// Mount point.
        mount: PathBuf,
    },
    /// A hierarchy that a record names is not mounted now, so nothing can be said about its groups.
    #[error("the hierarchy {hierarchy:?} is not mounted here")]
    NoHierarchy {
        /// As recorded.
        hierarchy: String,
    },
    /// Other processes sit in the delegated group itself, so v2 refuses to enable controllers.
    #[error("processes other than the supervisor are in {path:?}: {pids:?}")]
    InternalProcesses {
        /// The group.
        path: PathBuf,
        /// They, as far as they can be seen.
        pids: Vec<u32>,
    },
    /// A name that is no plain directory name.
    #[error("{name:?} is not a name for a group")]
    BadName {
        /// As given.
        name: String,
    },
    /// A limit of zero or above what the kernel can hold.
    #[error("{value} is not a possible limit for {what}")]
    BadLimit {
        /// Which limit.
        what: &'static str,
        /// As given.
        value: u64,
    },
    /// A limit could not be set. A refusal: no run starts without its limits.
    #[error("{value} could not be set in {file:?}")]
    LimitNotSet {
        /// The file.
        file: PathBuf,
        /// What was to be written.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel accepted a limit but holds another, wider one.
    #[error("{asked} was set in {file:?} but {found:?} is in force")]
    LimitDiffers {
        /// The file.
        file: PathBuf,
        /// What was to be in force.
        asked: String,
        /// What is.
        found: String,
    },
    /// A group of this name is there already.
    #[error("{path:?} exists already")]
    Exists {
        /// Which.
        path: PathBuf,
    },
    /// Another directory is where the known one was; it was not touched.
    #[error("{path:?} is another directory: inode {found}, not {expected}")]
    Replaced {
        /// Where.
        path: PathBuf,
        /// Inode of the directory that was made.
        expected: u64,
        /// Inode of what is there.
        found: u64,
    },
    /// The group could not be removed within the bound; it is still there.
    #[error("{path:?} is still busy after {tries} tries, processes {pids:?}")]
    Busy {
        /// Which.
        path: PathBuf,
        /// How often it was tried.
        tries: u32,
        /// Processes that can be seen in it.
        pids: Vec<u32>,
    },
    /// A walk met more directories than its bound.
    #[error("more than {bound} directories or levels below {path:?}")]
    TooMany {
        /// Where.
        path: PathBuf,
        /// The bound.
        bound: usize,
    },
    /// A kernel file does not have the form it must have.
    #[error("{path:?} cannot be understood: {text:?}")]
    Unparsable {
        /// The file.
        path: PathBuf,
        /// What it held, shortened.
        text: String,
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

    pub(crate) fn unparsable(path: impl Into<PathBuf>, text: &str) -> Self {
        Error::Unparsable { path: path.into(), text: text.chars().take(200).collect() }
    }

    /// Whether this means that the host cannot contain runs (`host.no_cgroup`), rather than that
    /// one operation failed.
    pub fn is_host_support(&self) -> bool {
        matches!(
            self,
            Error::NoCgroup2 { .. }
                | Error::MissingController { .. }
                | Error::NotWritable { .. }
                | Error::Outside { .. }
                | Error::InternalProcesses { .. }
        )
    }
}
