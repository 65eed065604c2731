//! The system calls of init, each behind a safe function: one unsafe operation in a block.
//!
//! init never has a second thread, so a forked child is a full copy that may use everything.

pub(crate) mod act;
pub(crate) mod fd;
pub(crate) mod harden;
pub(crate) mod process;
pub(crate) mod signal;
pub(crate) mod socket;
pub(crate) mod tty;

use std::io;

/// The C convention: -1 is failure, with the cause in `errno`.
fn check<T: Copy + PartialEq + From<i8>>(answer: T) -> io::Result<T> {
    if answer == T::from(-1) { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
