//! Streams and terminals between a person and a run.

use std::io::Write;

use crate::support::{Spawned, World, host};
use rustix::process::Signal;

#[test]
fn stdout_and_stderr_of_the_command_are_those_of_run() {
    let world = World::new();
    let out = world.shell(&[], "echo out; echo err >&2").ends(0);
    assert_eq!((out.out.as_str(), out.err.as_str()), ("out\n", "err\n"));
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert_eq!(world.sup(&["logs", &run]).ends(0).out, "out\n");
    assert_eq!(world.sup(&["logs", &run, "--stream", "stderr"]).ends(0).out, "err\n");
}

#[test]
fn stdin_reaches_the_command_byte_for_byte_and_its_end_too() {
    let world = World::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let path = world.dir().join("input");
    std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    let mut command = world.command();
    command.args(["run", "--", "sha256sum"]).stdin(std::fs::File::open(&path).unwrap());
    let inside = command.output().unwrap();
    let outside = host(std::process::Command::new("sha256sum").arg(&path)).out;
    let digest = |text: &str| text.split_whitespace().next().unwrap().to_owned();
    assert_eq!(digest(&String::from_utf8_lossy(&inside.stdout)), digest(&outside));
}

#[test]
fn a_conversation_over_stdin_and_stdout_is_not_held_back() {
    let world = World::new();
    let script = "while read line; do echo got-$line; done; echo end";
    let mut run = Spawned::new(world.command().args(["run", "--", "sh", "-c", script]));
    run.write(b"a\n");
    run.until("got-a");
    run.write(b"b\n");
    run.until("got-b");
    assert_eq!(run.end().ends(0).out, "end\n");
}

#[test]
fn json_gives_one_event_a_line_and_nothing_of_the_command() {
    let world = World::new();
    let out = world.sup(&["--json", "run", "--", "sh", "-c", "echo mixed; exit 4"]).ends(4);
    let events = out.json();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!((&events[0]["event"], &events[1]["event"]), (&"accepted".into(), &"ended".into()));
    assert_eq!(events[0]["run"], events[1]["run"]);
    assert_eq!(events[1]["outcome"], "exited");
    assert_eq!(events[1]["exit"]["status"], 4);
    assert_eq!(events[1]["client_status"], 4);
}

#[test]
fn tty_gives_the_command_a_terminal_and_without_it_there_is_none() {
    let world = World::new();
    let look = "test -t 0 && test -t 1 && test -t 2 && echo is-a-terminal; tty; echo cols $(tput cols 2>/dev/null)";
    assert!(!world.shell(&[], look).out.contains("is-a-terminal"));
    let script = world.dir().join("look");
    std::fs::write(&script, format!(
        "stty cols 77 rows 33\nexec '{}' --state-dir '{}' run -t -- sh -c 'test -t 0 && test -t 2 && echo is-a-terminal; stty size; exit 9'\n",
        crate::support::program().display(), world.state().display(),
    )).unwrap();
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "script", "-qec"]).arg(format!("sh {}", script.display()));
    command.arg("/dev/null").current_dir(world.work());
    let out = host(&mut command).ends(9);
    assert!(out.out.contains("is-a-terminal"), "{out:?}");
    assert!(out.out.contains("33 77"), "the size did not get in: {out:?}");
}

#[test]
fn a_detached_run_prints_its_id_and_is_followed_to_its_end() {
    let world = World::new();
    let run = world.detached(&[], "echo one; sleep 0.3; echo two; exit 5");
    assert!(run.starts_with("r_"), "{run}");
    assert_eq!(world.sup(&["logs", "--follow", &run]).ends(0).out, "one\ntwo\n");
    world.sup(&["wait", &run]).ends(5);
    let waited = world.sup(&["--json", "wait", &run]).ends(5).object();
    assert_eq!(waited["outcome"], "exited");
}

#[test]
fn a_detached_run_has_an_empty_stdin() {
    let world = World::new();
    let run = world.detached(&[], "cat; echo end");
    assert_eq!(world.sup(&["logs", "-f", &run]).ends(0).out, "end\n");
}

