//! Calls whose arguments decide.
//!
//! The kernel reads an `int` argument from the low 32 bits of its register, so every mask here covers
//! exactly what the kernel looks at: garbage in the high half changes nothing (CVE-2019-10063).

/// A call that is refused when `argument & mask == value`, and otherwise judged by the allow-list.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Name of the call.
    pub call: &'static str,
    /// Index of the argument, from 0.
    pub argument: u32,
    /// Bits that are compared.
    pub mask: u64,
    /// Their refused value.
    pub value: u64,
    /// What the call answers.
    pub errno: i32,
    /// Why.
    pub reason: &'static str,
}

/// A call that is allowed only when `argument & mask` is one of `values`; else EPERM.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Name of the call.
    pub call: &'static str,
    /// Index of the argument, from 0.
    pub argument: u32,
    /// Bits that are compared.
    pub mask: u64,
    /// Their allowed values.
    pub values: &'static [u64],
    /// Why.
    pub reason: &'static str,
}

/// What the kernel reads of an `int`.
const INT: u64 = 0xffff_ffff;
/// `SOCK_TYPE_MASK`: the type without `SOCK_CLOEXEC` and `SOCK_NONBLOCK`.
const SOCKET_TYPE: u64 = 0xf;
/// `S_IFMT`.
const FILE_TYPE: u64 = 0o170_000;
/// Regular (also as 0), FIFO and unix socket nodes.
const HARMLESS_NODES: &[u64] = &[0, 0o100_000, 0o010_000, 0o140_000];

const fn ioctl(command: u64, reason: &'static str) -> Guard {
    Guard { call: "ioctl", argument: 1, mask: INT, value: command, errno: libc::EPERM, reason }
}

const fn clone_flag(flag: u64, reason: &'static str) -> Guard {
    Guard { call: "clone", argument: 0, mask: flag, value: flag, errno: libc::EPERM, reason }
}

const fn socket_type(kind: u64, reason: &'static str) -> Guard {
    let errno = libc::EPERM;
    Guard { call: "socket", argument: 1, mask: SOCKET_TYPE, value: kind, errno, reason }
}

const fn protocol(number: u64, reason: &'static str) -> Guard {
    let errno = libc::EPROTONOSUPPORT;
    Guard { call: "socket", argument: 2, mask: INT, value: number, errno, reason }
}

/// Refused argument values of allowed calls.
pub const GUARDS: &[Guard] = &[
    ioctl(0x5412, "TIOCSTI types into a terminal: a way out through the person's shell"),
    ioctl(0x541c, "TIOCLINUX pastes the console's selection: the same as TIOCSTI"),
    ioctl(0x541d, "TIOCCONS takes over the console's output"),
    ioctl(0x5423, "TIOCSETD loads line disciplines: kernel code no agent needs"),
    Guard {
        call: "prlimit64",
        argument: 0,
        mask: INT,
        value: 1,
        errno: libc::EPERM,
        reason: "limits of pid 1: an agent could end its own supervision",
    },
    clone_flag(0x0002_0000, "CLONE_NEWNS: a namespace of its own gives kernel code to attack"),
    clone_flag(0x0200_0000, "CLONE_NEWCGROUP: the same"),
    clone_flag(0x0400_0000, "CLONE_NEWUTS: the same"),
    clone_flag(0x0800_0000, "CLONE_NEWIPC: the same"),
    clone_flag(0x1000_0000, "CLONE_NEWUSER: all capabilities inside"),
    clone_flag(0x2000_0000, "CLONE_NEWPID: processes hide from the run's pid namespace"),
    clone_flag(0x4000_0000, "CLONE_NEWNET: the same as CLONE_NEWNS"),
    socket_type(3, "SOCK_RAW forges packets"),
    socket_type(4, "SOCK_RDM: kernel code no agent needs"),
    socket_type(6, "SOCK_DCCP: kernel code no agent needs"),
    socket_type(10, "SOCK_PACKET forges packets"),
    protocol(33, "DCCP: loads a kernel module"),
    protocol(115, "L2TP: loads a kernel module"),
    protocol(132, "SCTP: loads a kernel module"),
    protocol(136, "UDP-Lite: kernel code no agent needs"),
    protocol(262, "MPTCP: kernel code no agent needs; runtimes fall back to TCP"),
];

/// Allowed argument values of calls that are refused otherwise.
pub const CONDITIONS: &[Condition] = &[
    Condition {
        call: "socket",
        argument: 0,
        mask: INT,
        // AF_UNIX, AF_INET, AF_INET6.
        values: &[1, 2, 10],
        reason: "local and IP sockets; netlink, packet, vsock, alg and all others are kernel code no \
                 agent needs (address look-ups of the C library work without netlink)",
    },
    Condition {
        call: "socketpair",
        argument: 0,
        mask: INT,
        values: &[1],
        reason: "AF_UNIX pairs (pipes of runtimes)",
    },
    Condition {
        call: "personality",
        argument: 0,
        mask: INT,
        // PER_LINUX, ADDR_NO_RANDOMIZE, query.
        values: &[0, 0x0004_0000, 0xffff_ffff],
        reason: "the usual one, the query, and sanitizers that switch address randomisation off; \
                 other bits weaken memory protection or change the system call table",
    },
    Condition {
        call: "mknod",
        argument: 1,
        mask: FILE_TYPE,
        values: HARMLESS_NODES,
        reason: "files, FIFOs and sockets, no devices",
    },
    Condition {
        call: "mknodat",
        argument: 2,
        mask: FILE_TYPE,
        values: HARMLESS_NODES,
        reason: "files, FIFOs and sockets, no devices",
    },
];
