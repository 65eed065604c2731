//! The compiled program, judged by a small interpreter of its instructions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::allowed::ALLOWED;
use super::conditions::{CONDITIONS, GUARDS};
use super::numbers::NEWER_NUMBERS;
use super::refused::{ABSENT, REFUSED};
use super::{INSTRUCTION_BYTES, INSTRUCTIONS_MAX, Instruction, agent_filter, number};

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const AARCH64: u32 = 0xc000_00b7;
const X32_BIT: u32 = 0x4000_0000;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | 1;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | 38;
const EPROTONOSUPPORT: u32 = libc::SECCOMP_RET_ERRNO | 93;

/// `struct seccomp_data` as the words that a program may load.
fn data(arch: u32, number: u32, arguments: [u64; 6]) -> Vec<u32> {
    let mut words = vec![number, arch, 0, 0];
    for argument in arguments {
        words.push((argument & 0xffff_ffff) as u32);
        words.push((argument >> 32) as u32);
    }
    words
}

/// Runs a program as the kernel does; panics on what the kernel would not load.
fn run(program: &[Instruction], data: &[u32]) -> u32 {
    let (mut accumulator, mut scratch, mut next) = (0_u32, [0_u32; 16], 0_usize);
    loop {
        let at = program[next];
        next += 1;
        let taken = match at.code {
            0x20 => {
                accumulator = data[at.operand as usize / 4];
                continue;
            }
            0x54 => {
                accumulator &= at.operand;
                continue;
            }
            0x02 => {
                scratch[at.operand as usize] = accumulator;
                continue;
            }
            0x60 => {
                accumulator = scratch[at.operand as usize];
                continue;
            }
            0x05 => {
                next += at.operand as usize;
                continue;
            }
            0x06 => return at.operand,
            0x15 => accumulator == at.operand,
            0x25 => accumulator > at.operand,
            0x35 => accumulator >= at.operand,
            0x45 => accumulator & at.operand != 0,
            other => panic!("instruction {other:#x}"),
        };
        next += usize::from(if taken { at.if_true } else { at.if_false });
    }
}

fn program() -> Vec<Instruction> {
    let bytes = agent_filter().unwrap();
    let (instructions, rest) = bytes.as_chunks::<INSTRUCTION_BYTES>();
    assert!(rest.is_empty());
    instructions.iter().map(|bytes| Instruction::parse(*bytes)).collect()
}

fn call(program: &[Instruction], name: &'static str, arguments: [u64; 6]) -> u32 {
    let number = u32::try_from(number(name).unwrap()).unwrap();
    run(program, &data(X86_64, number, arguments))
}

/// Arguments that are zero but for one.
fn with(argument: u32, value: u64) -> [u64; 6] {
    let mut arguments = [0; 6];
    arguments[argument as usize] = value;
    arguments
}

