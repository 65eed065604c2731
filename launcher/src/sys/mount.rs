//! `mount_setattr`, which neither rustix nor nix has.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets mount attributes on the mount that `fd` names, and on all below it when `recursive`.
///
/// # Errors
/// As `mount_setattr`.
pub(crate) fn set_attributes(
    fd: BorrowedFd<'_>,
    attributes: u64,
    recursive: bool,
) -> io::Result<()> {
    let request =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a static empty C string, `request` outlives the call and its exact size is
    // given; the kernel reads both and keeps neither.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
