//! Steps 1 to 6: check what init was given and take away what it does not need.

use std::fs::{self, File};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use atenea_init::wire::{FD_SECCOMP, InitPlan, PLAN_BYTES_MAX};

use crate::failure::Failure;
use crate::sys::harden::Instruction;
use crate::sys::tty::Terminal;
use crate::sys::{fd, harden, process, tty};

/// Bytes of one instruction of a seccomp program.
const INSTRUCTION_BYTES: usize = size_of::<Instruction>();
/// The kernel takes no longer program (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;
/// `SECCOMP_RET_ALLOW`, in a program that would filter nothing.
const RETURN: u16 = 0x06;

/// Step 1: nothing but the descriptors 0 to 5 is open (S5).
pub(crate) fn check_descriptors() -> Result<(), Failure> {
    let extra = open_beyond(FD_SECCOMP).map_err(Failure::at("descriptors"))?;
    if !extra.is_empty() {
        return Err(Failure::new("descriptors", format!("open beyond the plan: {extra:?}")));
    }
    let first = FD_SECCOMP - 2;
    fd::close_on_exec_from(first.cast_unsigned()).map_err(Failure::at("descriptors"))
}

/// Numbers of open descriptors above `last`.
pub(crate) fn open_beyond(last: RawFd) -> std::io::Result<Vec<RawFd>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        listed.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    // The directory's own descriptor was listed and is closed by now.
    listed.retain(|number| *number > last && fd::flags(*number).is_ok());
    Ok(listed)
}

/// Step 1: the plan.
pub(crate) fn read_plan(memory: OwnedFd) -> Result<InitPlan, Failure> {
    let bytes = read(memory, PLAN_BYTES_MAX, "plan")?;
    let plan: InitPlan =
        rmp_serde::from_slice(&bytes).map_err(|error| Failure::new("plan", error.to_string()))?;
    if plan.version != env!("CARGO_PKG_VERSION") {
        return Err(Failure::new("plan", format!("written by version {:?}", plan.version)));
    }
    if plan.argv.is_empty() {
        return Err(Failure::new("plan", "no command"));
    }
    Ok(plan)
}

/// Step 1: the agent's seccomp program.
pub(crate) fn read_program(memory: OwnedFd) -> Result<Vec<Instruction>, Failure> {
    let bytes = read(memory, INSTRUCTIONS_MAX * INSTRUCTION_BYTES, "seccomp_program")?;
    let (chunks, rest) = bytes.as_chunks::<INSTRUCTION_BYTES>();
    if !rest.is_empty() {
        return Err(Failure::new("seccomp_program", format!("{} bytes", bytes.len())));
    }
    let parse = |chunk: &[u8; INSTRUCTION_BYTES]| {
        let [c0, c1, jt, jf, k0, k1, k2, k3] = *chunk;
        let (code, k) = (u16::from_le_bytes([c0, c1]), u32::from_le_bytes([k0, k1, k2, k3]));
        Instruction { code, jt, jf, k }
    };
    Ok(chunks.iter().map(parse).collect())
}

fn read(memory: OwnedFd, bytes_max: usize, step: &'static str) -> Result<Vec<u8>, Failure> {
    let file = File::from(memory);
    let len = file.metadata().map_err(Failure::at(step))?.len();
    let len = usize::try_from(len).ok().filter(|len| *len <= bytes_max);
    let len = len.ok_or_else(|| Failure::new(step, format!("above {bytes_max} bytes")))?;
    let mut bytes = vec![0; len];
    // The writer's offset is shared, hence no plain read.
    file.read_exact_at(&mut bytes, 0).map_err(Failure::at(step))?;
    Ok(bytes)
}

/// Step 2: nothing is left to lose and nothing can be gained.
///
/// bubblewrap empties all five sets, also the bounding one, when an ordinary user starts it. The
/// agent could get them back only in a user namespace of its own, which its seccomp program and
/// `--disable-userns` refuse.
pub(crate) fn harden() -> Result<(), Failure> {
    if process::user_id() == 0 {
        return Err(Failure::new("identity", "the agent's uid would be 0"));
    }
    let left = harden::capability_sets().map_err(Failure::at("capabilities"))?;
    if !left.is_empty() {
        return Err(Failure::new("capabilities", format!("sets not empty: {}", left.join(", "))));
    }
    if !harden::no_new_privileges().map_err(Failure::at("no_new_privs"))? {
        return Err(Failure::new("no_new_privs", "not set although the kernel said so"));
    }
    if !harden::not_dumpable().map_err(Failure::at("dumpable"))? {
        return Err(Failure::new("dumpable", "still dumpable although the kernel said otherwise"));
    }
    Ok(())
}

/// Step 3: the agent's terminal.
pub(crate) fn terminal(size: Option<(u16, u16)>) -> Result<Option<Terminal>, Failure> {
    let Some((rows, cols)) = size else { return Ok(None) };
    tty::open(rows, cols).map(Some).map_err(Failure::at("terminal"))
}

/// Step 5: no core files, then the plan's limits.
pub(crate) fn limits(limits: &[(u32, u64, u64)]) -> Result<(), Failure> {
    harden::limit(harden::CORE, 0, 0).map_err(Failure::at("rlimits"))?;
    for (resource, soft, hard) in limits {
        harden::limit(*resource, *soft, *hard).map_err(Failure::at("rlimits"))?;
    }
    Ok(())
}

/// Step 6: a program that is empty or allows everything at once protects nothing. Whether it refuses
/// what it must is shown by the self-test.
pub(crate) fn check_program(program: &[Instruction]) -> Result<(), Failure> {
    match program {
        [] => Err(Failure::new("seccomp_program", "empty")),
        [first, ..] if first.code == RETURN => {
            Err(Failure::new("seccomp_program", "decides without looking at the call"))
        }
        _ => Ok(()),
    }
}
