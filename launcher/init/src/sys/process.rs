//! Processes.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;

use super::check;

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old one, with the pid of the new one.
    Parent(i32),
}

/// Makes a copy of this process.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: init is single-threaded, so no lock is held by a thread that the child lacks.
    Ok(match check(unsafe { libc::fork() })? {
        0 => Fork::Child,
        pid => Fork::Parent(pid),
    })
}

/// Ends this process without running anything that belongs to its parent (buffers, destructors).
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(status) }
}

/// The effective user id.
pub(crate) fn user_id() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// This process's id.
pub(crate) fn own_id() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// A child that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Its pid.
    pub(crate) pid: i32,
    /// Its wait status.
    pub(crate) status: i32,
    /// User time of it and the children it reaped, microseconds.
    pub(crate) user_us: u64,
    /// System time of the same.
    pub(crate) system_us: u64,
    /// Largest resident set of one of them, KiB.
    pub(crate) max_rss_kib: u64,
}

/// Reaps a child: `pid`, or any for -1. `None` when `wait` is false and none has ended, or when there
/// is no child.
pub(crate) fn reap(pid: i32, wait: bool) -> io::Result<Option<Ended>> {
    let options = if wait { 0 } else { libc::WNOHANG };
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let pid = loop {
        // SAFETY: both pointers live across the call and the kernel only writes to them.
        let answer = unsafe { libc::wait4(pid, &raw mut status, options, usage.as_mut_ptr()) };
        match check(answer) {
            Ok(0) => return Ok(None),
            Ok(pid) => break pid,
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    // SAFETY: wait4 filled it, and all zeroes would be valid as well.
    let usage = unsafe { usage.assume_init() };
    Ok(Some(Ended {
        pid,
        status,
        user_us: microseconds(usage.ru_utime),
        system_us: microseconds(usage.ru_stime),
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }))
}

fn microseconds(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// Sends a signal to a process group of this pid namespace.
pub(crate) fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::killpg(group, signal) }).map(drop)
}

/// Makes this process the leader of a session of its own.
pub(crate) fn new_session() -> io::Result<()> {
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Sets the mode bits that new files lack.
pub(crate) fn set_umask(mask: u32) -> u32 {
    // SAFETY: takes a number and cannot fail.
    unsafe { libc::umask(mask) }
}

/// Strings and the null-terminated array of pointers to them that `execve` wants.
#[derive(Debug)]
pub(crate) struct StringArray {
    strings: Vec<CString>,
}

impl StringArray {
    /// Fails when a string has a NUL byte.
    pub(crate) fn new(strings: &[Vec<u8>]) -> io::Result<Self> {
        let strings = strings.iter().map(|bytes| Ok(CString::new(bytes.clone())?));
        Ok(Self { strings: strings.collect::<io::Result<_>>()? })
    }

    fn pointers(&self) -> Vec<*const c_char> {
        self.strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    }
}

/// Replaces this program; returns only the failure.
pub(crate) fn execute(
    path: &CStr,
    arguments: &StringArray,
    environment: &StringArray,
) -> io::Error {
    let (arguments, environment) = (arguments.pointers(), environment.pointers());
    // SAFETY: both arrays end with a null pointer and, with their strings, live across the call.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}
