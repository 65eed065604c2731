//! What a process inside does to pid 1 has no effect: it neither ends nor faults, and reports the end
//! of the agent as it was.

use std::process::Command;

use crate::harness::{Setup, strings};

/// Attacks pid 1 (`init`) or a child of its own (`child`), says what worked, and exits with 9.
const ATTACK: &str = include_str!("attack.py");

/// Every act of the script but the signals, which are never an error.
const ACTS: &[(&str, &str)] = &[
    ("prlimit CPU", "EPERM"),
    ("prlimit AS", "EPERM"),
    ("prlimit STACK", "EPERM"),
    ("prlimit NOFILE", "EPERM"),
    ("prlimit FSIZE", "EPERM"),
    ("prlimit DATA", "EPERM"),
    ("prlimit, high bits", "EPERM"),
    ("ptrace", "EPERM"),
    ("read its memory", "EACCES"),
    ("write its memory", "EACCES"),
    ("its descriptors", "EACCES"),
    ("its environment", "EACCES"),
    ("its oom score", "EACCES"),
    ("a descriptor of it", "EPERM"),
];

#[test]
fn no_signal_limit_or_tracer_ends_pid_1_and_the_agents_own_status_is_reported() {
    let mut running = Setup::new(&["python3", "-c", ATTACK, "init"]).run();
    // S1: init lives through all of it and tells the status of the agent, not one of its own.
    let status = running.exited();
    let (output, errors) = (running.output(), running.errors());
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 9, "{status} {output}{errors}");
    // Every signal was sent, by every way there is.
    let mut want: Vec<String> = ["kill", "tgkill", "pidfd", "queue", "owner"]
        .map(|way| format!("{way} {{'works'}}"))
        .into();
    want.extend(ACTS.iter().map(|(act, refusal)| format!("{act}: {refusal}")));
    assert_eq!(output.lines().collect::<Vec<_>>(), want, "{errors}");
    assert_eq!(running.status(), Some(9));
}

/// Positive control: a process without the sandbox's program, in namespaces of its own, ends its
/// child by each of these signals and does all the rest to it.
#[test]
fn the_same_acts_work_on_a_child_outside_of_a_sandbox() {
    let mut words = strings(&["timeout", "60"]);
    if rustix::process::geteuid().is_root() {
        words.extend(strings(&["setpriv", "--reuid", "65534", "--regid", "65534"]));
        words.extend(strings(&["--clear-groups", "--inh-caps=-all"]));
    }
    words.extend(strings(&["unshare", "--user", "--map-root-user", "--mount-proc", "--pid"]));
    words.extend(strings(&["--fork", "--kill-child", "python3", "-c", ATTACK, "child"]));
    let out = Command::new(&words[0]).args(&words[1..]).current_dir("/").output().unwrap();
    let output = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(9), "{output}{}", String::from_utf8_lossy(&out.stderr));
    let want: Vec<String> = ACTS.iter().map(|(act, _)| format!("{act}: works")).collect();
    assert_eq!(output.lines().collect::<Vec<_>>(), want);
}
