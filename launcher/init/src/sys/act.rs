//! Forbidden acts. Each really does it: what comes back is the kernel's answer. They run in a probe
//! process that ends right after, so what an act would leave behind does not matter.

use std::ffi::CStr;
use std::io;

use super::check;
use super::process::{exit_now, reap};

/// Namespace flags of clone and unshare.
pub(crate) const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Bit of every x32 system call number.
const X32_BIT: libc::c_long = 0x4000_0000;
/// Upper half of a register: the kernel reads an ioctl command from the lower half only.
const HIGH_BITS: libc::c_ulong = 0xdead_beef_0000_0000;
/// Room for the structures whose size the kernel checks against its own; zeroes mean "default".
type Words = [u64; 16];

/// Makes a socket.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    // SAFETY: takes numbers only; the descriptor leaks into a process that ends soon.
    check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }).map(drop)
}

/// Connects a socket of this kind to an address without waiting.
pub(crate) fn connect(address: &std::net::SocketAddr, kind: i32) -> io::Result<()> {
    match address {
        std::net::SocketAddr::V4(v4) => {
            let address = libc::sockaddr_in {
                sin_family: 2,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            connect_to(libc::AF_INET, kind, &address)
        }
        std::net::SocketAddr::V6(v6) => {
            let address = libc::sockaddr_in6 {
                sin6_family: 10,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: 0,
            };
            connect_to(libc::AF_INET6, kind, &address)
        }
    }
}

fn connect_to<T>(family: i32, kind: i32, address: &T) -> io::Result<()> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only; the descriptor leaks into a process that ends soon.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes of the address, a plain C structure of that size.
    check(unsafe { libc::connect(fd, std::ptr::from_ref(address).cast(), len) }).map(drop)
}

/// Sets up an io_uring.
pub(crate) fn io_uring() -> io::Result<()> {
    let mut parameters = Words::default();
    // SAFETY: io_uring_params has 120 bytes; the kernel reads and writes inside `parameters`.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    check(answer).map(drop)
}

/// Moves this process to a new namespace.
pub(crate) fn unshare(flag: i32) -> io::Result<()> {
    // SAFETY: takes a number; this process has one thread and shares nothing.
    check(unsafe { libc::unshare(flag) }).map(drop)
}

/// Enters a namespace; an invalid descriptor is enough to see whether the call gets through.
pub(crate) fn setns() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setns(-1, 0) }).map(drop)
}

/// Starts a process in a new namespace.
pub(crate) fn clone(flag: i32) -> io::Result<()> {
    const ZERO: libc::c_long = 0;
    let flags = libc::c_long::from(flag | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a zero stack this is a fork; this process has one thread.
    let answer = unsafe { libc::syscall(libc::SYS_clone, flags, ZERO, ZERO, ZERO, ZERO) };
    end_child(answer)
}

/// Starts a process in a new namespace with the newer call.
pub(crate) fn clone3(flag: i32) -> io::Result<()> {
    const SIZE: usize = 88;
    let mut arguments = Words::default();
    arguments[0] = u64::from(flag.cast_unsigned());
    arguments[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    // SAFETY: `arguments` is a valid struct clone_args of SIZE bytes; without CLONE_VM and with a
    // zero stack this is a fork.
    let answer = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), SIZE) };
    end_child(answer)
}

/// Ends the child side of a clone that worked, reaps it on the parent's.
fn end_child(answer: libc::c_long) -> io::Result<()> {
    match check(answer)? {
        0 => exit_now(0),
        pid => {
            reap(i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidData)?, true)?;
            Ok(())
        }
    }
}

/// Becomes the tracer of a process without stopping it.
pub(crate) fn trace(pid: i32) -> io::Result<()> {
    const ZERO: libc::c_long = 0;
    // SAFETY: PTRACE_SEIZE ignores the address and takes options as a number.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, ZERO, ZERO) }).map(drop)
}

/// Reads a byte of another process's memory, at an address that exists in init and its forks.
pub(crate) fn read_memory(pid: i32) -> io::Result<()> {
    static BYTE: u8 = 0;
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: (&raw const BYTE).cast_mut().cast(), iov_len: 1 };
    // SAFETY: the kernel writes one byte to `byte`, which lives across the call.
    check(unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) })
        .map(drop)
}

/// Mounts a tmpfs.
pub(crate) fn mount(target: &CStr) -> io::Result<()> {
    let kind = c"tmpfs".as_ptr();
    // SAFETY: all strings end with NUL and live across the call; no data is given.
    check(unsafe { libc::mount(kind, target.as_ptr(), kind, 0, std::ptr::null()) }).map(drop)
}

