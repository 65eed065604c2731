//! Signals.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

/// Highest signal number of the kernel (`_NSIG`).
const LAST: libc::c_int = 64;
/// Size of the kernel's signal set.
const MASK_BYTES: usize = size_of::<u64>();

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset only writes the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset initialised all of it; it cannot fail for a valid pointer.
    unsafe { set.assume_init() }
}

fn set_mask(set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised; the old mask is not asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) }).map(drop)
}

/// Blocks SIGCHLD and makes a descriptor that can be read when a child changes state.
pub(crate) fn child_events() -> io::Result<OwnedFd> {
    let mut set = empty_set();
    // SAFETY: the set is initialised and SIGCHLD is a signal.
    check(unsafe { libc::sigaddset(&raw mut set, libc::SIGCHLD) })?;
    set_mask(&set)?;
    let options = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: -1 asks for a new descriptor; the set is initialised.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, options) })?;
    // SAFETY: signalfd just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Size of what one read of [`child_events`] gives for one signal.
pub(crate) const EVENT_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// `struct sigaction` as the kernel has it: all zeroes is the default action.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Takes away the handlers that the language runtime has for faults. A signal with its default action
/// does not reach pid 1 from inside its namespace; one with a handler would let the agent end init.
pub(crate) fn plain_faults() -> io::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        set_default(signal)?;
    }
    Ok(())
}

fn set_default(signal: i32) -> io::Result<()> {
    let default = Action::default();
    let null = std::ptr::null_mut::<Action>();
    // SAFETY: the kernel reads the action, which lives across the call and names no handler.
    let answer = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, null, MASK_BYTES)
    };
    check(answer).map(drop)
}

/// Gives every signal its default action and blocks none, as a program expects to be started.
pub(crate) fn reset() -> io::Result<()> {
    let default = Action::default();
    let null = std::ptr::null_mut::<Action>();
    for signal in 1..=LAST {
        // The C library's own call leaves out the two signals it reserves, which the program that
        // started us may have ignored.
        // SAFETY: the kernel reads the action, which lives across the call and names no handler.
        let answer = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, null, MASK_BYTES)
        };
        // SIGKILL and SIGSTOP cannot be set and always have the default action.
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            check(answer)?;
        }
    }
    set_mask(&empty_set())
}
