//! Groups of a dead supervisor with orphans inside.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atenea_cgroup::{Base, Layout, Limits, RunGroup};
use atenea_core::RunId;
use atenea_reaper::{
    Ended, Leftover, Observed, kill_group, observe, remove_group, remove_instances,
};

use crate::support::Fixture;

const INSTANCE: &str = "ATENEA_REAPER_TEST_INSTANCE";
const PATIENCE: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits { cpu_millis: 1_000, memory_bytes: 256 << 20, pids: 100 };

fn run_id() -> RunId {
    RunId::from_random(7)
}

/// Not a test: a supervisor that starts a run and dies, leaving orphans that ignore SIGTERM.
#[test]
fn entry() {
    let Ok(instance) = std::env::var(INSTANCE) else { return };
    let base = Base::open_or_create(&Layout::detect().unwrap(), &instance).unwrap();
    let group = RunGroup::create(&base, run_id().as_str(), &LIMITS).unwrap();
    group.enter_current().unwrap();
    let script = "trap '' TERM HUP; for i in 1 2 3; do setsid sleep 1000 & done";
    let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
    shell.wait().unwrap();
}

fn leave_orphans(instance: &str) {
    let mut dead: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "groups::entry", "--nocapture", "--test-threads=1"])
        .env(INSTANCE, instance)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert!(dead.wait().unwrap().success());
}

fn groups_left(seen: &Observed) -> Vec<Leftover> {
    let found = seen.compare(|_| false, |_| true);
    found.into_iter().filter(|l| matches!(l, Leftover::Group { .. })).collect()
}

#[test]
fn orphans_of_a_dead_supervisor_are_found_killed_and_their_groups_removed() {
    // C1, R2
    let fixture = Fixture::new();
    let layout = Layout::detect().unwrap();
    let instance = format!("reaper-{}", std::process::id());
    leave_orphans(&instance);

    let seen = observe(&fixture.state, &layout, &instance).unwrap();
    let name = run_id().as_str().to_owned();
    assert_eq!(groups_left(&seen), [Leftover::Group { name, populated: true }]);
    assert_eq!(seen.groups[0].run, Some(run_id()));
    // A run that lives is no leftover.
    assert!(seen.compare(|run| *run == run_id(), |_| true).is_empty());

    let group = &seen.groups[0].group;
    assert!(!remove_instances(&layout, &seen.instances).unwrap(), "a run is still below them");
    assert_eq!(kill_group(group, PATIENCE).unwrap(), Ended::Killed);
    assert_eq!(kill_group(group, PATIENCE).unwrap(), Ended::WasEmpty);
    remove_group(group).unwrap();
    remove_group(group).unwrap();
    assert_eq!(kill_group(group, PATIENCE).unwrap(), Ended::WasEmpty);

    let again = observe(&fixture.state, &layout, &instance).unwrap();
    assert!(groups_left(&again).is_empty());
    assert!(remove_instances(&layout, &again.instances).unwrap());
    assert!(remove_instances(&layout, &again.instances).unwrap());
    assert!(observe(&fixture.state, &layout, &instance).unwrap().instances.is_empty());
}