/// Opens a filesystem context.
pub(crate) fn open_filesystem() -> io::Result<()> {
    const FLAGS: libc::c_uint = 0;
    // SAFETY: the string ends with NUL and lives across the call.
    check(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FLAGS) }).map(drop)
}

/// Clones a mount.
pub(crate) fn open_tree() -> io::Result<()> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    // SAFETY: the string ends with NUL and lives across the call.
    check(unsafe {
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), OPEN_TREE_CLONE)
    })
    .map(drop)
}

/// Asks for the session keyring.
pub(crate) fn session_keyring() -> io::Result<()> {
    const GET_KEYRING_ID: libc::c_int = 0;
    const SESSION: libc::c_int = -3;
    const CREATE: libc::c_int = 1;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION, CREATE) }).map(drop)
}

/// Adds a key to the process keyring.
pub(crate) fn add_key() -> io::Result<()> {
    const PROCESS: libc::c_int = -2;
    let (kind, name, payload) = (c"user".as_ptr(), c"atenea-probe".as_ptr(), c"x".as_ptr());
    // SAFETY: the strings end with NUL, the payload has at least one byte, all live across the call.
    check(unsafe { libc::syscall(libc::SYS_add_key, kind, name, payload, 1_usize, PROCESS) })
        .map(drop)
}

/// Makes a BPF array map of one word.
pub(crate) fn bpf() -> io::Result<()> {
    const MAP_CREATE: libc::c_int = 0;
    const BYTES: libc::c_uint = 72;
    // map_type ARRAY (2), key_size 4; value_size 4, max_entries 1.
    let mut attributes = Words::default();
    attributes[0] = 2 | 4 << 32;
    attributes[1] = 4 | 1 << 32;
    // SAFETY: the kernel reads BYTES bytes of `attributes`, which is larger and lives on.
    check(unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, attributes.as_ptr(), BYTES) }).map(drop)
}

/// Counts the time of this process in user mode, which the kernel grants ordinary users.
pub(crate) fn perf_event() -> io::Result<()> {
    const BYTES: u64 = 64;
    const EXCLUDE_KERNEL_AND_HYPERVISOR: u64 = 0b110_0000;
    const FLAGS: libc::c_ulong = 0;
    // type SOFTWARE (1), size; config CPU_CLOCK (0).
    let mut attributes = Words::default();
    attributes[0] = 1 | BYTES << 32;
    attributes[5] = EXCLUDE_KERNEL_AND_HYPERVISOR;
    // SAFETY: perf_event_attr says its own size, 64, which is inside `attributes`.
    check(unsafe {
        libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, FLAGS)
    })
    .map(drop)
}

/// Makes a descriptor that handles this process's page faults in user mode.
pub(crate) fn userfaultfd() -> io::Result<()> {
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: takes a number only.
    check(unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY | libc::O_CLOEXEC) })
        .map(drop)
}

/// An ioctl on standard input whose command has garbage in the bits that the kernel ignores.
pub(crate) fn terminal_command(command: libc::c_ulong) -> io::Result<()> {
    let mut argument = *b"\x03\0\0\0\0\0\0\0";
    // SAFETY: TIOCSTI reads one byte; TIOCLINUX reads the subcode 3 (unblank), which takes no more.
    check(unsafe { libc::ioctl(0, command | HIGH_BITS, argument.as_mut_ptr()) }).map(drop)
}

/// Makes a device node.
pub(crate) fn device_node(path: &CStr) -> io::Result<()> {
    const NULL_DEVICE: libc::dev_t = 0x103;
    // SAFETY: the string ends with NUL and lives across the call.
    check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, NULL_DEVICE) }).map(drop)
}

/// Takes the user id 0.
pub(crate) fn become_root() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setresuid(0, 0, 0) }).map(drop)
}

/// A harmless call by its x32 number.
pub(crate) fn x32_call() -> io::Result<()> {
    // SAFETY: getpid takes nothing, in every table.
    check(unsafe { libc::syscall(X32_BIT | libc::SYS_getpid) }).map(drop)
}

/// A harmless call through the 32-bit entry.
pub(crate) fn i386_call() -> io::Result<()> {
    /// `getpid` in the i386 table.
    const GETPID: i32 = 20;
    let answer: i32;
    // SAFETY: getpid of the i386 table takes no argument, touches no memory; the entry may clobber
    // r8 to r11.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("eax") GETPID => answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            options(nostack),
        );
    }
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
}
