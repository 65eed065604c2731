//! The supervisor, its helper, or both are killed with SIGKILL; the next command puts everything right.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Watched, World, marked, repository};

/// A run with work, money and a process tree; gives its id and the mark of its processes.
fn victim(world: &World) -> (String, String) {
    repository(&world.work());
    world.sup(&["budget", "set", "default", "5"]).ends(0);
    let mark = format!("atenea-mark-{}", world.dir().file_name().unwrap().to_str().unwrap());
    let variable = format!("MARK={mark}");
    let options = ["--profile", "workspace-write", "--budget", "2", "--env", &variable];
    let script =
        "trap '' TERM; echo work > precious; sleep 1000 & setsid sleep 1000 & echo ready; wait";
    let run = world.ready(&options, script);
    // A process in the middle of its exec shows no environment, so one look may miss some.
    let found = (0..1_000).any(|_| marked(&mark).len() >= 3);
    assert!(found, "the control: its processes are found by their mark");
    (run, mark)
}

/// Kills all at once: nobody can react to the end of another.
fn kill(all: &[&Watched]) {
    for process in all {
        process.signal(Signal::STOP);
    }
    for process in all {
        process.signal(Signal::KILL);
    }
    for process in all {
        process.ended();
    }
}

/// What every recovery has to lead to.
#[track_caller]
fn recovered(world: &World, run: &str, mark: &str) -> Value {
    let status = world.status(run);
    assert_eq!(status["state"], "ended", "{status}");
    assert_eq!(status["client_status"], 125, "{status}");
    assert_eq!(marked(mark), Vec::<i32>::new(), "processes are left");
    assert!(world.groups().is_empty(), "groups are left: {:?}", world.groups());
    let receipt = world.receipt(run);
    assert_eq!(receipt["outcome"], status["outcome"]);
    assert_eq!(receipt["leftovers"].as_array().unwrap().len(), 0, "{receipt}");
    // Nothing priced was granted, so nothing can have been spent (B7).
    assert_eq!(world.account("default")["usd_held"], "0");
    world.sup(&["journal", "verify"]).ends(0);
    status
}

/// R1, C4: the agent is gone, its work is not.
#[track_caller]
fn lost_with_its_work(world: &World, run: &str, mark: &str) {
    let status = recovered(world, run, mark);
    assert_eq!(status["outcome"], "lost");
    assert_eq!(status["cause"]["code"], "recovery.lost");
    assert_eq!(status["workspace"], "sealed");
    assert!(world.sup(&["diff", run]).ends(0).out.contains("+work"));
    world.sup(&["export", run]).ends(0);
    world.sup(&["run", "--", "true"]).ends(0);
}

#[test]
fn supervisor_and_helper_die_together_in_the_middle_of_a_run() {
    let world = World::new();
    let (run, mark) = victim(&world);
    let supervisor = world.supervisor();
    let helper = world.helper(&supervisor);
    kill(&[&supervisor, &helper]);
    lost_with_its_work(&world, &run, &mark);
    assert_eq!(world.sup(&["--json", "info"]).ends(0).object()["generation"], 2);
}

#[test]
fn only_the_helper_dies() {
    let world = World::new();
    let (run, mark) = victim(&world);
    let supervisor = world.supervisor();
    kill(&[&world.helper(&supervisor)]);
    // Without its helper it can promise nothing: it kills what runs and ends.
    supervisor.ended();
    lost_with_its_work(&world, &run, &mark);
}

#[test]
fn only_the_supervisor_dies() {
    let world = World::new();
    let (run, mark) = victim(&world);
    let supervisor = world.supervisor();
    let helper = world.helper(&supervisor);
    kill(&[&supervisor]);
    helper.ended();
    lost_with_its_work(&world, &run, &mark);
}

#[test]
fn both_die_while_a_run_is_prepared() {
    let world = World::new();
    repository(&world.work());
    world.sup(&["budget", "set", "default", "5"]).ends(0);
    let supervisor = world.supervisor();
    let helper = world.helper(&supervisor);
    // A helper that does not answer keeps the run where it is.
    helper.signal(Signal::STOP);
    let mark = format!("atenea-mark-{}", world.dir().file_name().unwrap().to_str().unwrap());
    let variable = format!("MARK={mark}");
    let options = ["--profile", "workspace-write", "--budget", "2", "--env", &variable];
    let run = world.detached(&options, "echo never");
    assert_eq!(world.status(&run)["state"], "preparing");
    assert_eq!(world.account("default")["usd_held"], "2");
    kill(&[&supervisor, &helper]);
    let status = recovered(&world, &run, &mark);
    assert_eq!(status["outcome"], "aborted");
    assert_eq!(status["cause"]["code"], "recovery.aborted");
    let dir = world.run_dir(&run);
    assert!(
        !dir.join("ws").exists() && !dir.join("base.git").exists(),
        "half-made things are left"
    );
    assert_eq!(world.sup(&["logs", &run]).out, "");
}

