//! Kill, proof of emptiness, removal.

use atenea_cgroup::{Error, GroupState, Identity, Limits, RunGroup, Wait, find_instances, scan};

use crate::support::{Instance, LIMITS, LONG, read_until};

#[test]
fn a_fork_bomb_of_200_processes_is_killed_and_its_groups_are_removed() {
    // C1
    let instance = Instance::new("bomb");
    // Each process forks all the time, so that the set of pids never stands still. They begin when all
    // are there: the last ones would wait long for their turn otherwise.
    let script = "d=$(mktemp -d); mkfifo $d/gate; i=0; while [ $i -lt 200 ]; do \
                  (read _ <$d/gate; j=0; while [ $j -lt 20000 ]; do (:); j=$((j+1)); done) 2>/dev/null & \
                  i=$((i+1)); done; \
                  exec 3>$d/gate; rm -r $d; exec 3>&-; echo ready; wait";
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

#[test]
fn a_journalled_identity_finds_the_same_group_and_can_end_it() {
    let instance = Instance::new("reopen");
    let mut child = instance.start(LIMITS, "echo ready; read _");
    read_until(&mut child, "ready");
    let record = serde_json::to_string(&instance.group().identity()).unwrap();
    let identity: Identity = serde_json::from_str(&record).unwrap();
    let state = RunGroup::reopen(instance.base.layout(), &identity).unwrap();
    let GroupState::Same(group) = state else { panic!("{state:?}") };
    assert!(group.populated().unwrap());
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    child.wait().unwrap();
    // Only the process that made a group may send another one into it.
    assert!(group.enter_current().is_err());
}

#[test]
fn another_group_in_the_same_place_is_noticed_and_left_alone() {
    let instance = Instance::new("inode");
    let old = instance.create(LIMITS);
    let identity = old.identity();
    old.remove().unwrap();
    let new = instance.create(LIMITS);
    let state = RunGroup::reopen(instance.base.layout(), &identity).unwrap();
    assert!(matches!(state, GroupState::Replaced { .. }), "{state:?}");
    assert!(matches!(old.remove(), Err(Error::Replaced { .. })));
    assert_eq!(instance.group().identity(), new.identity());
}

#[test]
fn a_group_with_a_live_process_is_not_removed() {
    let instance = Instance::new("busy");
    let mut child = instance.start(LIMITS, "echo ready; read _");
    read_until(&mut child, "ready");
    let group = instance.group();
    let pid = child.id();
    let busy = group.remove();
    let Err(Error::Busy { pids, .. }) = busy else { panic!("{busy:?}") };
    assert_eq!(pids, [pid]);
    // The v2 directory, by which the run can be ended, is removed last.
    assert!(instance.group().v2_dir().is_some());
    group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_that_left_the_v2_group_is_still_ended_through_the_others() {
    let instance = Instance::new("stray");
    let mut child = instance.start(LIMITS, "echo ready; read _");
    read_until(&mut child, "ready");
    let group = instance.group();
    let base = instance.base.places().unwrap().remove(0);
    let outside = instance.base.layout().path_of(&base).unwrap().parent().unwrap().to_owned();
    if instance.base.layout().kind() == atenea_cgroup::Kind::Unified {
        // There is no other hierarchy then: what left the v2 group left all of them.
        group.kill().unwrap();
        child.wait().unwrap();
        return;
    }
    std::fs::write(outside.join("cgroup.procs"), child.id().to_string()).unwrap();
    assert!(group.populated().unwrap());
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    group.remove().unwrap();
    child.wait().unwrap();
}

#[test]
fn sub_groups_are_killed_and_removed_with_the_run() {
    let instance = Instance::new("sub");
    let mut child = instance.start(LIMITS, "echo ready; read _");
    read_until(&mut child, "ready");
    let group = instance.group();
    for place in group.identity().places {
        let sub = instance.base.layout().path_of(&place).unwrap().join("a/b.c/d");
        std::fs::create_dir_all(&sub).unwrap();
        std::fs::write(sub.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    assert!(group.populated().unwrap());
    assert_eq!(group.procs().unwrap(), [child.id()]);
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    group.remove().unwrap();
    assert!(instance.base.scan().unwrap().is_empty());
    child.wait().unwrap();
}

#[test]
fn a_supervisor_that_starts_elsewhere_finds_the_groups_of_the_dead_one() {
    let instance = Instance::new("elsewhere");
    let group = instance.create(LIMITS);
    // As if its own group were another one: nothing of `base` is used but its name.
    let layout = instance.base.layout();
    let places = find_instances(layout, instance.base.instance()).unwrap();
    assert_eq!(places, instance.base.places().unwrap());
    let found = scan(layout, &places).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].identity(), group.identity());
    assert!(find_instances(layout, "no-such-instance").unwrap().is_empty());
}

#[test]
fn a_wait_for_a_live_run_ends_when_its_time_is_over() {
    let instance = Instance::new("timeout");
    let mut child = instance.start(LIMITS, "echo ready; read _");
    read_until(&mut child, "ready");
    let group = instance.group();
    let short = std::time::Duration::from_millis(5);
    assert_eq!(group.wait_empty(short).unwrap(), Wait::TimedOut);
    group.kill().unwrap();
    child.wait().unwrap();
}
