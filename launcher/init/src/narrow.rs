//! init's own seccomp program: what step 10 needs, and nothing else. A call outside of it kills init,
//! which ends the sandbox.
//!
//! It is loaded after the agent was started, because a child inherits its parent's programs.

use std::io;

use crate::sys::harden::{self, Instruction};

/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;
/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const JUMP_EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;

/// What is called after the agent runs. An x32 number equals none of these.
const ALLOWED: &[libc::c_long] = &[
    // Wait for events, talk to the helper.
    libc::SYS_poll,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    // Reap, pass signals and sizes on.
    libc::SYS_wait4,
    libc::SYS_kill,
    libc::SYS_ioctl,
    // Memory of messages.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Duplicate and close descriptors; end.
    libc::SYS_fcntl,
    libc::SYS_close,
    libc::SYS_sigaltstack,
    libc::SYS_futex,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit_group,
];

/// Loads it.
pub(crate) fn load() -> io::Result<()> {
    harden::load_program(&program()?)
}

fn program() -> io::Result<Vec<Instruction>> {
    let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
    let mut program = vec![
        plain(LOAD, OFFSET_ARCH),
        Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k: ARCH },
        plain(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        plain(LOAD, OFFSET_NUMBER),
    ];
    for number in ALLOWED {
        let k = u32::try_from(*number).map_err(|_| io::ErrorKind::InvalidInput)?;
        program.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: 1, k });
        program.push(plain(RETURN, libc::SECCOMP_RET_ALLOW));
    }
    program.push(plain(RETURN, libc::SECCOMP_RET_KILL_PROCESS));
    Ok(program)
}