#[test]
fn a_foreground_client_learns_that_its_run_is_lost() {
    let world = World::new();
    let mut command = world.command();
    let args = ["run", "--", "sh", "-c", "echo ready; sleep 1000"];
    let mut client = crate::support::Spawned::new(command.args(args));
    client.until("ready");
    let supervisor = world.supervisor();
    kill(&[&world.helper(&supervisor), &supervisor]);
    client.end().ends(125).says("recovery.lost");
    assert_eq!(world.last()["outcome"], "lost");
}

#[test]
fn a_killed_supervisor_that_was_idle_loses_nothing() {
    let world = World::new();
    world.shell(&[], "exit 3").ends(3);
    let before = world.last();
    let supervisor = world.supervisor();
    kill(&[&supervisor]);
    assert_eq!(world.last(), before);
}

#[test]
fn a_supervisor_that_is_killed_again_and_again_converges() {
    let world = World::new();
    let (run, mark) = victim(&world);
    let first = world.supervisor();
    kill(&[&world.helper(&first), &first]);
    // R2: each start is killed as soon as it answers; what it did is done, the rest is done again.
    for _ in 0..3 {
        world.status(&run);
        let supervisor = world.supervisor();
        kill(&[&world.helper(&supervisor), &supervisor]);
    }
    lost_with_its_work(&world, &run, &mark);
    let dump = world.sup(&["journal", "dump"]).ends(0).out;
    assert_eq!(dump.matches("ReceiptIssued").count(), 2, "one for each run: {dump}");
}

#[test]
fn what_was_being_made_when_all_was_killed_is_removed_by_the_next_start() {
    let world = World::new();
    world.shell(&["--profile", "workspace-write"], "echo work > precious").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let supervisor = world.supervisor();
    kill(&[&world.helper(&supervisor), &supervisor]);
    // What a worker leaves that was killed while it filled the cache, and a file of ours.
    let tree = world.state().join("cache/staging/s-0123456789abcdef0123");
    std::fs::create_dir_all(tree.join("below")).unwrap();
    std::fs::write(tree.join("below/file"), "half").unwrap();
    let file = world.run_dir(&run).join("receipt.json.new");
    std::fs::write(&file, "half").unwrap();
    assert_eq!(world.status(&run)["workspace"], "sealed");
    assert!(!tree.exists() && !file.exists(), "half-made things are left");
    let dump = world.sup(&["journal", "dump"]).ends(0).out;
    assert_eq!(dump.matches("\"half-made\"").count(), 2, "{dump}");
    assert!(world.run_dir(&run).join("ws/tree/precious").exists());
}

#[test]
fn an_export_that_was_done_stays_done_when_all_is_killed_after_it() {
    let world = World::new();
    repository(&world.work());
    world.shell(&["--profile", "workspace-write"], "echo two >> file").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let before = world.sup(&["--json", "export", &run]).ends(0).object();
    let supervisor = world.supervisor();
    kill(&[&world.helper(&supervisor), &supervisor]);
    assert_eq!(world.status(&run)["workspace"], "exported");
    let name = before["ref"].as_str().unwrap();
    let commit = crate::support::git(&world.work(), &["rev-parse", name]);
    assert_eq!(commit.trim(), before["commit"].as_str().unwrap());
}

#[test]
fn a_journal_that_is_moved_away_lets_nothing_new_in_and_the_refusal_says_what_goes_on() {
    let world = World::new();
    let run = world.ready(&[], "echo ready; exec sleep 1000");
    let (journal, away) = (world.state().join("journal"), world.state().join("away"));
    std::fs::rename(&journal, &away).unwrap();
    let refused = world.sup(&["run", "--", "true"]).ends(125).says("journal.io");
    assert!(refused.err.contains("runs that live go on"), "{refused:?}");
    assert_eq!(world.status(&run)["state"], "running");
    std::fs::rename(&away, &journal).unwrap();
    world.sup(&["run", "--", "true"]).ends(0);
    world.sup(&["cancel", &run, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &run]).ends(137);
}
