//! The supervisor as a whole: names, repeated requests, violations, start, stop and its idle end.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Spawned, World, answer_pipe};

#[test]
fn a_run_is_found_by_name_id_and_prefix_and_an_unknown_one_is_not() {
    let world = World::new();
    let run = world.detached(&["--name", "night-shift"], "exit 6");
    world.sup(&["wait", "night-shift"]).ends(6);
    world.sup(&["wait", &run[..8]]).ends(6);
    world.sup(&["status", "nobody"]).ends(3).says("process.no_such_run");
    world.sup(&["run", "--", "true"]).ends(0);
    world.sup(&["status", "r_"]).ends(4).says("process.ambiguous_run");
    for command in ["wait", "logs", "receipt", "diff", "export", "discard", "cancel"] {
        world.sup(&[command, "nobody"]).ends(3).says("process.no_such_run");
    }
}

#[test]
fn the_same_idempotency_key_is_the_same_run_and_never_another() {
    let world = World::new();
    let options = ["--idempotency-key", "k1"];
    let first = world.detached(&options, "exit 1");
    assert_eq!(world.detached(&options, "exit 1"), first);
    // Whether somebody watches is no part of the request.
    world.shell(&options, "exit 1").ends(1);
    let other = world.sup(&["run", "--idempotency-key", "k1", "--", "true"]).ends(125);
    other.says("process.idempotency_mismatch");
    assert_eq!(world.sup(&["--json", "status", "--all"]).json().len(), 1);
    assert_eq!(world.run_dirs(), [first]);
}

#[test]
fn a_name_belongs_to_one_living_run_at_a_time() {
    let world = World::new();
    let first = world.ready(&["--name", "mine"], "echo ready; sleep 1000");
    let args = ["run", "--name", "mine", "--", "true"];
    world.sup(&args).ends(125).says("process.name_taken");
    assert_eq!(
        world.run_dirs(),
        std::slice::from_ref(&first),
        "the refused request left something"
    );
    world.sup(&["cancel", "mine", "--grace", "0s"]).ends(0);
    world.sup(&["wait", &first]).ends(137);
    // Control: when it has ended, the name is free and stands for the newer run.
    world.sup(&args).ends(0);
    assert_ne!(world.status("mine")["run"], first.as_str());
}

#[test]
fn status_shows_what_lives_and_with_all_what_ended() {
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    assert_eq!(world.sup(&["--json", "status"]).ends(0).json().len(), 0);
    assert_eq!(world.sup(&["--json", "status", "--all"]).ends(0).json().len(), 1);
    let run = world.ready(&["--name", "busy"], "echo ready; sleep 1000");
    // It writes as soon as it runs, which is a moment before that is recorded.
    let running = || world.status("busy")["state"] == "running";
    assert!((0..1_000).any(|_| running()), "{}", world.status("busy"));
    let shown = world.sup(&["status"]).ends(0).out;
    assert!(shown.contains(&run) && shown.contains("busy") && shown.contains("running"), "{shown}");
    assert_eq!(world.status("busy")["state"], "running");
    // The control for every check that no group is left: a run that lives has one.
    assert!(!world.groups().is_empty());
}

