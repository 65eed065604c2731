//! Limits hold, and what could not be limited is not made.

use std::path::Path;

use atenea_cgroup::{Controller, Error, Kind, Layout, Limits, RunGroup, Wait};

use crate::support::{Instance, LIMITS, LONG, read_until};

#[test]
fn a_child_is_in_every_group_before_it_executes_anything() {
    // S1
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
fn a_limit_that_the_kernel_refuses_is_named_and_leaves_nothing_behind() {
    let instance = Instance::new("refused");
    if instance.base.layout().kind() == Kind::Unified {
        // v2 bounds a child by its parent instead of refusing.
        instance.create(LIMITS);
        return;
    }
    // v1 refuses a share of the CPU that is larger than the parent's.
    let places = instance.base.places().unwrap();
    let base = places.iter().find(|p| p.hierarchy.split(',').any(|name| name == "cpu")).unwrap();
    let base = instance.base.layout().path_of(base).unwrap();
    std::fs::write(base.join("cpu.cfs_quota_us"), "50000").unwrap();
    let refused = RunGroup::create(&instance.base, "run", &LIMITS);
    let Err(Error::LimitNotSet { file, source, .. }) = refused else { panic!("{refused:?}") };
    assert!(file.ends_with("run/cpu.cfs_quota_us"), "{file:?}");
    assert_eq!(source.kind(), std::io::ErrorKind::InvalidInput);
    assert!(instance.base.scan().unwrap().is_empty());
    // Control: what fits is accepted.
    instance.create(Limits { cpu_millis: 500, ..LIMITS });
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

#[test]
fn a_process_above_the_cpu_limit_is_throttled_and_one_below_is_not() {
    let script = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    for (cpu_millis, throttled) in [(50, true), (2_000, false)] {
        let instance = Instance::new(&format!("cpu-{cpu_millis}"));
        let limits = Limits { cpu_millis, ..LIMITS };
        instance.start(limits, script).wait().unwrap();
        let group = instance.group();
        let stat = std::fs::read_to_string(instance.file(&group, "cpu", "cpu.stat")).unwrap();
        let times = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
        assert_eq!(times != "0", throttled, "{cpu_millis}: {stat}");
        assert!(group.usage().unwrap().cpu_usec > 0);
    }
}

/// Three processes that take memory without end, and one that does not.
const HOGS: &str = "sleep 1000 & for i in 1 2 3; do tail /dev/zero & done; echo hogs; wait";

#[test]
fn the_first_kill_for_want_of_memory_is_an_event_and_ends_the_whole_run() {
    let instance = Instance::new("oom");
    let limits = Limits { memory_bytes: 64 << 20, ..LIMITS };
    let mut child = instance.start(limits, &format!("echo ready; read _; {HOGS}"));
    read_until(&mut child, "ready");
    let group = instance.group();
    let mut watch = group.watch_oom().unwrap();
    assert!(!watch.fired().unwrap());
    drop(child.stdin.take());
    while !watch.fired().unwrap() {
        let flags = watch.poll_flags();
        let mut fds = [rustix::event::PollFd::new(&watch, flags)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&LONG.try_into().unwrap())), Ok(1));
    }
    group.kill().unwrap();
    assert_eq!(group.wait_empty(LONG).unwrap(), Wait::Empty);
    assert!(watch.fired().unwrap(), "once fired, always fired");
    let usage = group.usage().unwrap();
    assert!(usage.memory_peak_bytes <= 64 << 20, "{usage:?}");
    child.wait().unwrap();
}

#[test]
fn without_acting_on_the_event_a_v1_run_goes_on_after_its_processes_are_killed() {
    let instance = Instance::new("oom-control");
    let limits = Limits { memory_bytes: 64 << 20, ..LIMITS };
    let script = "for i in 1 2 3; do tail /dev/zero & done; wait; echo survived; read _";
    let mut child = instance.start(limits, script);
    if instance.base.layout().kind() == Kind::Unified {
        // `memory.oom.group` ends the whole group there; the first to be reaped may not be the last.
        assert!(!child.wait().unwrap().success());
        assert_eq!(instance.group().wait_empty(LONG).unwrap(), Wait::Empty);
        return;
    }
    read_until(&mut child, "survived");
    let group = instance.group();
    assert_eq!(group.oom_kills().unwrap(), 3);
    assert!(group.populated().unwrap());
    group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_user_to_whom_nothing_was_delegated_is_told_which_path_is_not_writable() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [dir.path(), &program] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    let output = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .args(["--exact", "support::unprivileged_entry", "--nocapture", "--test-threads=1"])
        .env("ATENEA_CGROUP_TEST_UNPRIVILEGED", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("NotWritable") && said.contains("atenea-nobody"), "{output:?}");
}

#[test]
fn a_real_v2_tree_that_has_not_the_controllers_is_refused_by_name() {
    // S2: a run without its limits is no run. On a unified host every other test here uses its tree.
    if Layout::detect().unwrap().kind() == Kind::Hybrid {
        let tree = Path::new("/sys/fs/cgroup/unified");
        let refused = Layout::detect_at(tree, Path::new("/proc/self")).unwrap_err();
        let names = matches!(refused, Error::MissingController { controller: Controller::Cpu, .. });
        assert!(names && refused.is_host_support(), "{refused:?}");
    }
}
