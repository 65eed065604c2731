//! A process that this helper forked: held by pidfd, identified beyond its number, reaped once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Pid;

use crate::protocol::{GroupIdentity, ProcessIdentity};
use crate::sys;
use crate::sys::process::Ended;

/// Room in `/proc/PID/stat`: one line, far below this.
const STAT_BYTES_MAX: usize = 4096;

pub(super) struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    ended: Option<Ended>,
}

impl Process {
    /// Takes a child that was forked just now.
    pub(super) fn new(pid: Pid, pidfd: OwnedFd) -> Self {
        Process { pid, pidfd, ended: None }
    }

    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.ended.is_some()
    }

    /// Reaps it when it has ended. How it ended is known only once.
    pub(super) fn reap(&mut self) -> io::Result<Option<Ended>> {
        if self.ended.is_none() {
            self.ended = sys::process::reap(self.pidfd.as_fd())?;
        }
        Ok(self.ended)
    }

    /// Kills it, and with it the pid namespace whose first process dies with it. The groups are
    /// killed as well; this reaches a run whose processes somebody moved out of them.
    pub(super) fn kill(&self) {
        // Gone already is what is wanted.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Signals the process group that it leads. Until it is reaped, its number names nothing else.
    pub(super) fn signal_group(&self, signal: i32) -> io::Result<()> {
        if self.ended.is_some() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let group = nix::unistd::Pid::from_raw(self.pid.as_raw_nonzero().get());
        let signal = nix::sys::signal::Signal::try_from(signal)?;
        Ok(nix::sys::signal::killpg(group, signal)?)
    }

    pub(super) fn identity(
        &self,
        boot_id: &str,
        group: GroupIdentity,
    ) -> io::Result<ProcessIdentity> {
        let pid = self.pid.as_raw_nonzero().get();
        Ok(ProcessIdentity {
            boot_id: boot_id.to_owned(),
            pid,
            start_time: start_time(pid)?,
            pidfd_inode: rustix::fs::fstat(&self.pidfd)?.st_ino,
            group,
        })
    }
}

/// Field 22 of `/proc/PID/stat`; the name in field 2 may hold anything, also parentheses.
fn start_time(pid: i32) -> io::Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let file = std::fs::File::open(path)?;
    let mut line = [0u8; STAT_BYTES_MAX];
    let length = rustix::io::read(&file, &mut line[..])?;
    parse_start_time(line.get(..length).unwrap_or_default())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn parse_start_time(line: &[u8]) -> Option<u64> {
    let after_name = line.iter().rposition(|b| *b == b')')? + 1;
    let text = std::str::from_utf8(line.get(after_name..)?).ok()?;
    // The first field here is the third of the line.
    text.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_is_found_behind_a_name_with_parentheses_and_blanks() {
        let line = b"7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse_start_time(line), Some(4711));
        assert_eq!(parse_start_time(b"7 (a S"), None);
    }

    #[test]
    fn the_start_time_of_this_process_can_be_read() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(start_time(pid).unwrap() > 0);
    }
}
