//! The agent's seccomp program: a default-deny allow-list for x86-64, compiled to BPF.
//!
//! The lists are data ([`allowed`], [`refused`], [`conditions`]), each entry with its reason. Three
//! parts are joined in this order, and a later part only sees what the earlier ones let through:
//!
//! 1. *guards* ([`conditions::GUARDS`]): another architecture or an x32 number kills the process;
//!    one argument value of an otherwise allowed call is refused (`ioctl(TIOCSTI)`);
//! 2. *newer numbers*: a call that no list here knows answers ENOSYS, so that a C library falls back
//!    as on an older kernel;
//! 3. *the allow-list*: everything else answers EPERM.
//!
//! Parts 1 and 3 are compiled by libseccomp. It cannot express "any value of this argument but
//! these" in an allow-list, hence the separate guards.
//!
//! This module starts no process and loads no filter: `atenea-init` loads it right before `execve`.

use std::io::{Read, Seek, SeekFrom};

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};

pub mod allowed;
pub mod conditions;
pub mod numbers;
pub mod refused;

#[cfg(test)]
mod tests;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the agent's system call list is written for x86-64");

/// The kernel's own bound (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Bytes of one `struct sock_filter`: code u16, jt u8, jf u8, k u32.
pub const INSTRUCTION_BYTES: usize = 8;

/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JA`.
const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JGT | BPF_K`.
const JUMP_GREATER: u16 = 0x25;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// Offset of `nr` in `struct seccomp_data`.
const OFFSET_NUMBER: u32 = 0;

/// Calls under one reason.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Why.
    pub reason: &'static str,
    /// Names as in the kernel's table.
    pub calls: &'static [&'static str],
}

/// Why no program could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeccompError {
    /// A name of the lists is unknown to the C library and to [`numbers::NEWER_NUMBERS`].
    #[error("no number is known for system call {name}")]
    UnknownCall {
        /// The name.
        name: &'static str,
    },
    /// libseccomp refused a step.
    #[error("libseccomp cannot {step}")]
    Library {
        /// What was being done.
        step: &'static str,
        /// Its answer.
        #[source]
        source: libseccomp::error::SeccompError,
    },
    /// The compiled program could not be read back from its memory file.
    #[error("compiled program cannot be read back")]
    ReadBack(#[source] std::io::Error),
    /// The compiled program is not an array of instructions the kernel would take.
    #[error("compiled program has {bytes} bytes")]
    Size {
        /// Its size.
        bytes: usize,
    },
}

