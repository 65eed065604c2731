//! How a run ends, and what `run` and `wait` return for it.

use crate::support::World;

#[test]
fn the_status_of_the_command_is_the_status_of_run_and_wait() {
    let world = World::new();
    world.shell(&[], "exit 7").ends(7);
    let run = world.last();
    assert_eq!((run["outcome"].as_str(), run["client_status"].as_i64()), (Some("exited"), Some(7)));
    world.sup(&["wait", run["run"].as_str().unwrap()]).ends(7);
    world.sup(&["run", "--", "true"]).ends(0);
}

#[test]
fn a_command_that_dies_of_a_signal_gives_128_and_its_number() {
    let world = World::new();
    world.shell(&[], "kill -USR1 $$").ends(128 + 10);
    assert_eq!(world.last()["exit"]["signal"], 10);
    world.shell(&[], "kill -KILL $$").ends(128 + 9);
    // Nobody here killed it, so it is no limit and no cancellation.
    assert_eq!(world.last()["outcome"], "signaled");
}

#[test]
fn a_command_that_is_not_there_or_not_executable_gives_127_and_126() {
    let world = World::new();
    world.sup(&["run", "--", "nosuch"]).ends(127).says("process.not_found");
    std::fs::write(world.work().join("plain"), "#!/bin/sh\n").unwrap();
    world.sup(&["run", "--", "./plain"]).ends(126).says("process.not_executable");
}

#[test]
fn a_run_whose_time_is_over_gives_124_and_its_receipt_says_so() {
    let world = World::new();
    world.sup(&["run", "--timeout", "300ms", "--", "sleep", "1000"]).ends(124).says("limit.time");
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert_eq!(receipt["outcome"], "timed_out");
    assert_eq!(receipt["cause"]["code"], "limit.time");
    assert_eq!(receipt["client_status"], 124);
}

#[test]
fn a_refused_run_gives_125_with_its_code_for_people_and_for_programs() {
    let world = World::new();
    world.sup(&["run", "--budget", "1", "--", "true"]).ends(125).says("budget.no_account");
    let out = world.sup(&["--json", "run", "--budget", "1", "--", "true"]).ends(125);
    let ended = out.json().pop().unwrap();
    assert_eq!(ended["cause"]["code"], "budget.no_account");
    let out = world.sup(&["--json", "run", "--memory", "0", "--", "true"]).ends(125);
    assert_eq!(out.object()["code"], "manifest.bad_limit");
    assert!(!out.object()["help"].as_str().unwrap().is_empty());
}

#[test]
fn cancelling_gives_143_and_137_when_the_polite_stop_is_ignored() {
    let world = World::new();
    let polite = world.ready(&[], "echo ready; exec sleep 1000");
    world.sup(&["cancel", &polite, "--reason", "enough of it"]).ends(0);
    world.sup(&["wait", &polite]).ends(143);
    let receipt = world.receipt(&polite);
    assert_eq!(receipt["outcome"], "cancelled");
    assert_eq!(receipt["cancel_reason"], "enough of it");

    let stubborn = world.ready(&[], "trap '' TERM; echo ready; while :; do sleep 1000; done");
    world.sup(&["cancel", &stubborn, "--grace", "300ms"]).ends(0);
    world.sup(&["wait", &stubborn]).ends(137);
    assert_eq!(world.receipt(&stubborn)["client_status"], 137);

    let killed = world.ready(&[], "trap 'echo asked' TERM; echo ready; sleep 1000");
    world.sup(&["cancel", &killed, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &killed]).ends(137);
    assert!(!world.sup(&["logs", &killed]).out.contains("asked"), "it got the polite signal");
}

#[test]
fn a_command_that_takes_too_much_memory_is_killed_by_its_limit() {
    let world = World::new();
    let hog = ["run", "--memory", "64MiB", "--", "tail", "/dev/zero"];
    world.sup(&hog).ends(137).says("limit.memory");
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert_eq!(receipt["outcome"], "limit");
    assert_eq!(receipt["cause"]["code"], "limit.memory");
    let peak = receipt["usage"]["memory_peak_bytes"].as_u64().unwrap();
    assert!(peak <= 64 << 20, "{peak} bytes are more than the limit");
}

#[test]
fn output_over_the_limit_is_cut_there_and_ends_the_run() {
    let world = World::new();
    let out = world.sup(&["run", "--output", "64KiB", "--", "yes"]).ends(137).says("limit.output");
    assert_eq!(out.out.len(), 64 << 10);
    let run = world.last();
    assert_eq!(run["cause"]["code"], "limit.output");
    let kept = world.run_dir(run["run"].as_str().unwrap()).join("stdout");
    assert_eq!(std::fs::metadata(kept).unwrap().len(), 64 << 10);
    // Exactly the limit is not over it.
    world.shell(&["--output", "64KiB"], "head -c 65536 /dev/zero").ends(0);
}

#[test]
fn the_limit_of_processes_stops_forks_and_not_the_run() {
    let world = World::new();
    let script = "for i in $(seq 100); do sleep 1000 & done 2>/dev/null; echo over";
    let out = world.sup(&["run", "--pids", "32", "--", "bash", "-c", script]);
    assert!(!out.out.contains("over") || out.status == 0, "{out:?}");
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert!(receipt["usage"]["pids_peak"].as_u64().is_none_or(|peak| peak <= 32), "{receipt}");
    assert!(receipt["denials"]["limit.pids"].as_u64().is_some_and(|n| n > 0), "{receipt}");
    // C1: the ones that were started are gone; the end of the test looks at the groups.
}

#[test]
fn a_grandchild_that_keeps_stdout_open_delays_nothing() {
    let world = World::new();
    // Without a kill of the whole tree this waits for the grandchild, and the test's bound ends it.
    world.shell(&[], "sleep 1000 & echo done; exit 3").ends(3);
}

#[test]
fn a_thousand_orphans_end_with_their_run() {
    let world = World::new();
    let script = "i=0; while [ $i -lt 1000 ]; do (sleep 1000 &); i=$((i+1)); done; echo done";
    let out = world.shell(&["--pids", "1200"], script).ends(0);
    assert_eq!(out.out, "done\n");
    assert_eq!(world.receipt(world.last()["run"].as_str().unwrap())["leftovers"][0].as_str(), None);
}
