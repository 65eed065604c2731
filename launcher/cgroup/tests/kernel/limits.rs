//! Limits hold, and what could not be limited is not made.

use atenea_cgroup::{Error, Limits, RunGroup, Wait};

use crate::support::{Instance, LIMITS, LONG, read_until};

#[test]
fn a_child_is_in_every_group_before_it_executes_anything() {
    let instance = Instance::new("enter");
    let mut child = instance.start(LIMITS, "cat /proc/self/cgroup; echo ready; read _");
    let seen = read_until(&mut child, "ready");
    let group = instance.group();
    for place in group.identity().places {
        let wanted = format!("/{}", place.path);
        assert!(seen.iter().any(|line| line.ends_with(&wanted)), "{wanted} not in {seen:?}");
    }
    assert!(group.populated().unwrap());
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    child.wait().unwrap();
}

#[test]
fn the_pids_limit_refuses_a_fork_and_counts_it() {
    let instance = Instance::new("pids");
    let script = "i=0; while [ $i -lt 20 ]; do sleep 100 & i=$((i+1)); done; echo all";
    let limits = Limits { pids: 5, ..LIMITS };
    let mut child = instance.start(limits, script);
    let status = child.wait().unwrap();
    let group = instance.group();
    // The shell ends with an error at the first fork that is refused.
    assert!(!status.success());
    assert!(group.fork_refusals().unwrap() > 0);
    let usage = group.usage().unwrap();
    assert!(usage.pids_peak <= 5, "{usage:?}");
    group.kill().unwrap();
}

#[test]
fn without_a_tight_pids_limit_the_same_forks_succeed() {
    let instance = Instance::new("pids-control");
    let script = "i=0; while [ $i -lt 20 ]; do sleep 100 & i=$((i+1)); done; echo all; read _";
    let mut child = instance.start(LIMITS, script);
    read_until(&mut child, "all");
    let group = instance.group();
    assert_eq!(group.fork_refusals().unwrap(), 0);
    assert!(group.usage().unwrap().pids_peak >= 21);
    group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_limit_that_cannot_be_set_is_named_and_leaves_nothing_behind() {
    let instance = Instance::new("refused");
    // The child's share of the CPU may not be larger than what the kernel can count.
    let bad = Limits { cpu_millis: 0, ..LIMITS };
    let refused = RunGroup::create(&instance.base, "run", &bad);
    assert!(matches!(refused, Err(Error::BadLimit { what: "cpu", .. })));
    assert!(instance.base.scan().unwrap().is_empty());
}

#[test]
fn a_group_of_the_same_name_is_not_taken_over() {
    let instance = Instance::new("exists");
    let group = instance.create(LIMITS);
    let again = RunGroup::create(&instance.base, "run", &LIMITS);
    assert!(matches!(again, Err(Error::Exists { .. })));
    // The refused attempt removed nothing of the group that is there.
    assert_eq!(instance.group().identity(), group.identity());
}
