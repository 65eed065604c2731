//! Descriptors by number: what a process inherits and what it leaves to the program it executes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes the descriptor that this process inherited under a number.
///
/// # Errors
/// `EBADF` when nothing is open there.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD takes no pointer and changes nothing; a closed number is reported.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if open < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open (checked above), and by the contract of the hidden subcommand it
    // was inherited for this purpose alone: nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Puts a copy of `from` at `number`, open across exec. What was there is replaced.
///
/// # Errors
/// As `dup2`.
pub(crate) fn place(from: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: both are plain numbers; the caller is a forked child about to exec that has moved all
    // descriptors it owns above the numbers it places, so no owner loses its descriptor.
    let placed = unsafe { libc::dup2(from.as_raw_fd(), number) };
    if placed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Marks every descriptor from `first` on close-on-exec.
///
/// # Errors
/// `ENOSYS` on a kernel without it: then nothing is executed.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: close_range with CLOSE_RANGE_CLOEXEC takes three integers and closes nothing.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
