//! Ends: polite, forced, and of the helper and supervisor themselves.

use std::time::Duration;

use atenea_cgroup::{GroupState, Identity, Layout, RunGroup, Wait};
use atenea_launcher::protocol::{Reply, Request};
use rustix::process::{Pid, Signal, kill_process};

use super::Test;
use super::bench::{Bench, read_all, read_line};

pub(crate) const TESTS: &[Test] = &[
    ("a_run_that_ignores_sigterm_is_killed", ignores_sigterm),
    ("a_polite_stop_reaches_the_agent", polite_stop),
    ("a_grandchild_that_holds_a_pipe_dies_with_the_agent", grandchild_holds_a_pipe),
    ("a_thousand_orphans_end_with_their_run", a_thousand_orphans),
    ("a_killed_helper_takes_everything_with_it", a_killed_helper),
    ("a_closed_supervisor_makes_the_helper_remove_everything", a_closed_supervisor),
    ("a_supervisor_that_closes_before_go_starts_nothing", closes_before_go),
    ("sigterm_ends_the_helper_as_its_socket_does", sigterm_ends_the_helper),
    ("a_run_whose_processes_left_their_groups_is_killed_all_the_same", left_their_groups),
    ("a_base_that_somebody_removed_is_made_again", base_is_made_again),
    ("a_run_that_was_never_made_is_removed_at_once", never_made),
    ("descriptors_of_the_helper_do_not_grow", descriptors_do_not_grow),
    ("mounts_and_groups_of_the_host_are_as_before", host_is_as_before),
];

/// Waits until nothing is in a run's groups; what the reaper would do, without killing.
fn wait_until_empty(identity: &Identity) {
    let layout = Layout::detect().unwrap();
    if let GroupState::Same(group) = RunGroup::reopen(&layout, identity).unwrap() {
        assert_eq!(group.wait_empty(Duration::from_secs(20)).unwrap(), Wait::Empty);
        group.remove().unwrap();
    }
}

fn is_gone(identity: &Identity) -> bool {
    let layout = Layout::detect().unwrap();
    matches!(RunGroup::reopen(&layout, identity).unwrap(), GroupState::Gone)
}

/// Removes the helper's own part of the tree, as the reaper does.
fn remove_instance(identity: &Identity) {
    let layout = Layout::detect().unwrap();
    for place in &identity.places {
        let mut base = place.clone();
        base.path = base.path.rsplit_once('/').unwrap().0.to_owned();
        let instance = base.path.rsplit('/').next().unwrap().strip_prefix("atenea-").unwrap();
        for found in atenea_cgroup::find_instances(&layout, instance).unwrap() {
            atenea_cgroup::remove_instance(&layout, &found).unwrap();
        }
    }
}

fn ignores_sigterm() {
    let mut bench = Bench::new();
    let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let plan = bench.plan(&["sh", "-c", script], |_| {});
    let fds = bench.started(&plan);
    assert_eq!(read_line(&fds.stdout), "ready");
    bench.ask(Request::Signal { run: plan.run.clone(), signal: 15 }).unwrap();
    // The shell lives on: its `sleep` died of the signal, so it starts another one.
    let reply = bench.ask(Request::KillGroup { run: plan.run.clone() }).unwrap().0;
    assert!(matches!(reply, Reply::Done));
    let (agent, outermost) = bench.ended();
    assert_eq!(agent, None);
    assert_eq!(libc::WTERMSIG(outermost), 9);
    bench.remove(&plan.run);
}

/// The directory of a place, by the mount that `/proc/self/mountinfo` names for its hierarchy.
fn directory(place: &atenea_cgroup::Place) -> std::path::PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fits = |line: &&str| {
        let (_, kind) = line.split_once(" - ").unwrap();
        let words: Vec<&str> = kind.split(' ').collect();
        let wanted: Vec<&str> = place.hierarchy.split(',').collect();
        match words[0] {
            "cgroup2" => place.is_v2(),
            "cgroup" => wanted.iter().all(|c| words[2].split(',').any(|have| have == *c)),
            _ => false,
        }
    };
    let line = mounts.lines().find(fits).expect("its hierarchy is mounted");
    let mount = line.split(' ').nth(4).unwrap();
    std::path::Path::new(mount).join(place.path.trim_start_matches('/'))
}

/// Moves a process into a group or, where one with controllers may hold none, into one right below.
fn moved_to(group: &std::path::Path, pid: &str) {
    let below = std::fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path());
    let moved = std::iter::once(group.to_owned())
        .chain(below)
        .any(|group| std::fs::write(group.join("cgroup.procs"), pid).is_ok());
    assert!(moved, "no group below {group:?} takes {pid}");
}

fn left_their_groups() {
    // C1
    let mut bench = Bench::new();
    let plan = bench.plan(&["sh", "-c", "sleep 1000 & echo ready; exec sleep 1000"], |_| {});
    let (created, fds) = bench.created(&plan);
    assert!(matches!(bench.go(&plan.run), Reply::Started));
    assert_eq!(read_line(&fds.stdout), "ready");
    for place in &created.identity.group.places {
        let dir = directory(place);
        let above = dir.parent().unwrap().parent().unwrap();
        for pid in std::fs::read_to_string(dir.join("cgroup.procs")).unwrap().lines() {
            moved_to(above, pid);
        }
        assert_eq!(std::fs::read_to_string(dir.join("cgroup.procs")).unwrap(), "");
    }
    bench.remove(&plan.run);
    // Everybody who could write is dead.
    assert_eq!(read_all(fds.stdout), "");
}

fn base_is_made_again() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["echo", "ran"], |_| {});
    let identity = bench.make_group(&plan);
    bench.remove(&plan.run);
    remove_instance(&identity);
    assert_eq!(bench.run(&plan).stdout, "ran\n");
}

