//! Entering the control groups of a run before anything is executed (S1), without waiting for the
//! whole machine.
//!
//! A write to `cgroup.procs` takes a lock against all forks and exits on the host: 5 ms at the median
//! and 20 now and then. A process that is born in its v2 group takes none, and neither does one with a
//! single thread that writes itself to `tasks` of a v1 group.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use atenea_cgroup::RunGroup;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Pid;

use crate::sys::process;

/// What a child born in the v2 group still has to enter.
#[derive(Debug)]
pub(crate) struct Entrances(Vec<OwnedFd>);

impl Entrances {
    /// Opens them, in the parent.
    ///
    /// # Errors
    /// When one cannot be opened for writing.
    pub(crate) fn open(group: &RunGroup) -> io::Result<Self> {
        // The v2 one comes first.
        let born_in = usize::from(group.v2_dir().is_some());
        group.procs_files().skip(born_in).map(tasks_beside).collect::<io::Result<_>>().map(Self)
    }

    /// Enters them; for a process with one thread.
    ///
    /// # Errors
    /// The first that failed; the process must end then.
    pub(crate) fn enter(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|tasks| Ok(rustix::io::write(tasks, b"0").map(drop)?))
    }
}

/// `tasks` in the directory of an open `cgroup.procs`.
fn tasks_beside(procs: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", procs.as_raw_fd()))?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(CWD, path.with_file_name("tasks"), flags, Mode::empty())?)
}

/// Forks into the group's v2 directory; `None` in the child.
///
/// # Errors
/// As `clone3`, or when the host has no v2 tree.
pub(crate) fn fork_into(group: &RunGroup) -> io::Result<Option<(Pid, OwnedFd)>> {
    let v2 = group.v2_dir().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    process::fork_into(v2)
}
