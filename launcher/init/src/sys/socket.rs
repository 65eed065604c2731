//! The supervision socket.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::check;

/// Most descriptors that one message carries: the broker's listener and the terminal.
pub(crate) const FDS_MAX: usize = 2;

/// A control message with room for [`FDS_MAX`] descriptors, laid out as the kernel reads it.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    fds: [RawFd; FDS_MAX],
}

// The kernel aligns the data of a control message to the size of a long; the header's size already
// is a multiple of it.
const _: () = assert!(offset_of!(Control, fds) == size_of::<libc::cmsghdr>());

/// Whether `fd` is a SOCK_SEQPACKET socket.
pub(crate) fn is_seqpacket(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut kind: libc::c_int = 0;
    let mut len: libc::socklen_t = 4;
    // SAFETY: `kind` and `len` live across the call and `len` is the size of `kind`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &raw mut len,
        )
    })?;
    Ok(kind == libc::SOCK_SEQPACKET)
}

/// Sends one packet with descriptors.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    assert!(fds.len() <= FDS_MAX, "no message carries more");
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let used = size_of::<libc::cmsghdr>() + size_of_val(fds);
    let mut control = Control {
        header: libc::cmsghdr {
            cmsg_len: used,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        fds: [-1; FDS_MAX],
    };
    control.fds[..fds.len()].copy_from_slice(fds);
    // SAFETY: msghdr is a C structure for which all zeroes is a valid "nothing".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = used;
    }
    loop {
        // SAFETY: everything `message` points to lives across the call; the kernel only reads it.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        match check(sent) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Receives one packet without waiting: its length, 0 at the end of the stream.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // MSG_TRUNC answers the real length, so a packet above the buffer is noticed.
    let options = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the kernel writes at most `buffer.len()` bytes into the exclusively borrowed buffer.
    let received = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), options)
    };
    let received = check(received)?;
    usize::try_from(received).map_err(|_| io::ErrorKind::InvalidData.into())
}
