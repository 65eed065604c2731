//! Whether a process that a journal names is still that process.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use atenea_cgroup::Place;
use atenea_core::BootId;
use atenea_core::event::ProcessIdentity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Type of the file system that gives each process its own inode (Linux 6.9 and newer).
const PID_FS_MAGIC: u64 = 0x5049_4446;

/// Identity of a spawned process: a number alone is never trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Boot id, pid, start time and inode of the pidfd (0 where that means nothing).
    pub process: ProcessIdentity,
    /// Path and inode of its v2 control group.
    pub group: Option<Place>,
}

/// What can be said about a recorded process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Same,
    /// It has ended, also when its number belongs to another process now.
    Gone,
    /// Cannot tell. To be treated as alive and ours: kill by control group, keep the hold.
    Unknown,
}

impl Identity {
    /// Identity of a process that is alive and whose pidfd is held.
    ///
    /// # Errors
    /// When the kernel does not tell; then the process has no identity and must not be kept.
    pub fn of(pid: i32, pidfd: impl AsFd, group: Option<Place>) -> Result<Self> {
        let path = stat_path(pid);
        let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let start_ticks = start_ticks(&text).ok_or(Error::Unparsable { path })?;
        let pidfd_inode = pidfd_inode(pidfd.as_fd()).map_err(|e| Error::io("stat", "pidfd", e))?;
        let process = ProcessIdentity { boot: boot_id()?, pid, start_ticks, pidfd_inode };
        Ok(Identity { process, group })
    }
}

/// This boot.
///
/// # Errors
/// When the kernel does not tell.
pub fn boot_id() -> Result<BootId> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    let id = text.trim();
    if id.is_empty() {
        return Err(Error::Unparsable { path: path.to_owned() });
    }
    Ok(BootId(id.to_owned()))
}

/// Looks whether a recorded process is alive. Never an error: what cannot be read is `Unknown`.
pub fn alive(identity: &Identity) -> Liveness {
    let process = &identity.process;
    match boot_id() {
        Ok(boot) if boot != process.boot => return Liveness::Gone,
        Ok(_) => {}
        Err(_) => return Liveness::Unknown,
    }
    // A number below 1 names no process; the library takes only those that can.
    if process.pid < 1 {
        return Liveness::Unknown;
    }
    let Some(pid) = Pid::from_raw(process.pid) else { return Liveness::Unknown };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => compare(process, &pidfd),
        Err(Errno::SRCH) => Liveness::Gone,
        Err(_) => Liveness::Unknown,
    }
}

fn compare(process: &ProcessIdentity, pidfd: &OwnedFd) -> Liveness {
    match has_ended(pidfd) {
        Ok(false) => {}
        Ok(true) => return Liveness::Gone,
        Err(_) => return Liveness::Unknown,
    }
    let Ok(inode) = pidfd_inode(pidfd.as_fd()) else { return Liveness::Unknown };
    if process.pidfd_inode != 0 && inode != 0 {
        // Given to one process only within a boot.
        return if inode == process.pidfd_inode { Liveness::Same } else { Liveness::Gone };
    }
    // The pidfd was opened before: if the number was used again, both are of the new process.
    match std::fs::read(stat_path(process.pid)).ok().as_deref().and_then(start_ticks) {
        Some(ticks) if ticks == process.start_ticks => Liveness::Same,
        Some(_) => Liveness::Gone,
        None => Liveness::Unknown,
    }
}

/// Whether all threads have ended; a zombie has.
fn has_ended(pidfd: &OwnedFd) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(fds[0].revents().contains(PollFlags::IN))
}

/// Inode of a pidfd, 0 on kernels that give all pidfds the same one.
fn pidfd_inode(pidfd: impl AsFd) -> rustix::io::Result<u64> {
    let kind = rustix::fs::fstatfs(&pidfd)?;
    if u64::try_from(kind.f_type) != Ok(PID_FS_MAGIC) {
        return Ok(0);
    }
    Ok(rustix::fs::fstat(&pidfd)?.st_ino)
}

fn stat_path(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/stat"))
}

/// Field 22 of `/proc/PID/stat`. The name before it may hold anything, also `)` and spaces.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    // The first field after the name is the third.
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_and_numbers_does_not_move_the_start_time() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let line = format!("7 (a) 1 2 (b ) c) {}", fields.join(" "));
        assert_eq!(start_ticks(line.as_bytes()), Some(22));
        assert_eq!(start_ticks(b"7 (a) S 1"), None);
        assert_eq!(start_ticks(b""), None);
    }
}
