//! Making, ending and waiting for processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Which side of a fork this is.
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old one.
    Parent(Pid),
}

/// Forks. The caller has one thread only: the helper, by construction, never makes another.
///
/// # Errors
/// `EAGAIN` or `ENOMEM`.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: this process is single-threaded (the helper asserts it at its start), so no lock can
    // be held by a thread that does not exist in the child, and the child may allocate.
    let pid = unsafe { libc::fork() };
    match Pid::from_raw(pid) {
        Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(Fork::Parent(pid)),
        None => Ok(Fork::Child),
        Some(_) => Err(io::Error::last_os_error()),
    }
}

/// Forks into a group of the v2 tree: the child is in it from its first instruction, so that a kill
/// of the group never misses it, and no lock of all groups is taken as for a move. Returns its pidfd
/// as well.
///
/// # Errors
/// `EAGAIN`, `ENOMEM`, or `EACCES` when the group may not be entered.
pub(crate) fn fork_into(group: BorrowedFd<'_>) -> io::Result<Option<(Pid, OwnedFd)>> {
    let mut pidfd: RawFd = -1;
    let arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP | u64::from(libc::CLONE_PIDFD.cast_unsigned()),
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        cgroup: u64::from(group.as_raw_fd().cast_unsigned()),
        ..CloneArguments::default()
    };
    // SAFETY: as for `fork`: one thread, no shared memory and no stack are asked for, so the child
    // goes on with a copy of everything. `arguments` and `pidfd` are live and of the kernel's layout.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>())
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    // SAFETY: the kernel stored a new descriptor there, which nothing else owns.
    Ok(Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) })))
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of the kernel.
#[derive(Default)]
#[repr(C, align(8))]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Ends this process at once: no destructor and no buffer of the parent is run twice.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// How a process ended and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Wait status as `waitpid` gives it.
    pub(crate) wait_status: i32,
    /// User time, microseconds.
    pub(crate) user_us: u64,
    /// System time, microseconds.
    pub(crate) system_us: u64,
    /// Largest resident set, KiB.
    pub(crate) max_rss_kib: u64,
}

/// Reaps the child that `pidfd` names, when it has ended.
///
/// # Errors
/// `ECHILD` when it is no child of ours, or was reaped.
pub(crate) fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<Ended>> {
    // SAFETY: all-zero bytes are a valid siginfo_t (integers and a union of them).
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: all-zero bytes are a valid rusage (integers only).
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live, writable structures of the kernel's own layout.
    let done = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            libc::P_PIDFD,
            pidfd.as_raw_fd(),
            &raw mut info,
            libc::WEXITED | libc::WNOHANG,
            &raw mut usage,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid filled the child fields, or left zeroes, which read as "no child".
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: waitid reported a child, so the status field is the active one.
    let status = unsafe { info.si_status() };
    Ok(Some(Ended {
        wait_status: wait_status(info.si_code, status),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }))
}

/// `waitid` splits what `waitpid` packs into one number; this packs it again.
fn wait_status(code: i32, status: i32) -> i32 {
    match code {
        libc::CLD_EXITED => (status & 0xff) << 8,
        libc::CLD_DUMPED => (status & 0x7f) | 0x80,
        _ => status & 0x7f,
    }
}

fn micros(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// `struct sigaction` of the kernel, as `rt_sigaction` takes it.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Gives every signal its default action: an ignored one stays ignored across exec, the Rust runtime
/// ignores SIGPIPE, and a library may have ignored the two that it keeps for itself and that
/// its own `signal` does not touch.
pub(crate) fn default_signals() {
    let default = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    for signal in 1..=64 {
        // SAFETY: the structure is the kernel's own and outlives the call, the old action is not
        // asked for, 8 is the size of the mask; a default action installs no code. SIGKILL and
        // SIGSTOP are refused by the kernel.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                std::ptr::null_mut::<KernelAction>(),
                size_of::<u64>(),
            )
        };
    }
}

/// Default actions and nothing blocked: what a program expects at its start.
///
/// # Errors
/// Never in practice.
pub(crate) fn unblock_signals() -> io::Result<()> {
    default_signals();
    Ok(nix::sys::signal::SigSet::empty().thread_set_mask()?)
}

/// The hard limit of this process, which no program started from it can exceed.
///
/// # Errors
/// `EINVAL` for a resource that the kernel does not know.
pub(crate) fn hard_limit(resource: u32) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live, writable structure of the kernel's own layout.
    let done = unsafe { libc::getrlimit(resource, &raw mut limit) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(limit.rlim_max) }
}

/// Version of Landlock that the kernel has.
///
/// # Errors
/// `ENOSYS` or `EOPNOTSUPP` when it has none.
pub(crate) fn landlock_abi() -> io::Result<i64> {
    const VERSION: u32 = 1;
    let no_attributes = std::ptr::null::<u8>();
    // SAFETY: with this flag the attributes must be null with size 0, and only a number comes back.
    let abi =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_attributes, 0usize, VERSION) };
    if abi < 0 { Err(io::Error::last_os_error()) } else { Ok(abi) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_packed_as_waitpid_packs_it() {
        assert_eq!(libc::WEXITSTATUS(wait_status(libc::CLD_EXITED, 137)), 137);
        assert!(libc::WIFEXITED(wait_status(libc::CLD_EXITED, 137)));
        assert!(libc::WIFSIGNALED(wait_status(libc::CLD_KILLED, 9)));
        assert_eq!(libc::WTERMSIG(wait_status(libc::CLD_DUMPED, 11)), 11);
        assert!(libc::WCOREDUMP(wait_status(libc::CLD_DUMPED, 11)));
    }
}