#[test]
fn a_receipt_is_there_only_when_the_run_has_ended_and_is_what_the_journal_says() {
    let world = World::new();
    let run = world.ready(&[], "echo ready; sleep 1000");
    world.sup(&["receipt", &run]).ends(4).says("export.not_ended");
    world.sup(&["cancel", &run]).ends(0);
    world.sup(&["wait", &run]).ends(143);
    let receipt = world.receipt(&run);
    assert_eq!((&receipt["label"], &receipt["enforced"]), (&"sandboxed".into(), &true.into()));
    assert_eq!(receipt["self_test"]["refused"], receipt["self_test"]["acts"]);
    assert!(receipt["self_test"]["acts"].as_u64().unwrap() > 0);
    assert!(receipt["usage"]["wall_ms"].is_u64(), "{receipt}");
    // A receipt that was changed on disk is not handed out.
    let path = world.run_dir(&run).join("receipt.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("cancelled", "exited");
    std::fs::write(&path, text).unwrap();
    world.sup(&["receipt", &run]).ends(1).says("journal.damaged");
    world.sup(&["journal", "verify"]).ends(0);
}

#[test]
fn trusted_host_is_refused_unless_allowed_and_then_labelled() {
    let world = World::new();
    let args = ["run", "--profile", "trusted-host", "--", "sh", "-c", "exit 8"];
    world.sup(&args).ends(125).says("host.trusted_host_off");
    drop(world);
    let world = World::configured("[sandbox]\nallow_trusted_host = true\n");
    world.sup(&args).ends(8);
    let run = world.last();
    assert_eq!(run["enforced"], false);
    let receipt = world.receipt(run["run"].as_str().unwrap());
    assert_eq!(receipt["label"], "unsandboxed");
    assert!(receipt["usage"]["wall_ms"].is_u64(), "a short run lasted, too: {receipt}");
    assert!(world.sup(&["status", "--all"]).out.contains("UNSANDBOXED"));
}

#[test]
fn info_names_the_supervisor_that_answers_and_starts_none() {
    let world = World::new();
    world.sup(&["info"]).ends(3).says("host.no_supervisor");
    assert!(!world.state().exists(), "asking made a state directory");
    world.sup(&["status"]).ends(0);
    let info = world.sup(&["--json", "info"]).ends(0).object();
    let state = std::fs::canonicalize(world.state()).unwrap();
    assert_eq!(info["state_dir"], state.to_str().unwrap());
    assert_eq!((&info["generation"], &info["live_runs"]), (&1.into(), &0.into()));
    assert_eq!(i64::from(world.supervisor().pid), info["pid"].as_i64().unwrap());
}

#[test]
fn stop_waits_for_runs_and_with_now_cancels_them() {
    let world = World::new();
    let run = world.ready(&[], "echo ready; sleep 0.5; exit 5");
    let supervisor = world.supervisor();
    world.sup(&["stop"]).ends(0);
    supervisor.ended();
    // The next command starts another one, which knows how the run ended.
    let status = world.status(&run);
    assert_eq!((&status["outcome"], &status["client_status"]), (&"exited".into(), &5.into()));
    let run = world.ready(&[], "echo ready; sleep 1000");
    world.sup(&["stop", "--now"]).ends(0);
    assert_eq!(world.status(&run)["outcome"], "cancelled");
    let info = world.sup(&["--json", "info"]).ends(0).object();
    assert_eq!(info["generation"], 3);
    world.sup(&["stop"]).ends(0);
    assert!(world.sup(&["stop"]).ends(0).err.contains("no supervisor runs"));
    assert!(world.sup(&["--json", "stop"]).ends(0).object()["stopped"].is_null());
}

#[test]
fn several_clients_share_one_supervisor_also_when_they_start_together() {
    let world = World::new();
    let start = |_| {
        let mut command = world.command();
        Spawned::new(command.args(["--json", "run", "--", "true"]))
    };
    let clients: Vec<Spawned> = (0..4).map(start).collect();
    for client in clients {
        client.end().ends(0);
    }
    assert_eq!(world.sup(&["--json", "info"]).ends(0).object()["generation"], 1);
    assert_eq!(world.sup(&["--json", "status", "--all"]).json().len(), 4);
}

#[test]
fn a_second_supervisor_on_the_same_journal_is_refused_and_harms_nothing() {
    let world = World::new();
    let run = world.ready(&[], "echo ready; sleep 1000");
    let (mut answer, stdin) = answer_pipe();
    let mut command = world.command();
    command.arg("--socket").arg(world.dir().join("other.sock"));
    command.args(["__supervisor", "--ready-fd", "0"]).stdin(stdin);
    let output = command.output().unwrap();
    drop(command);
    assert_eq!(output.status.code(), Some(4));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut answer, &mut text).unwrap();
    let refusal: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(refusal["code"], "journal.locked", "{text}");
    // J4: it touched nothing of the one that works. What that wrote came a moment before its record.
    let running = || world.status(&run)["state"] == "running";
    assert!((0..1_000).any(|_| running()), "{}", world.status(&run));
    world.sup(&["journal", "recover", "--accept-loss"]).ends(5).says("journal.locked");
}

