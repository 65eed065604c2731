//! Waiting by events: the end of the last process, and the first kill for want of memory.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::dir::{Dir, is_gone, keyed};
use crate::group::Member;
use crate::{Error, Result, RunGroup, remove};

/// How a bounded wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Wait {
    /// No process is inside any more.
    Empty,
    /// The time ran out and there still is one.
    TimedOut,
}

/// A control file of a v2 group that is polled and read again from its start.
struct Watched {
    fd: OwnedFd,
    path: PathBuf,
}

impl Watched {
    /// `None`: the group is gone.
    fn open(dir: &Dir, file: &str) -> Result<Option<Self>> {
        let path = dir.file_path(file);
        match dir.open_file(file, OFlags::RDONLY) {
            Ok(fd) => Ok(Some(Watched { fd, path })),
            Err(e) if crate::dir::is_gone_io(&e) => Ok(None),
            Err(e) => Err(Error::io("open", path, e)),
        }
    }

    /// Value of a key; `None`: the group is gone. Reading also arms the next poll.
    fn value(&self, key: &str) -> Result<Option<u64>> {
        // These files hold a handful of short lines.
        let mut buffer = [0_u8; 1024];
        let length = match rustix::io::pread(&self.fd, &mut buffer[..], 0) {
            Ok(length) => length,
            Err(e) if is_gone(e) => return Ok(None),
            Err(e) => return Err(Error::io("read", &self.path, e)),
        };
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        keyed(&text, key).map(Some).ok_or_else(|| Error::unparsable(&self.path, &text))
    }
}

/// A one-shot timer; a wait needs no clock then.
fn timer(timeout: Duration) -> rustix::io::Result<OwnedFd> {
    let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    // Zero would disarm the timer.
    let at_least = timeout.max(Duration::from_nanos(1));
    let it_value = Timespec::try_from(at_least).map_err(|_| Errno::INVAL)?;
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(&fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
    Ok(fd)
}

/// Polls until something happens; an interruption by a signal is nothing.
fn poll(fds: &mut [PollFd<'_>]) -> Result<()> {
    loop {
        match rustix::event::poll(fds, None) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io("poll", "cgroup.events", e)),
            Ok(_) => return Ok(()),
        }
    }
}

/// Waits without a clock and without anything to wait for. The only pause in this crate: removing
/// a directory that is briefly busy has no event. Never called where a test could wait by event.
pub(crate) fn pause(time: Duration) {
    if let Ok(timeout) = Timespec::try_from(time) {
        // An interruption only makes the pause shorter, and the number of tries is bounded.
        let _ = rustix::event::poll(&mut [], Some(&timeout));
    }
}

pub(crate) fn wait_empty(group: &RunGroup, timeout: Duration) -> Result<Wait> {
    let timer = timer(timeout).map_err(|e| Error::io("make a timer for", group.name(), e))?;
    for member in group.members() {
        let ended = if member.v2 { wait_v2(member, &timer)? } else { wait_v1(member, &timer)? };
        if ended == Wait::TimedOut {
            return Ok(Wait::TimedOut);
        }
    }
    Ok(Wait::Empty)
}

fn wait_v2(member: &Member, timer: &OwnedFd) -> Result<Wait> {
    let empty = wait_while(&member.dir, timer, "populated", |value| value != 0)?;
    Ok(if empty { Wait::Empty } else { Wait::TimedOut })
}

/// Waits until nothing in a v2 group can execute; `false` when the time ran out. A group that is
/// gone stands still.
pub(crate) fn wait_frozen(dir: &Dir, timeout: Duration) -> Result<bool> {
    let timer = timer(timeout).map_err(|e| Error::io("make a timer for", dir.path(), e))?;
    wait_while(dir, &timer, "frozen", |value| value == 0)
}

