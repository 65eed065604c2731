//! Descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use atenea_init::wire::{FD_PLAN, FD_SECCOMP, FD_SUPERVISE};

use super::check;

/// What init starts with beside the agent's streams.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Supervision socket.
    pub(crate) supervise: OwnedFd,
    /// Memfd of the plan.
    pub(crate) plan: OwnedFd,
    /// Memfd of the agent's program.
    pub(crate) program: OwnedFd,
}

/// Takes the descriptors 3 to 5, once; `None` when one is not open or they were taken already.
pub(crate) fn take_inherited() -> Option<Inherited> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let open = [FD_SUPERVISE, FD_PLAN, FD_SECCOMP].into_iter().all(|fd| flags(fd).is_ok());
    if !open || TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the descriptor is open, was inherited (nothing in this process made it) and TAKEN gives
    // it to this owner only.
    let supervise = unsafe { OwnedFd::from_raw_fd(FD_SUPERVISE) };
    // SAFETY: as above.
    let plan = unsafe { OwnedFd::from_raw_fd(FD_PLAN) };
    // SAFETY: as above.
    let program = unsafe { OwnedFd::from_raw_fd(FD_SECCOMP) };
    Some(Inherited { supervise, plan, program })
}

/// Descriptor flags; EBADF when the number is not open.
pub(crate) fn flags(fd: RawFd) -> io::Result<i32> {
    // SAFETY: F_GETFD takes no third argument and touches no memory.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) })
}

/// Marks every descriptor from `first` on to be closed by `execve`.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOEXEC: libc::c_uint = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: with CLOSE_RANGE_CLOEXEC no descriptor is closed, so every owner stays valid.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOEXEC) };
    check(answer).map(drop)
}

/// Makes `target`, one of the three standard streams, a copy of `source`.
pub(crate) fn replace_stream(source: BorrowedFd<'_>, target: Stream) -> io::Result<()> {
    // SAFETY: only numbers 0 to 2 are replaced, which no OwnedFd in this process owns.
    check(unsafe { libc::dup2(source.as_raw_fd(), target as RawFd) }).map(drop)
}

/// A standard stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// Standard input.
    In = 0,
    /// Standard output.
    Out = 1,
    /// Standard error.
    Err = 2,
}

impl Stream {
    /// All three.
    pub(crate) const ALL: [Self; 3] = [Self::In, Self::Out, Self::Err];
}

/// What to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// Something can be read, or the other side is closed.
    Readable(BorrowedFd<'a>),
    /// The other side is closed.
    Closed(BorrowedFd<'a>),
}

/// Waits until one of `events` is there; says which.
pub(crate) fn wait<const N: usize>(events: [Event<'_>; N]) -> io::Result<[bool; N]> {
    let mut polled = events.map(|event| {
        let (fd, events) = match event {
            Event::Readable(fd) => (fd, libc::POLLIN),
            // The kernel reports POLLHUP and POLLERR unasked.
            Event::Closed(fd) => (fd, 0),
        };
        libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
    });
    let count = libc::nfds_t::try_from(N).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        // SAFETY: the array lives across the call and holds `count` entries.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), count, -1) }) {
            Ok(_) => return Ok(polled.map(|entry| entry.revents != 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
