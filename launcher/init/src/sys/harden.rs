//! What init takes away from itself and its children.

use std::io;

use super::check;

/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// A number above every capability of any kernel: sets are 64 bits wide.
const CAPABILITY_END: u32 = 64;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

/// One half (32 capabilities) of the three sets of `capget`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Names of capability sets that are not empty.
pub(crate) fn capability_sets() -> io::Result<Vec<&'static str>> {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: version 3 makes the kernel fill exactly two halves; both live across the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    let any = |pick: fn(&CapabilityHalf) -> u32| halves.iter().any(|half| pick(half) != 0);
    let mut left = Vec::new();
    if any(|half| half.effective) {
        left.push("effective");
    }
    if any(|half| half.permitted) {
        left.push("permitted");
    }
    if any(|half| half.inheritable) {
        left.push("inheritable");
    }
    if has_any(|number| prctl(libc::PR_CAPBSET_READ, number.into(), 0)) {
        left.push("bounding");
    }
    let ambient = libc::PR_CAP_AMBIENT_IS_SET.cast_unsigned();
    if has_any(|number| prctl(libc::PR_CAP_AMBIENT, ambient.into(), number.into())) {
        left.push("ambient");
    }
    Ok(left)
}

/// Whether the answer is 1 for one capability; a number this kernel does not know answers EINVAL.
fn has_any(is_set: impl Fn(u32) -> io::Result<i32>) -> bool {
    (0..CAPABILITY_END).any(|number| is_set(number).is_ok_and(|answer| answer == 1))
}

/// The prctl operations of this module: all take plain numbers.
fn prctl(operation: libc::c_int, first: libc::c_ulong, second: libc::c_ulong) -> io::Result<i32> {
    const ZERO: libc::c_ulong = 0;
    // SAFETY: called with operations of this module only, whose arguments are numbers, no pointers.
    check(unsafe { libc::prctl(operation, first, second, ZERO, ZERO) })
}

/// No program that is executed from here on gains rights.
pub(crate) fn no_new_privileges() -> io::Result<bool> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    Ok(prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0)? == 1)
}

/// No other process of this uid may trace this one or open its `/proc` files; no core file.
pub(crate) fn not_dumpable() -> io::Result<bool> {
    prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
    Ok(prctl(libc::PR_GET_DUMPABLE, 0, 0)? == 0)
}

/// The kernel kills this process `seconds` from now.
pub(crate) fn end_within(seconds: u32) {
    // SAFETY: alarm takes a number and cannot fail; SIGALRM has its default action here.
    unsafe { libc::alarm(seconds) };
}

/// Sets one resource limit.
pub(crate) fn limit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the kernel reads the structure, which lives across the call; it checks the number.
    check(unsafe { libc::setrlimit64(resource, &raw const limit) }).map(drop)
}

/// Core files.
pub(crate) const CORE: u32 = libc::RLIMIT_CORE;

/// One instruction of a seccomp program.
pub(crate) type Instruction = libc::sock_filter;

/// Loads a seccomp program for this process. Needs [`no_new_privileges`].
pub(crate) fn load_program(instructions: &[Instruction]) -> io::Result<()> {
    const FLAGS: libc::c_uint = 0;
    let len = u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions, which live across the call, and checks them.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program)
    })
    .map(drop)
}
