//! Whether a recorded process is told from its successors.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use atenea_core::BootId;
use atenea_reaper::{Identity, Liveness, alive};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::support::said;

/// A process that ends with its test, also with one that fails.
struct Sleeper(Child);

impl Sleeper {
    fn end(&mut self) {
        // A repeated kill of one that was reaped is no error.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn start() -> (Sleeper, OwnedFd, Identity) {
    let child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    let identity = Identity::of(pid, &pidfd, None).unwrap();
    (Sleeper(child), pidfd, identity)
}

#[test]
fn a_live_process_is_the_same_and_a_dead_one_is_gone_also_as_a_zombie() {
    let (mut child, _pidfd, identity) = start();
    let record = serde_json::to_string(&identity).unwrap();
    let identity: Identity = serde_json::from_str(&record).unwrap();
    assert_eq!(alive(&identity), Liveness::Same);
    child.0.kill().unwrap();
    // Waits for the end without reaping, so that the zombie is looked at.
    let pid = Pid::from_raw(identity.process.pid).unwrap();
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
    assert_eq!(alive(&identity), Liveness::Gone);
    child.end();
    assert_eq!(alive(&identity), Liveness::Gone);
}

#[test]
fn another_process_with_the_same_number_is_not_taken_for_it() {
    let (_child, _pidfd, identity) = start();
    let mut reused = identity.clone();
    reused.process.pidfd_inode ^= 1;
    reused.process.start_ticks -= 1;
    assert_eq!(alive(&reused), Liveness::Gone);
    // The start time decides where the inode of a pidfd means nothing.
    let mut by_time = identity.clone();
    by_time.process.pidfd_inode = 0;
    assert_eq!(alive(&by_time), Liveness::Same);
    by_time.process.start_ticks -= 1;
    assert_eq!(alive(&by_time), Liveness::Gone);
}

#[test]
fn nothing_of_another_boot_is_alive() {
    let (_child, _pidfd, mut identity) = start();
    identity.process.boot = BootId("00000000-0000-0000-0000-000000000000".to_owned());
    assert_eq!(alive(&identity), Liveness::Gone);
}

#[test]
fn a_record_that_names_no_process_is_unknown_and_not_gone() {
    let (_child, _pidfd, mut identity) = start();
    for pid in [0, -1] {
        identity.process.pid = pid;
        assert_eq!(alive(&identity), Liveness::Unknown);
    }
}

const ENTRY: &str = "ATENEA_REAPER_TEST_PIDS";

/// Not a test: in a pid namespace of its own, where numbers can be chosen.
#[test]
fn entry() {
    if std::env::var_os(ENTRY).is_none() {
        return;
    }
    let (mut first, _pidfd, identity) = start();
    assert_eq!(alive(&identity), Liveness::Same);
    first.end();
    let before = (identity.process.pid - 1).to_string();
    std::fs::write("/proc/sys/kernel/ns_last_pid", before).unwrap();
    let (_second, _other_pidfd, successor) = start();
    assert_eq!(successor.process.pid, identity.process.pid);
    println!("successor {:?}, first {:?}", alive(&successor), alive(&identity));
    let mut by_time = identity.clone();
    by_time.process.pidfd_inode = 0;
    // Ticks are hundredths of a second: two processes may share one, then only the inode tells.
    let same_tick = successor.process.start_ticks == identity.process.start_ticks;
    assert_eq!(alive(&by_time) == Liveness::Same, same_tick);
}

#[test]
fn a_process_that_really_got_the_number_of_a_dead_one_is_not_taken_for_it() {
    // R1
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "identity::entry", "--nocapture", "--test-threads=1"])
        .env(ENTRY, "1")
        .output()
        .unwrap();
    let text = said(&output);
    assert!(text.contains("successor Same, first Gone"), "{text}");
}