#[test]
fn the_first_interrupt_of_a_foreground_run_cancels_it() {
    let world = World::new();
    let script = "trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    // Without timeout(1), which passes a signal on twice.
    let mut command = std::process::Command::new(crate::support::program());
    world.with_options(&mut command);
    let mut run = Spawned::new(command.args(["run", "--", "sh", "-c", script]));
    run.until("ready");
    let pid = rustix::process::Pid::from_raw(run.pid()).unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    run.until("stopped");
    run.end().ends(143);
    assert_eq!(world.last()["outcome"], "cancelled");
}

#[test]
fn a_foreground_run_whose_client_is_killed_is_cancelled() {
    let world = World::new();
    let mut command = std::process::Command::new(crate::support::program());
    world.with_options(&mut command);
    let mut run = Spawned::new(command.args(["run", "--", "sh", "-c", "echo ready; sleep 1000"]));
    run.until("ready");
    let client = rustix::process::Pid::from_raw(run.pid()).unwrap();
    rustix::process::kill_process(client, Signal::KILL).unwrap();
    drop(run);
    let id = world.last()["run"].as_str().unwrap().to_owned();
    world.sup(&["wait", &id]).ends(143);
    assert_eq!(world.status(&id)["outcome"], "cancelled");
}

#[test]
fn stdin_that_was_sent_before_the_sandbox_exists_arrives_inside() {
    let world = World::configured("[sandbox]\nmax_concurrent = 1\n");
    let first = world.ready(&[], "echo ready; sleep 1000");
    let mut waiting = Spawned::new(world.command().args(["run", "--name", "late", "--", "cat"]));
    // More than a pipe holds: when this returns, the client has taken the beginning of it.
    let text: String = (0..25_000).map(|n| format!("{n:07}\n")).collect();
    waiting.write(text.as_bytes());
    assert_eq!(world.status("late")["state"], "queued");
    world.sup(&["cancel", &first, "--grace", "0s"]).ends(0);
    assert!(waiting.end().ends(0).out == text, "something is missing or was changed");
}

#[test]
fn the_names_of_its_streams_work_inside() {
    let world = World::new();
    let script =
        "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin; echo x >> /dev/fd/1";
    let mut run = Spawned::new(world.command().args(["run", "--", "sh", "-c", script]));
    run.write(b"in\n");
    let out = run.end().ends(0);
    assert_eq!((out.out.as_str(), out.err.as_str()), ("out\nin\nx\n", "err\n"));
}

#[test]
fn the_third_interrupt_leaves_and_the_run_is_ended_all_the_same() {
    let world = World::new();
    let mut command = std::process::Command::new(crate::support::program());
    world.with_options(&mut command);
    // Without timeout(1), which passes the first signal on twice and ignores the others.
    let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let mut run = Spawned::new(command.args(["run", "--name", "left", "--", "sh", "-c", script]));
    run.until("ready");
    let client = rustix::process::Pid::from_raw(run.pid()).unwrap();
    let interrupt = || rustix::process::kill_process(client, Signal::INT).unwrap();
    // A supervisor that says nothing, so that the run cannot end between two interrupts.
    let supervisor = world.supervisor();
    supervisor.signal(Signal::STOP);
    interrupt();
    run.until_error("cancelling; once more kills");
    interrupt();
    run.until_error("killing");
    interrupt();
    run.until_error("leaving; the supervisor goes on ending the run");
    run.end().ends(125);
    supervisor.signal(Signal::CONT);
    world.sup(&["wait", "left"]).ends(137);
    assert_eq!(world.status("left")["outcome"], "cancelled");
}

#[test]
fn a_follower_whose_reader_took_its_line_and_left_ends_without_another_line() {
    let world = World::new();
    let run = world.ready(&[], "echo ready; exec sleep 1000");
    for command in [&["logs", "--follow", &run][..], &["status", "--watch"]] {
        // `head` reads what fills its buffer at once and leaves; the run writes nothing more.
        let script = "\"$@\" | head -n 1";
        let mut shell = std::process::Command::new("timeout");
        shell
            .args(["--kill-after=5", "30", "sh", "-c", script, "sh"])
            .arg(crate::support::program());
        world.with_options(&mut shell);
        let out = host(shell.args(command));
        assert_eq!(out.out.lines().count(), 1, "{out:?}");
        assert_eq!(out.status, 0, "it waits for more: {out:?}");
    }
    world.sup(&["cancel", &run, "--grace", "0s"]).ends(0);
}