#[test]
fn every_known_call_is_in_exactly_one_list() {
    let mut seen = BTreeMap::<&str, u32>::new();
    for name in ALLOWED.iter().chain(REFUSED).flat_map(|group| group.calls) {
        *seen.entry(name).or_default() += 1;
    }
    for condition in CONDITIONS {
        *seen.entry(condition.call).or_default() += 1;
    }
    assert_eq!(seen.iter().filter(|(_, count)| **count != 1).collect::<Vec<_>>(), []);
    let newer = NEWER_NUMBERS.iter().map(|(name, _)| (*name).to_owned());
    let library = (0..600)
        .filter_map(|number| libseccomp::ScmpSyscall::from_raw_syscall(number).get_name().ok());
    let missing: Vec<String> =
        newer.chain(library).filter(|name| !seen.contains_key(name.as_str())).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn newer_numbers_agree_with_the_c_library_where_it_knows_them() {
    for (name, expected) in NEWER_NUMBERS {
        if let Ok(known) = libseccomp::ScmpSyscall::from_name(name) {
            let known: i32 = known.as_raw_syscall();
            assert!(known == *expected || known < 0, "{name}: {known} and {expected}");
        }
    }
}

#[test]
fn an_allowed_call_is_allowed_and_a_refused_one_answers_eperm() {
    let program = program();
    assert!(program.len() < INSTRUCTIONS_MAX / 2, "{} instructions", program.len());
    for name in ALLOWED.iter().flat_map(|group| group.calls) {
        assert_eq!(call(&program, name, [0; 6]), ALLOW, "{name}");
    }
    for name in REFUSED.iter().flat_map(|group| group.calls) {
        let expected = if ABSENT.calls.contains(name) { ENOSYS } else { EPERM };
        assert_eq!(call(&program, name, [0; 6]), expected, "{name}");
        assert_eq!(call(&program, name, [u64::MAX; 6]), expected, "{name}");
    }
}

#[test]
fn a_number_newer_than_every_list_answers_enosys() {
    let program = program();
    for number in (471..2000).chain([X32_BIT - 1]) {
        assert_eq!(run(&program, &data(X86_64, number, [0; 6])), ENOSYS, "{number}");
    }
}

#[test]
fn a_number_that_no_list_names_is_not_allowed() {
    let program = program();
    let named: Vec<i32> = ALLOWED
        .iter()
        .flat_map(|group| group.calls.iter().copied())
        .chain(CONDITIONS.iter().map(|condition| condition.call))
        .map(|name| number(name).unwrap())
        .collect();
    for number in (0..2000_i32).filter(|number| !named.contains(number)) {
        for arguments in [[0; 6], [1; 6], [u64::MAX; 6]] {
            let verdict = run(&program, &data(X86_64, number.cast_unsigned(), arguments));
            assert!(verdict == EPERM || verdict == ENOSYS, "{number}: {verdict:#x}");
        }
    }
}

#[test]
fn another_architecture_and_x32_kill_the_process() {
    let program = program();
    for number in 0..600 {
        for arch in [I386, AARCH64, 0] {
            assert_eq!(run(&program, &data(arch, number, [0; 6])), KILL, "{arch:#x} {number}");
        }
        assert_eq!(run(&program, &data(X86_64, X32_BIT | number, [0; 6])), KILL, "x32 {number}");
    }
}

#[test]
fn a_guarded_value_is_refused_whatever_the_bits_beside_it_say() {
    let program = program();
    for guard in GUARDS {
        let expected = libc::SECCOMP_RET_ERRNO | u32::try_from(guard.errno).unwrap();
        // A family that is allowed, so that only the guard can refuse a socket.
        let base = if guard.call == "socket" { 2 } else { 0 };
        for beside in [0, !guard.mask, !guard.mask & 0xffff_ffff_0000_0000, 1 << 63] {
            let mut arguments = with(guard.argument, guard.value | (beside & !guard.mask));
            arguments[0] |= base;
            assert_eq!(call(&program, guard.call, arguments), expected, "{guard:?} {beside:#x}");
        }
        let mut other = with(guard.argument, 0);
        other[0] |= base;
        assert_eq!(call(&program, guard.call, other), ALLOW, "control of {guard:?}");
    }
    // TIOCGWINSZ, TCGETS and what threads and fork use.
    assert_eq!(call(&program, "ioctl", with(1, 0x5413)), ALLOW);
    assert_eq!(call(&program, "ioctl", with(1, 0x5401)), ALLOW);
    assert_eq!(call(&program, "clone", with(0, 0x003d_0f00)), ALLOW);
    assert_eq!(call(&program, "clone", with(0, 0x0120_0011)), ALLOW);
    assert_eq!(call(&program, "clone", with(0, 0x7e02_0011)), EPERM);
}

#[test]
fn a_conditional_call_is_allowed_for_the_listed_values_only() {
    let program = program();
    for condition in CONDITIONS {
        for value in condition.values {
            for beside in [0, !condition.mask] {
                let arguments = with(condition.argument, value | beside);
                assert_eq!(call(&program, condition.call, arguments), ALLOW, "{condition:?}");
            }
        }
        for value in (0..64).chain((0..16).map(|kind| kind << 12)).chain([0xffff_fffe, 0x0040_0000])
        {
            let masked = value & condition.mask;
            let expected = if condition.values.contains(&masked) { ALLOW } else { EPERM };
            let arguments = with(condition.argument, value);
            assert_eq!(
                call(&program, condition.call, arguments),
                expected,
                "{condition:?} {value}"
            );
        }
    }
    assert_eq!(call(&program, "socket", [2, 1, 132, 0, 0, 0]), EPROTONOSUPPORT);
    assert_eq!(call(&program, "mknod", [0, 0o020_666, 0x0101, 0, 0, 0]), EPERM);
}

/// The list as a person reviews it.
fn rendered() -> String {
    let mut text = String::from("# system call: verdict: reason\n");
    for (verdict, groups) in [("allow", ALLOWED), ("EPERM", REFUSED)] {
        for group in groups {
            for name in group.calls {
                let verdict = if ABSENT.calls.contains(name) { "ENOSYS" } else { verdict };
                writeln!(text, "{name}: {verdict}: {}", group.reason).unwrap();
            }
        }
    }
    for condition in CONDITIONS {
        let values: Vec<String> =
            condition.values.iter().map(|value| format!("{value:#x}")).collect();
        writeln!(
            text,
            "{}: allow when argument {} & {:#x} is {}, else EPERM: {}",
            condition.call,
            condition.argument,
            condition.mask,
            values.join(" or "),
            condition.reason
        )
        .unwrap();
    }
    for guard in GUARDS {
        writeln!(
            text,
            "{}: errno {} when argument {} & {:#x} is {:#x}: {}",
            guard.call, guard.errno, guard.argument, guard.mask, guard.value, guard.reason
        )
        .unwrap();
    }
    text
}

#[test]
fn the_reviewed_list_is_the_compiled_list() {
    let expected = include_str!("golden.txt");
    let actual = rendered();
    if actual != expected {
        let path = std::env::temp_dir().join("atenea-seccomp-golden.txt");
        std::fs::write(&path, &actual).unwrap();
        panic!(
            "launcher/src/seccomp/golden.txt differs from {}: review, then copy",
            path.display()
        );
    }
}