/// Waits while a key of `cgroup.events` is so; `false` when the time ran out. It ends with the group.
fn wait_while(dir: &Dir, timer: &OwnedFd, key: &str, so: fn(u64) -> bool) -> Result<bool> {
    let Some(events) = Watched::open(dir, "cgroup.events")? else { return Ok(true) };
    while events.value(key)?.is_some_and(so) {
        let mut fds = [PollFd::new(&events.fd, PollFlags::PRI), PollFd::new(timer, PollFlags::IN)];
        poll(&mut fds)?;
        if fds[1].revents().contains(PollFlags::IN) && !fds[0].revents().contains(PollFlags::PRI) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// v1 has no event for "empty". Normally nothing is left when the v2 group is; what is, is waited
/// for by its pidfd.
fn wait_v1(member: &Member, timer: &OwnedFd) -> Result<Wait> {
    loop {
        let pids = remove::procs_of_tree(&member.dir)?;
        if pids.is_empty() {
            return Ok(Wait::Empty);
        }
        // A process that is gone meanwhile has no pidfd: then the next round sees it missing.
        let pidfds = remove::pidfds(&pids)?;
        let mut fds = vec![PollFd::new(timer, PollFlags::IN)];
        fds.extend(pidfds.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        if fds.len() == 1 {
            pause(Duration::from_millis(1));
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut fds, Some(&zero));
        } else {
            poll(&mut fds)?;
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return Ok(Wait::TimedOut);
        }
    }
}

/// Tells when the kernel ended a process of the run for want of memory.
///
/// v1 has no `oom.group`: without a kill of the whole group the rest of the run goes on, so the
/// holder of the watch polls it and calls [`RunGroup::kill`] (`limit.memory`).
#[derive(Debug)]
pub struct OomWatch {
    fd: OwnedFd,
    path: PathBuf,
    v2: bool,
    fired: bool,
    kills_before: u64,
}

impl OomWatch {
    pub(crate) fn new(dir: &Dir, v2: bool) -> Result<Self> {
        let kills_before = oom_kills(dir, v2)?;
        let file = if v2 { "memory.events" } else { "memory.oom_control" };
        let path = dir.file_path(file);
        let watched = dir.open_file(file, OFlags::RDONLY);
        let watched = watched.map_err(|e| Error::io("open", &path, e))?;
        if v2 {
            return Ok(OomWatch { fd: watched, path, v2, fired: false, kills_before });
        }
        let failed = |e: std::io::Error| Error::io("watch", &path, e);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).map_err(|e| failed(e.into()))?;
        let order = format!("{} {}", event.as_raw_fd(), watched.as_raw_fd());
        dir.write("cgroup.event_control", &order).map_err(failed)?;
        Ok(OomWatch { fd: event, path, v2, fired: false, kills_before })
    }

    /// What to poll [`AsFd::as_fd`] for: readable on v1, exceptional (`POLLPRI`) on v2.
    pub fn poll_flags(&self) -> PollFlags {
        if self.v2 { PollFlags::PRI } else { PollFlags::IN }
    }

    /// Whether the memory limit was hit; once yes, always yes. Consumes the event, so that the
    /// next poll waits. The removal of the group also wakes a poll.
    ///
    /// # Errors
    /// When the event cannot be read.
    pub fn fired(&mut self) -> Result<bool> {
        if self.fired {
            return Ok(true);
        }
        self.fired = if self.v2 { self.fired_v2()? } else { self.fired_v1()? };
        Ok(self.fired)
    }

    fn fired_v2(&self) -> Result<bool> {
        let mut buffer = [0_u8; 1024];
        let length = match rustix::io::pread(&self.fd, &mut buffer[..], 0) {
            Ok(length) => length,
            Err(e) if is_gone(e) => return Ok(false),
            Err(e) => return Err(Error::io("read", &self.path, e)),
        };
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        let kills = keyed(&text, "oom_kill").ok_or_else(|| Error::unparsable(&self.path, &text))?;
        Ok(kills > self.kills_before)
    }

    fn fired_v1(&self) -> Result<bool> {
        let mut count = [0_u8; 8];
        match rustix::io::read(&self.fd, &mut count[..]) {
            Ok(_) => Ok(count != [0; 8]),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(Error::io("read the event of", &self.path, e)),
        }
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `failcnt` is no use: it stays 0 when the limits of memory and of memory with swap are equal.
pub(crate) fn oom_kills(dir: &Dir, v2: bool) -> Result<u64> {
    let file = if v2 { "memory.events" } else { "memory.oom_control" };
    let text = dir.read(file)?;
    keyed(&text, "oom_kill").ok_or_else(|| Error::unparsable(dir.file_path(file), &text))
}
