//! The forbidden acts: what is tried, and which errors mean that it was refused.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use atenea_init::wire::InitPlan;
use libc::{
    EACCES, EADDRNOTAVAIL, EAFNOSUPPORT, EBADF, ECONNREFUSED, EHOSTUNREACH, EINVAL, ENETUNREACH,
    ENOENT, ENOSPC, ENOSYS, ENOTDIR, EPERM, EROFS,
};

use crate::setup;
use crate::sys::{act, fd, process};

/// One forbidden act.
pub(super) struct Act {
    /// Stable name, part of the receipt.
    pub(super) name: &'static str,
    /// Tries it, in one or more ways.
    pub(super) attempt: fn(&InitPlan) -> Vec<io::Result<String>>,
    /// Errors that mean "refused".
    pub(super) refusals: &'static [i32],
    /// Signals beside SIGSYS by which the kernel refuses it.
    pub(super) fatal: &'static [i32],
}

const fn act(
    name: &'static str,
    attempt: fn(&InitPlan) -> Vec<io::Result<String>>,
    refusals: &'static [i32],
) -> Act {
    Act { name, attempt, refusals, fatal: &[] }
}

/// Only the seccomp program answers this: without it the kernel says something else.
const BY_PROGRAM: &[i32] = &[EPERM];
/// The program, a kernel without the feature, or a kernel that forbids it to ordinary users.
const CALL: &[i32] = &[EPERM, EACCES, ENOSYS];
const FAMILY: &[i32] = &[EPERM, EACCES, EAFNOSUPPORT];
const FILE: &[i32] = &[EPERM, EACCES, EROFS, ENOENT, ENOTDIR];
/// ENOSPC: the user namespace's own limit (`--disable-userns`).
const NAMESPACE: &[i32] = &[EPERM, ENOSYS, ENOSPC];

/// Every act, in the order of the report.
pub(super) const ACTS: &[Act] = &[
    act("write_etc", write_etc, FILE),
    act("read_canary", read_canary, &[ENOENT, EACCES, EPERM, ENOTDIR]),
    act(
        "connect_outside",
        connect_outside,
        &[ENETUNREACH, EHOSTUNREACH, EPERM, EACCES, EAFNOSUPPORT, EADDRNOTAVAIL],
    ),
    act("unix_host_path", unix_host_path, &[ENOENT, EACCES, EPERM, ENOTDIR]),
    act("unix_abstract", unix_abstract, &[ECONNREFUSED, EPERM, EACCES]),
    act("vsock", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM), FAMILY),
    act("netlink", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW), FAMILY),
    act("packet", packet, FAMILY),
    act("io_uring_setup", |_| vec![did("a ring", act::io_uring())], CALL),
    act("unshare_user", unshare, NAMESPACE),
    act("clone_newuser", clone, NAMESPACE),
    act(
        "clone3_namespaces",
        |_| vec![did("a process", act::clone3(libc::CLONE_NEWUSER))],
        &[ENOSYS],
    ),
    act("setns", |_| vec![did("a namespace", act::setns())], BY_PROGRAM),
    act("ptrace_init", |_| vec![did("process 1", act::trace(1))], CALL),
    act("process_vm_readv", read_memory, CALL),
    act("proc_1_mem", open_process_1, FILE),
    act("mount", |_| vec![did("a mount", act::mount(c"/tmp"))], BY_PROGRAM),
    act("new_mount_api", new_mount_api, CALL),
    act("mknod", device_nodes, BY_PROGRAM),
    act("proc_sys_write", write_proc_sys, FILE),
    act("keyctl", |_| vec![did("a keyring", act::session_keyring())], CALL),
    act("add_key", |_| vec![did("a key", act::add_key())], CALL),
    act("bpf", |_| vec![did("a map", act::bpf())], CALL),
    act("perf_event_open", |_| vec![did("a counter", act::perf_event())], CALL),
    act("userfaultfd", |_| vec![did("a descriptor", act::userfaultfd())], CALL),
    act("tiocsti_high_bits", |_| vec![did("a line", act::terminal_command(0x5412))], BY_PROGRAM),
    act("tioclinux", |_| vec![did("a line", act::terminal_command(0x541c))], BY_PROGRAM),
    act("become_root", |_| vec![did("uid 0", act::become_root())], &[EPERM, EINVAL]),
    act("extra_descriptors", extra_descriptors, &[EBADF]),
    act("x32_call", |_| vec![did("the x32 table", act::x32_call())], &[ENOSYS, EPERM]),
    Act {
        name: "i386_call",
        attempt: |_| vec![did("the i386 table", act::i386_call())],
        refusals: &[ENOSYS, EPERM],
        // A kernel without the 32-bit entry.
        fatal: &[libc::SIGSEGV],
    },
];

fn did(what: &str, result: io::Result<()>) -> io::Result<String> {
    result.map(|()| what.to_owned())
}

