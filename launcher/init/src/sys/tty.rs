//! The agent's terminal.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::check;

/// Both sides of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// The side that a person or a recorder holds.
    pub(crate) master: OwnedFd,
    /// The side that a program has as its streams.
    pub(crate) slave: OwnedFd,
}

/// Makes a terminal in the devpts of this mount namespace.
pub(crate) fn open(rows: u16, cols: u16) -> io::Result<Terminal> {
    let options = libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(true).custom_flags(options).open("/dev/ptmx")?;
    let master = OwnedFd::from(file);
    let locked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int, which lives across the call.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const locked) })?;
    let options = libc::O_RDWR | options;
    // SAFETY: TIOCGPTPEER takes open flags as a number.
    let slave = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, options) })?;
    // SAFETY: the ioctl just made this descriptor and nobody else knows it.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    resize(std::os::fd::AsFd::as_fd(&master), rows, cols)?;
    Ok(Terminal { master, slave })
}

/// Sets the size; the kernel tells the foreground processes.
pub(crate) fn resize(master: BorrowedFd<'_>, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads the structure, which lives across the call.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Makes the terminal the controlling one of this session, whose leader must be this process.
pub(crate) fn control(slave: BorrowedFd<'_>) -> io::Result<()> {
    const DO_NOT_STEAL: libc::c_int = 0;
    // SAFETY: TIOCSCTTY takes a number.
    check(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, DO_NOT_STEAL) }).map(drop)
}
