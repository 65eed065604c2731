//! Messages with descriptors over a `SOCK_SEQPACKET` socket.
//!
//! One message is one packet when it is small. A body above 64 KiB travels in a memfd, and more
//! descriptors than one packet carries travel in packets of their own before it. Packets of one
//! message are never mixed with others: each direction has one sender.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Largest body inside a packet, bytes: far below a socket's default send buffer.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Largest body at all, bytes: a plan is below 4 MiB.
pub const BODY_BYTES_MAX: u64 = 16 << 20;
/// Descriptors in one packet; the kernel takes at most 253.
pub const FDS_PER_PACKET: usize = 200;
/// Descriptors of one message: listeners of all granted names and the streams.
pub const FDS_MAX: usize = 4096;

const KIND_INLINE: u8 = 1;
const KIND_MEMFD: u8 = 2;
const KIND_FDS: u8 = 3;

/// A message ready to be sent, packet after packet.
#[derive(Debug)]
pub struct Outgoing {
    packets: std::collections::VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

impl Outgoing {
    /// Splits a message into packets.
    ///
    /// # Errors
    /// When it is larger than its bound, or the memfd cannot be made.
    pub fn new(body: Vec<u8>, mut fds: Vec<OwnedFd>) -> io::Result<Self> {
        let len = u64::try_from(body.len()).unwrap_or(u64::MAX);
        if len > BODY_BYTES_MAX || fds.len() > FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "message above its bound"));
        }
        let mut packets = std::collections::VecDeque::new();
        while fds.len() >= FDS_PER_PACKET {
            let rest = fds.split_off(FDS_PER_PACKET);
            packets.push_back((vec![KIND_FDS], std::mem::replace(&mut fds, rest)));
        }
        if body.len() > INLINE_BYTES_MAX {
            // The memfd is the last descriptor of the last packet.
            fds.push(sealed_memfd("atenea-message", &body)?);
            packets.push_back((vec![KIND_MEMFD], fds));
        } else {
            let mut packet = body;
            packet.insert(0, KIND_INLINE);
            packets.push_back((packet, fds));
        }
        Ok(Outgoing { packets })
    }

    /// Sends as much as the socket takes now; true when all of it is gone.
    ///
    /// # Errors
    /// Any but "would block"; `EPIPE` when the other side is gone.
    pub fn send_some(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while let Some((bytes, fds)) = self.packets.front() {
            match send_packet(socket, bytes, fds) {
                Ok(()) => drop(self.packets.pop_front()),
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> rustix::io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_PACKET + 1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(rustix::io::Errno::TOOBIG);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

/// A memfd with this content that nobody can change, read from its start.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn sealed_memfd(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&fd, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
    Ok(fd)
}

/// What came in.
#[derive(Debug)]
pub enum Incoming {
    /// A whole message.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// Nothing yet.
    WouldBlock,
    /// The other side is gone.
    Closed,
}

/// Puts packets together to messages.
#[derive(Debug, Default)]
pub struct Assembler {
    fds: Vec<OwnedFd>,
}

impl Assembler {
    /// Receives without waiting.
    ///
    /// # Errors
    /// When the socket fails or what came is no message.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Incoming> {
        loop {
            let (packet, fds) = match receive_packet(socket, INLINE_BYTES_MAX + 1) {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(Incoming::Closed),
                Err(rustix::io::Errno::AGAIN) => return Ok(Incoming::WouldBlock),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::CONNRESET) => return Ok(Incoming::Closed),
                Err(error) => return Err(error.into()),
            };
            self.fds.extend(fds);
            let kind = packet.first().copied();
            let body = packet.get(1..).unwrap_or_default();
            match kind {
                Some(KIND_FDS) if self.fds.len() <= FDS_MAX => {}
                Some(KIND_INLINE) => {
                    return Ok(Incoming::Message(body.to_vec(), std::mem::take(&mut self.fds)));
                }
                Some(KIND_MEMFD) => {
                    let fd = self.fds.pop().ok_or_else(|| malformed("no memfd"))?;
                    let body = read_memfd(fd)?;
                    return Ok(Incoming::Message(body, std::mem::take(&mut self.fds)));
                }
                _ => return Err(malformed("unknown packet")),
            }
        }
    }
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn read_memfd(fd: OwnedFd) -> io::Result<Vec<u8>> {
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
        return Err(malformed("memfd is not sealed"));
    }
    let mut body = Vec::new();
    let mut file = std::fs::File::from(fd);
    io::Read::read_to_end(&mut io::Read::take(&mut file, BODY_BYTES_MAX + 1), &mut body)?;
    if u64::try_from(body.len()).unwrap_or(u64::MAX) > BODY_BYTES_MAX {
        return Err(malformed("memfd above its bound"));
    }
    Ok(body)
}

/// One packet of a `SOCK_SEQPACKET` socket; `None` at its end.
pub(crate) fn receive_packet(
    socket: BorrowedFd<'_>,
    bytes_max: usize,
) -> rustix::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; bytes_max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let truncated = rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC;
    if received.flags.intersects(truncated) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    if received.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn pass(body: Vec<u8>, fds: usize) -> (Vec<u8>, Vec<OwnedFd>) {
        let (near, far) = pair();
        let fds = (0..fds).map(|_| rustix::io::dup(&near).unwrap()).collect();
        let mut message = Outgoing::new(body, fds).unwrap();
        assert!(message.send_some(near.as_fd()).unwrap());
        match Assembler::default().receive(far.as_fd()).unwrap() {
            Incoming::Message(body, fds) => (body, fds),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn small_large_and_many_descriptors_arrive_whole() {
        for (len, count) in [
            (0, 0),
            (10, 3),
            (INLINE_BYTES_MAX, 0),
            (INLINE_BYTES_MAX + 1, 200),
            (5, 199),
            (5, 450),
        ] {
            let body: Vec<u8> = (0..=250).cycle().take(len).collect();
            let (got, fds) = pass(body.clone(), count);
            assert_eq!(got, body);
            assert_eq!(fds.len(), count, "{len}");
        }
    }

    #[test]
    fn a_closed_peer_reads_as_closed_and_an_empty_socket_as_would_block() {
        let (near, far) = pair();
        let mut assembler = Assembler::default();
        assert!(matches!(assembler.receive(far.as_fd()).unwrap(), Incoming::WouldBlock));
        drop(near);
        assert!(matches!(assembler.receive(far.as_fd()).unwrap(), Incoming::Closed));
    }

    #[test]
    fn a_message_above_its_bound_is_refused_before_anything_is_sent() {
        let (near, _far) = pair();
        let fds = (0..3).map(|_| rustix::io::dup(&near).unwrap()).collect();
        let too_large = usize::try_from(BODY_BYTES_MAX + 1).unwrap();
        assert!(Outgoing::new(vec![0; too_large], fds).is_err());
    }
}
