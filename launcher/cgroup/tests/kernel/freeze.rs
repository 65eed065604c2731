//! A run that stands still, and what may happen to it meanwhile.

use std::io::{BufRead, BufReader, Write as _};

use atenea_cgroup::{GroupState, RunGroup, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{Instance, LIMITS, LONG, read_until};

/// Answers each line at once.
const ECHO: &str = "echo ready; while read line; do echo \"$line\"; done";

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

#[test]
fn a_frozen_run_does_nothing_until_its_guard_is_gone() {
    let instance = Instance::new("freeze");
    let mut child = instance.start(LIMITS, ECHO);
    read_until(&mut child, "ready");
    let group = instance.group();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    input.write_all(b"one\n").unwrap();
    assert_eq!(line(&mut output), "one\n", "control");
    let frozen = group.freeze(LONG).unwrap().unwrap();
    input.write_all(b"two\n").unwrap();
    // Nothing comes, however long this waits; a shell that runs answers in far less.
    let bound = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    let come = poll(&mut [PollFd::new(output.get_ref(), PollFlags::IN)], Some(&bound)).unwrap();
    assert_eq!(come, 0, "it answered");
    drop(frozen);
    assert_eq!(line(&mut output), "two\n");
    group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_frozen_group_is_killed_and_removed() {
    // C1: also when whoever froze it died and cannot thaw it any more.
    let instance = Instance::new("freeze-kill");
    let script = "for i in 1 2 3; do sleep 1000 & done; (while :; do :; done) & echo ready; wait";
    let mut child = instance.start(LIMITS, script);
    read_until(&mut child, "ready");
    let frozen = instance.group().freeze(LONG).unwrap().unwrap();
    std::mem::forget(frozen);
    let state = RunGroup::reopen(instance.base.layout(), &instance.group().identity()).unwrap();
    let GroupState::Same(group) = state else { panic!("{state:?}") };
    assert!(group.populated().unwrap());
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    group.remove().unwrap();
    assert!(instance.base.scan().unwrap().is_empty());
    child.wait().unwrap();
}

#[test]
fn a_group_that_is_empty_or_gone_stands_still() {
    let instance = Instance::new("freeze-none");
    let group = instance.create(LIMITS);
    drop(group.freeze(LONG).unwrap().unwrap());
    let frozen = group.freeze(LONG).unwrap().unwrap();
    group.remove().unwrap();
    drop(frozen);
    drop(group.freeze(LONG).unwrap().unwrap());
}