fn never_made() {
    // R2
    let mut bench = Bench::configured();
    bench.remove(&atenea_core::RunId::from_random(super::bench::unique()));
}

fn polite_stop() {
    let mut bench = Bench::new();
    let script =
        "trap 'echo stopped; exit 5' TERM; echo ready; while :; do sleep 1000 & wait; done";
    let plan = bench.plan(&["sh", "-c", script], |_| {});
    let fds = bench.started(&plan);
    assert_eq!(read_line(&fds.stdout), "ready");
    bench.ask(Request::Signal { run: plan.run.clone(), signal: 15 }).unwrap();
    assert_eq!(bench.ended().0.map(|status| libc::WEXITSTATUS(status)), Some(5));
    assert_eq!(read_all(fds.stdout), "stopped\n");
    bench.remove(&plan.run);
}

fn grandchild_holds_a_pipe() {
    let mut bench = Bench::new();
    // Reading to the end would take 1000 seconds if the grandchild lived on.
    let ran = bench.shell("(setsid sleep 1000 &) ; echo over", |_| {});
    assert_eq!(ran.stdout, "over\n");
}

fn a_thousand_orphans() {
    let mut bench = Bench::new();
    let script =
        "i=0; while [ $i -lt 1000 ]; do (sleep 1000 &) ; i=$((i+1)); done; echo made; exit 4";
    let plan = bench.plan(&["sh", "-c", script], |input| {
        input.limits.pids = 1100;
        input.limits.memory_bytes = 1 << 30;
    });
    let identity = bench.make_group(&plan);
    let (_, fds) = bench.create(&plan).unwrap();
    bench.go(&plan.run);
    assert_eq!(read_line(&fds.stdout), "made");
    assert_eq!(bench.ended().0.map(|status| libc::WEXITSTATUS(status)), Some(4));
    // C1
    bench.remove(&plan.run);
    assert!(is_gone(&identity));
}

fn a_killed_helper() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["sh", "-c", "echo ready; sleep 1000"], |_| {});
    let identity = bench.make_group(&plan);
    let (_, fds) = bench.create(&plan).unwrap();
    bench.go(&plan.run);
    assert_eq!(read_line(&fds.stdout), "ready");
    let pid = bench.helper.as_ref().unwrap().pid();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // R1: nobody is left to kill anything; it ends by itself.
    assert_eq!(read_all(fds.stdout), "");
    wait_until_empty(&identity);
    assert_eq!(bench.close(), 128 + 9);
    remove_instance(&identity);
}

fn a_closed_supervisor() {
    let mut bench = Bench::new();
    let script =
        "trap '' TERM INT HUP; (setsid sleep 1000 &); echo ready; while :; do sleep 1000; done";
    let plan = bench.plan(&["sh", "-c", script], |_| {});
    let identity = bench.make_group(&plan);
    let (_, fds) = bench.create(&plan).unwrap();
    bench.go(&plan.run);
    assert_eq!(read_line(&fds.stdout), "ready");
    assert_eq!(bench.close(), 0);
    // C1
    assert!(is_gone(&identity));
    assert_eq!(read_all(fds.stdout), "");
}

fn closes_before_go() {
    // S1
    let mut bench = Bench::new();
    let (dir, workspace) = bench.workspace("/project");
    let plan = bench.plan(&["touch", "/project/ran"], |input| input.workspace = Some(workspace));
    let identity = bench.make_group(&plan);
    let (_, fds) = bench.create(&plan).unwrap();
    assert_eq!(bench.close(), 0);
    assert!(is_gone(&identity));
    assert_eq!(read_all(fds.stdout), "");
    assert!(!dir.path().join("ran").exists());
    // Positive control: with go the same plan makes the file.
    let mut bench = Bench::new();
    let (dir, workspace) = bench.workspace("/project");
    let plan = bench.plan(&["touch", "/project/ran"], |input| input.workspace = Some(workspace));
    bench.run(&plan);
    assert!(dir.path().join("ran").exists());
}

fn sigterm_ends_the_helper() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["sleep", "1000"], |_| {});
    let identity = bench.make_group(&plan);
    let (_, fds) = bench.create(&plan).unwrap();
    bench.go(&plan.run);
    let pid = bench.helper.as_ref().unwrap().pid();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert_eq!(read_all(fds.stdout), "");
    assert_eq!(bench.close(), 0);
    assert!(is_gone(&identity));
}

fn helper_fds(bench: &Bench) -> usize {
    let pid = bench.helper.as_ref().unwrap().pid();
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn descriptors_do_not_grow() {
    let mut bench = Bench::new();
    bench.shell("true", |_| {});
    let before = helper_fds(&bench);
    for n in 0..20 {
        let plan = bench.plan(&["sh", "-c", "sleep 1000"], |_| {});
        let (_, _fds) = bench.created(&plan);
        if n % 2 == 0 {
            bench.go(&plan.run);
        }
        bench.remove(&plan.run);
    }
    assert_eq!(helper_fds(&bench), before);
}

fn host_is_as_before() {
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let mut bench = Bench::new();
    let plan = bench.plan(&["sleep", "1000"], |_| {});
    let identity = bench.make_group(&plan);
    bench.create(&plan).unwrap();
    // Also while it lives nothing of it is seen here.
    assert_eq!(mounts(), before);
    bench.remove(&plan.run);
    assert_eq!(bench.close(), 0);
    assert_eq!(mounts(), before);
    assert!(is_gone(&identity));
    let layout = Layout::detect().unwrap();
    let instance = identity.places[0].path.rsplit('/').nth(1).unwrap();
    let instance = instance.strip_prefix("atenea-").unwrap();
    assert!(atenea_cgroup::find_instances(&layout, instance).unwrap().is_empty());
}