#[test]
fn a_supervisor_that_does_not_answer_is_busy_and_not_waited_for_for_ever() {
    let world = World::new();
    let run = world.ready(&[], "echo ready; sleep 1000");
    let supervisor = world.supervisor();
    supervisor.signal(rustix::process::Signal::STOP);
    let asked = [&["status"][..], &["info"], &["stop"], &["run", "--", "true"]]
        .map(|args| Spawned::new(world.command().args(args)));
    let answers = asked.map(Spawned::end);
    supervisor.signal(rustix::process::Signal::CONT);
    let statuses = answers.map(|out| out.says("journal.locked").status);
    assert_eq!(statuses, [5, 5, 5, 125]);
    assert_eq!(world.status(&run)["state"], "running");
    assert_eq!(world.sup(&["--json", "status", "--all"]).json().len(), 1);
}

#[test]
fn an_idle_supervisor_ends_and_one_with_a_run_does_not() {
    let world = World::configured("[sandbox]\nidle_seconds = 1\n");
    let run = world.ready(&[], "echo ready; sleep 2.5; exit 2");
    let supervisor = world.supervisor();
    supervisor.ended();
    // It outlived its run: the end is known, and nothing was recovered.
    let status = world.status(&run);
    assert_eq!((&status["outcome"], &status["client_status"]), (&"exited".into(), &2.into()));
}

#[test]
fn violations_list_what_runs_were_refused_and_can_be_narrowed() {
    let world = World::new();
    let ask = "exec 3<>/dev/tcp/127.0.0.1/3128; \
        printf 'CONNECT example.com:443 HTTP/1.1\\r\\nHost: example.com:443\\r\\n\\r\\n' >&3; cat <&3";
    let out = world.sup(&["run", "--name", "curious", "--", "bash", "-c", ask]);
    assert!(out.out.starts_with("HTTP/1.1 403"), "{out:?}");
    assert!(out.out.contains("egress.not_granted"), "{out:?}");
    world.sup(&["run", "--name", "quiet", "--", "true"]).ends(0);
    let rows = world.sup(&["--json", "violations", "curious"]).ends(0).json();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0]["code"], &rows[0]["count"]), (&"egress.not_granted".into(), &1.into()));
    assert_eq!(rows[0]["detail"], "example.com:443");
    assert_eq!(world.sup(&["--json", "violations", "quiet"]).ends(0).json().len(), 0);
    assert_eq!(world.sup(&["--json", "violations", "--code", "egress"]).json().len(), 1);
    assert_eq!(world.sup(&["--json", "violations", "--code", "broker"]).json().len(), 0);
    let run = world.status("curious");
    assert_eq!(run["denials"]["egress.not_granted"], 1);
    let receipt = world.receipt(run["run"].as_str().unwrap());
    assert_eq!(receipt["denials"]["egress.not_granted"], 1);
}

#[test]
fn doctor_says_that_this_host_can_contain_a_run() {
    let world = World::new();
    let doctor = world.sup(&["--json", "doctor"]).ends(0).object();
    assert_eq!(doctor["enforceable"], true);
}

#[test]
fn arguments_and_variables_of_a_run_are_in_no_journal_receipt_or_log() {
    let world = World::new();
    let variable = "KEY=value-of-a-secret";
    world.sup(&["run", "--env", variable, "--", "sh", "-c", ": argument-of-a-secret"]).ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let dump = world.sup(&["journal", "dump"]).ends(0).out;
    assert!(dump.contains(&run), "the control: the dump holds the run");
    world.sup(&["stop"]).ends(0);
    // E4: the sealed manifest holds them for its owner only, and is gone or private.
    let found = std::process::Command::new("grep")
        .args(["-rlE", "(value|argument)-of-a-secret"])
        .arg(world.state())
        .output()
        .unwrap();
    for file in String::from_utf8(found.stdout).unwrap().lines() {
        assert!(file.ends_with("/manifest.json"), "{file} holds them");
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{file}");
    }
}

#[test]
fn completions_complete_what_people_use_and_nothing_else() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = world.sup(&["completions", shell]).ends(0).out;
        for word in ["workspace-write", "idempotency-key", "violations"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
        for hidden in ["__supervisor", "__launcher", "__workspace"] {
            assert!(!script.contains(hidden), "{shell} completes {hidden}");
        }
    }
    assert!(!world.state().exists(), "printing a script made a state directory");
}
