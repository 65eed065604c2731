//! Own namespaces and the network inside: loopback, the synthetic range, listeners.

use std::io;
use std::os::fd::OwnedFd;

use atenea_core::Code;
use nix::sched::CloneFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use super::{Failure, failed};
use crate::plan::{IdMap, Listener, Transport};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;
/// Index of the loopback interface in a new namespace.
const LO: i32 = 1;

/// Makes a mount and a network namespace; without root inside a user namespace of its own, in which
/// this process keeps its id.
pub(super) fn own_namespaces(ids: IdMap, root: bool) -> Result<(), Failure> {
    let own = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
    if root {
        return nix::sched::unshare(own).map_err(failed(
            Code::HostNoNetns,
            "namespaces",
            "mount and network",
        ));
    }
    let step = |what: &str| failed(Code::HostUsernsDenied, "user namespace", what.to_owned());
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER | own)
        .map_err(io::Error::from)
        .map_err(step("make"))?;
    let (uid, gid) = (ids.outside_uid, ids.outside_gid);
    write("/proc/self/setgroups", "deny").map_err(step("deny setgroups"))?;
    write("/proc/self/uid_map", &format!("{uid} {uid} 1")).map_err(step("map the uid"))?;
    write("/proc/self/gid_map", &format!("{gid} {gid} 1")).map_err(step("map the gid"))
}

fn write(path: &str, text: &str) -> io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Loopback up; `198.18.0.0/15` local, so that synthetic addresses are reached without a route out.
pub(super) fn loopback() -> Result<(), Failure> {
    let step = |what: &str| failed(Code::HostNoNetns, "loopback", what.to_owned());
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
        .map_err(io::Error::from)
        .map_err(step("open netlink"))?;
    ask(&socket, &link_up()).map_err(step("up"))?;
    ask(&socket, &synthetic_route()).map_err(step("add the synthetic range"))
}

const HEADER_BYTES: usize = 16;
const REQUEST_ACK: u16 = 0x1 | 0x4;
const CREATE_EXCL: u16 = 0x400 | 0x200;

/// `RTM_NEWLINK`: `struct ifinfomsg` with `IFF_UP` set and named as the only change.
fn link_up() -> Vec<u8> {
    const RTM_NEWLINK: u16 = 16;
    const IFF_UP: u32 = 1;
    let mut body = vec![0, 0, 0, 0];
    body.extend(native(LO.cast_unsigned()));
    body.extend(native(IFF_UP));
    body.extend(native(IFF_UP));
    message(RTM_NEWLINK, REQUEST_ACK, &body)
}

/// `RTM_NEWROUTE`: `struct rtmsg` for a local route on loopback in the local table.
fn synthetic_route() -> Vec<u8> {
    const RTM_NEWROUTE: u16 = 24;
    const TABLE_LOCAL: u8 = 255;
    const PROTO_BOOT: u8 = 3;
    const SCOPE_HOST: u8 = 254;
    const TYPE_LOCAL: u8 = 2;
    const AF_INET: u8 = 2;
    let mut body = vec![AF_INET, 15, 0, 0, TABLE_LOCAL, PROTO_BOOT, SCOPE_HOST, TYPE_LOCAL];
    body.extend(native(0));
    let mut attribute = |kind: u16, value: [u8; 4]| {
        body.extend(native16(8));
        body.extend(native16(kind));
        body.extend(value);
    };
    attribute(1, [198, 18, 0, 0]);
    attribute(4, native(LO.cast_unsigned()));
    message(RTM_NEWROUTE, REQUEST_ACK | CREATE_EXCL, &body)
}

/// A netlink message: length, type, flags, sequence, port.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    bytes.extend(native(len));
    bytes.extend(native16(kind));
    bytes.extend(native16(flags));
    bytes.extend(native(1));
    bytes.extend(native(0));
    bytes.extend_from_slice(body);
    bytes
}

#[expect(clippy::host_endian_bytes, reason = "netlink is in the byte order of the host")]
fn native(value: u32) -> [u8; 4] {
    value.to_ne_bytes()
}

#[expect(clippy::host_endian_bytes, reason = "netlink is in the byte order of the host")]
fn native16(value: u16) -> [u8; 2] {
    value.to_ne_bytes()
}

/// Sends one request and reads its acknowledgement, whose error number follows the header.
fn ask(socket: &OwnedFd, request: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, request, SendFlags::empty())?;
    let mut answer = [0u8; 1024];
    let (received, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let error = answer
        .get(..received)
        .and_then(|answer| answer.get(HEADER_BYTES..HEADER_BYTES + 4))
        .ok_or_else(malformed)?;
    let error: [u8; 4] = error.try_into().map_err(|_| malformed())?;
    #[expect(clippy::host_endian_bytes, reason = "netlink is in the byte order of the host")]
    match i32::from_ne_bytes(error) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Makes the plan's sockets, in its order.
pub(super) fn listeners(listeners: &[Listener]) -> Result<Vec<OwnedFd>, Failure> {
    listeners
        .iter()
        .map(|listener| {
            self::listener(listener).map_err(failed(
                Code::HostNoNetns,
                "listeners",
                listener.address.to_string(),
            ))
        })
        .collect()
}

fn listener(listener: &Listener) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (kind, protocol) = match listener.transport {
        Transport::Tcp => (SocketType::STREAM, ipproto::TCP),
        Transport::Udp => (SocketType::DGRAM, ipproto::UDP),
    };
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, Some(protocol))?;
    if listener.transport == Transport::Tcp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &listener.address)?;
    if listener.transport == Transport::Tcp {
        rustix::net::listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}