/// Compiles the agent's program: the bytes of an array of `struct sock_filter`.
///
/// # Errors
/// When a listed call has no number or libseccomp cannot compile the lists.
pub fn agent_filter() -> Result<Vec<u8>, SeccompError> {
    let mut program = guards()?;
    let newer = newer_numbers()?;
    // A call that the guards let through is judged by the next part, not allowed.
    pass_on(&mut program);
    program.extend(newer);
    program.extend(allow_list()?);
    let bytes: Vec<u8> = program.iter().flat_map(|instruction| instruction.bytes()).collect();
    if program.is_empty() || program.len() > INSTRUCTIONS_MAX {
        return Err(SeccompError::Size { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// The number of a system call.
///
/// # Errors
/// When neither our table of newer calls nor the C library knows the name.
pub fn number(name: &'static str) -> Result<i32, SeccompError> {
    if let Some((_, number)) = numbers::NEWER_NUMBERS.iter().find(|(newer, _)| *newer == name) {
        return Ok(*number);
    }
    let call = ScmpSyscall::from_name(name).map_err(|_| SeccompError::UnknownCall { name })?;
    // libseccomp answers a negative pseudo number for a call of another architecture.
    let number: i32 = call.as_raw_syscall();
    if number < 0 { Err(SeccompError::UnknownCall { name }) } else { Ok(number) }
}

/// One `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

impl Instruction {
    /// As the kernel reads it; little-endian because the lists are for x86-64 only.
    fn bytes(self) -> [u8; INSTRUCTION_BYTES] {
        let [c0, c1] = self.code.to_le_bytes();
        let [k0, k1, k2, k3] = self.operand.to_le_bytes();
        [c0, c1, self.if_true, self.if_false, k0, k1, k2, k3]
    }

    fn parse(bytes: [u8; INSTRUCTION_BYTES]) -> Self {
        let [c0, c1, if_true, if_false, k0, k1, k2, k3] = bytes;
        Self {
            code: u16::from_le_bytes([c0, c1]),
            if_true,
            if_false,
            operand: u32::from_le_bytes([k0, k1, k2, k3]),
        }
    }
}

/// Turns each "allow" into a jump to the instruction after the program.
fn pass_on(program: &mut [Instruction]) {
    let end = program.len();
    for (index, instruction) in program.iter_mut().enumerate() {
        if instruction.code == RETURN && instruction.operand == libc::SECCOMP_RET_ALLOW {
            let skip =
                u32::try_from(end - index - 1).expect("a program has at most 4096 instructions");
            *instruction = Instruction { code: JUMP, if_true: 0, if_false: 0, operand: skip };
        }
    }
}

/// Refuses a number above every listed one with ENOSYS. Runs after the guards, so an x32 number
/// (above all of these) was killed already.
fn newer_numbers() -> Result<[Instruction; 3], SeccompError> {
    let mut last = 0;
    for name in allowed::ALLOWED.iter().chain(refused::REFUSED).flat_map(|group| group.calls) {
        last = last.max(number(name)?);
    }
    let last = u32::try_from(last).expect("number() never answers a negative number");
    let errno = u32::try_from(libc::ENOSYS).expect("errno values are positive");
    Ok([
        Instruction { code: LOAD, if_true: 0, if_false: 0, operand: OFFSET_NUMBER },
        Instruction { code: JUMP_GREATER, if_true: 0, if_false: 1, operand: last },
        Instruction {
            code: RETURN,
            if_true: 0,
            if_false: 0,
            operand: libc::SECCOMP_RET_ERRNO | errno,
        },
    ])
}

fn guards() -> Result<Vec<Instruction>, SeccompError> {
    let mut filter = context(ScmpAction::Allow)?;
    for guard in conditions::GUARDS {
        let comparison = ScmpArgCompare::new(
            guard.argument,
            ScmpCompareOp::MaskedEqual(guard.mask),
            guard.value,
        );
        let call = ScmpSyscall::from_raw_syscall(number(guard.call)?);
        filter
            .add_rule_conditional_exact(ScmpAction::Errno(guard.errno), call, &[comparison])
            .map_err(|source| SeccompError::Library { step: "add a guard", source })?;
    }
    export(&filter)
}

fn allow_list() -> Result<Vec<Instruction>, SeccompError> {
    let mut filter = context(ScmpAction::Errno(libc::EPERM))?;
    for name in allowed::ALLOWED.iter().flat_map(|group| group.calls) {
        filter
            .add_rule_exact(ScmpAction::Allow, ScmpSyscall::from_raw_syscall(number(name)?))
            .map_err(|source| SeccompError::Library { step: "allow a call", source })?;
    }
    for condition in conditions::CONDITIONS {
        let call = ScmpSyscall::from_raw_syscall(number(condition.call)?);
        for value in condition.values {
            let operation = ScmpCompareOp::MaskedEqual(condition.mask);
            let comparison = ScmpArgCompare::new(condition.argument, operation, *value);
            filter
                .add_rule_conditional_exact(ScmpAction::Allow, call, &[comparison])
                .map_err(|source| SeccompError::Library { step: "allow an argument", source })?;
        }
    }
    for name in refused::ABSENT.calls {
        let call = ScmpSyscall::from_raw_syscall(number(name)?);
        filter
            .add_rule_exact(ScmpAction::Errno(libc::ENOSYS), call)
            .map_err(|source| SeccompError::Library { step: "hide a call", source })?;
    }
    export(&filter)
}

/// An empty filter; a wrong architecture, and an x32 number, kill the whole process.
fn context(default: ScmpAction) -> Result<ScmpFilterContext, SeccompError> {
    let mut filter = ScmpFilterContext::new(default)
        .map_err(|source| SeccompError::Library { step: "make a filter", source })?;
    filter.set_act_badarch(ScmpAction::KillProcess).map_err(|source| SeccompError::Library {
        step: "set the wrong-architecture action",
        source,
    })?;
    // 2: a binary tree over the numbers, so that the cost does not grow with the list.
    filter
        .set_ctl_optimize(2)
        .map_err(|source| SeccompError::Library { step: "set the tree layout", source })?;
    Ok(filter)
}

fn export(filter: &ScmpFilterContext) -> Result<Vec<Instruction>, SeccompError> {
    let memory = rustix::fs::memfd_create("atenea-seccomp", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|errno| SeccompError::ReadBack(errno.into()))?;
    let mut file = std::fs::File::from(memory);
    filter
        .export_bpf(&file)
        .map_err(|source| SeccompError::Library { step: "export the program", source })?;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(SeccompError::ReadBack)?;
    file.read_to_end(&mut bytes).map_err(SeccompError::ReadBack)?;
    let (instructions, rest) = bytes.as_chunks::<INSTRUCTION_BYTES>();
    if !rest.is_empty() {
        return Err(SeccompError::Size { bytes: bytes.len() });
    }
    Ok(instructions.iter().map(|instruction| Instruction::parse(*instruction)).collect())
}
