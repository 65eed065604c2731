//! Kill, proof of emptiness, removal.

use atenea_cgroup::{GroupState, Limits, RunGroup, Wait};

use crate::support::{Instance, LIMITS, LONG, read_until};

#[test]
fn a_fork_bomb_of_200_processes_is_killed_and_its_groups_are_removed() {
    let instance = Instance::new("bomb");
    // Each process forks all the time, so that the set of pids never stands still.
    let script = "i=0; while [ $i -lt 200 ]; do \
                  (j=0; while [ $j -lt 20000 ]; do (:); j=$((j+1)); done) & i=$((i+1)); done; \
                  echo ready; wait";
    let limits = Limits { pids: 1_000, cpu_millis: 1_000, ..LIMITS };
    let mut child = instance.start(limits, script);
    read_until(&mut child, "ready");
    let group = instance.group();
    assert!(group.populated().unwrap());
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    assert!(!group.populated().unwrap());
    group.remove().unwrap();
    let layout = instance.base.layout();
    assert!(matches!(RunGroup::reopen(layout, &group.identity()).unwrap(), GroupState::Gone));
    child.wait().unwrap();
}

#[test]
fn removal_kill_and_emptiness_of_a_group_that_is_gone_are_no_errors() {
    let instance = Instance::new("idempotent");
    let group = instance.create(LIMITS);
    for _ in 0..3 {
        group.remove().unwrap();
        group.kill().unwrap();
        assert!(!group.populated().unwrap());
        assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    }
}