fn write_etc(_: &InitPlan) -> Vec<io::Result<String>> {
    const NEW: &str = "/etc/atenea-probe";
    let create = OpenOptions::new().write(true).create_new(true).open(NEW).map(|_| {
        // Only a sandbox that is refused anyway gets here; a file left behind changes nothing.
        let _ = fs::remove_file(NEW);
        NEW.to_owned()
    });
    vec![create, write_open("/etc/passwd"), write_open("/etc")]
}

/// Opens for writing without changing anything; a directory is tried for a nameless file.
fn write_open(path: &str) -> io::Result<String> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.write(true);
    if Path::new(path).is_dir() {
        options.custom_flags(libc::O_TMPFILE);
    }
    options.open(path).map(|_| path.to_owned())
}

fn read_canary(plan: &InitPlan) -> Vec<io::Result<String>> {
    if plan.canary.is_empty() {
        // Fail closed: without a file that must be invisible nothing is shown.
        return Vec::new();
    }
    vec![File::open(OsStr::from_bytes(&plan.canary)).map(|_| "the canary".to_owned())]
}

/// Addresses reserved for documentation: no packet to them goes anywhere.
fn connect_outside(_: &InitPlan) -> Vec<io::Result<String>> {
    let v4 = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 80));
    let v4_names = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 53));
    let v6 = SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 80));
    [(v4, libc::SOCK_STREAM), (v4_names, libc::SOCK_DGRAM), (v6, libc::SOCK_STREAM)]
        .iter()
        .map(|(address, kind)| did(&address.to_string(), act::connect(address, *kind)))
        .collect()
}

/// Where services of a host listen.
fn unix_host_path(_: &InitPlan) -> Vec<io::Result<String>> {
    let user_bus = format!("/run/user/{}/bus", process::user_id());
    [
        "/run/dbus/system_bus_socket",
        "/run/systemd/private",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/snapd.socket",
        "/tmp/.X11-unix/X0",
        user_bus.as_str(),
    ]
    .iter()
    .map(|path| UnixStream::connect(path).map(|_| (*path).to_owned()))
    .collect()
}

/// Abstract names belong to the network namespace: a listed one is somebody else's.
fn unix_abstract(_: &InitPlan) -> Vec<io::Result<String>> {
    let listed = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let listed = listed.lines().filter_map(|line| line.split_once('@')).map(|(_, name)| name);
    ["/tmp/.X11-unix/X0", "/tmp/dbus-probe"]
        .into_iter()
        .chain(listed)
        .map(|name| {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes())?;
            UnixStream::connect_addr(&address).map(|_| format!("@{name}"))
        })
        .collect()
}

fn socket(family: i32, kind: i32) -> Vec<io::Result<String>> {
    vec![did("a socket", act::socket(family, kind, 0))]
}

fn packet(_: &InitPlan) -> Vec<io::Result<String>> {
    vec![
        did("a packet socket", act::socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0)),
        did("a raw socket", act::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ]
}

fn unshare(_: &InitPlan) -> Vec<io::Result<String>> {
    act::NAMESPACES.iter().map(|flag| did(&format!("{flag:#x}"), act::unshare(*flag))).collect()
}

fn clone(_: &InitPlan) -> Vec<io::Result<String>> {
    act::NAMESPACES.iter().map(|flag| did(&format!("{flag:#x}"), act::clone(*flag))).collect()
}

/// Process 1 is protected by not being dumpable as well; the probe's own memory by the program only.
fn read_memory(_: &InitPlan) -> Vec<io::Result<String>> {
    vec![
        did("process 1", act::read_memory(1)),
        did("itself through the call", act::read_memory(process::own_id())),
    ]
}

fn open_process_1(_: &InitPlan) -> Vec<io::Result<String>> {
    ["/proc/1/mem", "/proc/1/environ", "/proc/1/fd/4", "/proc/1/root/etc/hostname"]
        .iter()
        .map(|path| File::open(path).map(|_| (*path).to_owned()))
        .collect()
}

fn new_mount_api(_: &InitPlan) -> Vec<io::Result<String>> {
    vec![did("a filesystem", act::open_filesystem()), did("a tree", act::open_tree())]
}

fn device_nodes(_: &InitPlan) -> Vec<io::Result<String>> {
    vec![
        did("a node in /tmp", act::device_node(c"/tmp/.atenea-probe-node")),
        did("a node in /dev/shm", act::device_node(c"/dev/shm/.atenea-probe-node")),
    ]
}

fn write_proc_sys(_: &InitPlan) -> Vec<io::Result<String>> {
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sysrq-trigger",
    ]
    .iter()
    .map(|path| write_open(path))
    .collect()
}

/// What execve would leave open beside the streams (S5).
fn extra_descriptors(_: &InitPlan) -> Vec<io::Result<String>> {
    let open = match setup::open_beyond(2) {
        Ok(open) => open,
        Err(error) => return vec![Err(error)],
    };
    let kept = open
        .into_iter()
        .filter(|number| fd::flags(*number).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0));
    let mut attempts: Vec<_> = kept.map(|number| Ok(format!("descriptor {number}"))).collect();
    if attempts.is_empty() {
        attempts.push(Err(io::Error::from_raw_os_error(EBADF)));
    }
    attempts
}
