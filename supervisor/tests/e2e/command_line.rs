//! What the command line tells people: hints that can be pasted, completion, warnings, labels.

use std::process::Command;

use crate::support::{Out, World, host, program, repository};

/// What bash offers for the last of these words, with the script of the program and no other.
#[track_caller]
fn completions(words: &[&str]) -> Vec<String> {
    let script = r#"
set -eu
. <("$SUP" completions bash)
function=$(complete -p atenea-sup | sed 's/.*-F \([^ ]*\) .*/\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
"$function" atenea-sup "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script, "bash"]).args(words).env("SUP", program());
    let out = host(&mut command).ends(0);
    assert_eq!(out.err, "", "{out:?}");
    out.out.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_their_options_and_the_values_of_these() {
    assert_eq!(completions(&["atenea-sup", "ru"]), ["run"]);
    assert_eq!(completions(&["atenea-sup", "run", "--pro"]), ["--profile"]);
    let profiles = ["read", "workspace-write", "trusted-host"];
    assert_eq!(completions(&["atenea-sup", "run", "--profile", ""]), profiles);
    assert_eq!(completions(&["atenea-sup", "journal", "ver"]), ["verify"]);
    let line = ["atenea-sup", "--state-dir", "/srv", "budget", "set", "a", "1", "--per", "m"];
    assert_eq!(completions(&line), ["month"]);
    let commands = completions(&["atenea-sup", ""]);
    assert!(commands.iter().any(|word| word == "doctor"), "{commands:?}");
    assert!(!commands.iter().any(|word| word.starts_with("__")), "{commands:?}");
}

/// Gives a line of a hint to a shell, as a person would.
#[track_caller]
fn pasted(world: &World, said: &str, label: &str) -> Out {
    let start = format!("  {label}: ");
    let line = said.lines().find_map(|line| line.strip_prefix(start.as_str())).expect(said);
    assert!(line.starts_with("atenea-sup --state-dir "), "{line}");
    let bin = program().parent().unwrap().display();
    let mut command = Command::new("timeout");
    command.args(["60", "sh", "-c", line]).current_dir(world.work());
    command.env("PATH", format!("{bin}:/usr/bin:/bin"));
    host(command.env("XDG_CONFIG_HOME", world.dir().join("none")))
}

#[test]
fn the_hints_after_a_run_can_be_pasted_into_a_shell() {
    let world = World::new();
    repository(&world.work());
    let out = world.shell(&["--profile", "workspace-write"], "echo new > made").ends(0);
    assert!(out.err.contains("1 file changed\n"), "{out:?}");
    assert!(pasted(&world, &out.err, "look").ends(0).out.contains("+new"));
    assert!(pasted(&world, &out.err, "take").ends(0).out.contains(" refs/atenea/r_"));
    pasted(&world, &out.err, "drop").ends(0);
    assert_eq!(world.last()["workspace"], "discarded");
    // The same in the remedy of an error.
    let state = world.state().display().to_string();
    let help = format!("list them: atenea-sup --state-dir {state} status --all");
    let out = world.sup(&["status", "nobody"]).ends(3);
    assert!(out.err.contains(&help), "{out:?}");
}

#[test]
fn a_limit_without_a_period_leaves_the_period_as_it_is() {
    let world = World::new();
    world.sup(&["budget", "set", "monthly", "25", "--per", "month"]).ends(0);
    world.sup(&["budget", "set", "monthly", "30"]).ends(0);
    let account = world.account("monthly");
    assert_eq!((&account["usd_limit"], &account["per"]), (&"30".into(), &"month".into()));
    world.sup(&["budget", "set", "new", "1"]).ends(0);
    assert_eq!(world.account("new")["per"], "total");
}

#[test]
fn a_negative_value_reaches_the_check_of_its_option() {
    let world = World::new();
    for option in ["--pids", "--memory", "--cpus", "--timeout", "--disk", "--output"] {
        let out = world.sup(&["run", option, "-1", "--", "true"]).ends(125);
        let out = out.says("manifest.bad_limit");
        assert!(out.err.contains(&format!("help: for example: {option} ")), "{out:?}");
    }
    world.sup(&["run", "--budget", "-1", "--", "true"]).ends(125).says("budget.bad_amount");
    world.sup(&["budget", "set", "x", "-5"]).ends(4).says("budget.bad_amount");
    let out = world.sup(&["cancel", "nobody", "--grace", "5"]).ends(4).says("manifest.bad_limit");
    assert!(out.err.contains("--grace \"5\""), "{out:?}");
}

#[test]
fn an_empty_name_is_no_run() {
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    for command in ["status", "wait", "logs", "receipt", "diff", "export", "discard", "cancel"] {
        world.sup(&[command, ""]).ends(3).says("process.no_such_run");
    }
}

#[test]
fn doctor_says_when_a_supervisor_that_was_there_before_answers() {
    let world = World::new();
    let first = world.sup(&["--json", "doctor"]).ends(0);
    assert!(first.object().get("answered_by").is_none(), "{first:?}");
    assert_eq!(first.err, "");
    let again = world.sup(&["--json", "doctor"]).ends(0);
    let pid = world.supervisor().pid;
    assert_eq!(again.object()["answered_by"]["pid"], pid);
    assert!(
        again.err.contains(&format!("supervisor {pid} found when it was started")),
        "{again:?}"
    );
}

#[test]
fn info_names_the_helper_of_the_supervisor() {
    let world = World::new();
    world.sup(&["status"]).ends(0);
    let helper = world.helper(&world.supervisor()).pid;
    assert_eq!(world.sup(&["--json", "info"]).ends(0).object()["helper"], helper);
    let text = world.sup(&["info"]).ends(0).out;
    assert!(text.contains(&format!("helper      {helper}\n")), "{text}");
}

#[test]
fn a_configuration_that_the_supervisor_does_not_use_is_said() {
    let world = World::configured("[sandbox]\nmax_concurrent = 3\n");
    let trusted = ["run", "--profile", "trusted-host", "--", "true"];
    let out = world.sup(&trusted).ends(125).says("host.trusted_host_off");
    assert!(!out.err.contains("warning:") && !out.err.contains("UNSANDBOXED"), "{out:?}");
    let out = world.sup(&["status"]).ends(0);
    assert_eq!(out.err, "", "the configuration that is used is no reason for a warning");
    // Another file.
    let other = world.dir().join("other.toml");
    std::fs::write(&other, "").unwrap();
    let mut command = Command::new("timeout");
    command.arg("60").arg(program()).arg("--state-dir").arg(world.state()).arg("--config");
    let out = host(command.arg(&other).arg("status")).ends(0);
    assert!(
        out.err.contains("other.toml is not used: the supervisor that runs has read"),
        "{out:?}"
    );
    // The same file, changed since.
    let file = world.dir().join("atenea-sup.toml");
    std::fs::write(&file, "[sandbox]\nallow_trusted_host = true\n").unwrap();
    let out = world.sup(&trusted).ends(125).says("host.trusted_host_off");
    assert!(out.err.contains("atenea-sup.toml has changed since"), "{out:?}");
    assert!(
        out.err.contains("]: the configuration allows trusted-host, but the supervisor"),
        "{out:?}"
    );
    world.sup(&["stop"]).ends(0);
    let out = world.sup(&trusted).ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert!(out.err.starts_with(&format!("UNSANDBOXED: {run} ")), "{out:?}");
    assert_eq!(out.out, "");
}

#[test]
fn a_socket_of_somebody_else_is_not_called_missing() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let world = World::new();
    world.sup(&["status"]).ends(0);
    let info = world.sup(&["--json", "info"]).ends(0).object();
    let socket = info["socket"].as_str().unwrap();
    let bin = crate::ordinary_user::install(&world);
    let as_user = |socket: &str| {
        let user = crate::ordinary_user::USER.to_string();
        let mut command = Command::new("timeout");
        command.args(["60", "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(&bin).args(["--socket", socket, "info"]);
        host(command.env("HOME", world.dir().join("home")))
    };
    let out = as_user(socket).ends(4);
    assert!(out.err.contains("Permission denied") && !out.err.contains("no supervisor"), "{out:?}");
    // Control: where nobody is, nobody is; and --socket starts nothing.
    let out = as_user("/tmp/nobody-listens.sock").ends(3).says("host.no_supervisor");
    assert!(out.err.contains("with --socket none is started"), "{out:?}");
}

#[test]
fn verbose_shows_the_requests_and_their_answers() {
    let world = World::new();
    assert_eq!(world.sup(&["status"]).ends(0).err, "");
    let one = world.sup(&["-v", "status"]).ends(0).err;
    assert!(one.contains("GET /v1/runs: 200 OK"), "{one}");
    let two = world.sup(&["-vv", "status"]).ends(0).err;
    assert!(two.contains("GET /v1/runs: 200 OK") && two.lines().count() > one.lines().count());
}

#[test]
fn the_status_of_a_run_shows_its_limits_its_workspace_and_why_it_was_cancelled() {
    let world = World::new();
    let options = ["--profile", "workspace-write", "--memory", "512MiB", "--timeout", "5m"];
    let run = world.ready(&options, "echo x > made; echo ready; exec sleep 1000");
    let out = world.sup(&["cancel", &run, "--reason", "enough of it"]).ends(0);
    assert_eq!(out.err, format!("{run}: is being cancelled\n"));
    world.sup(&["wait", &run]).ends(143);
    let text = world.sup(&["status", &run]).ends(0).out;
    let path = world.run_dir(&run).join("ws/tree");
    for line in [
        "    limits  cpus 2, memory 512MiB, pids 256, disk 1GiB, output 10MiB, duration 5m\n",
        " cancelled  enough of it\n",
        &format!("      path  {}\n", path.display()),
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    assert!(path.join("made").exists());
    let out = world.sup(&["cancel", &run]).ends(0);
    assert_eq!(out.err, format!("{run}: has ended already: cancelled signal 15\n"));
}

#[test]
fn what_is_wrong_with_a_manifest_file_is_said_for_the_file() {
    let world = World::new();
    let file = world.dir().join("m.toml");
    let name = file.to_str().unwrap();
    for (text, code, words) in [
        ("version = [", "manifest.unreadable", "check the path and the syntax"),
        ("version = 1\n[workspace]\npath = \"/srv\"\n", "manifest.no_command", "write `argv = "),
        ("version = 1\n[command]\nargv = [\"true\"]\n", "manifest.bad_value", "that is missing"),
    ] {
        std::fs::write(&file, text).unwrap();
        let out = world.sup(&["manifest", "check", name]).ends(4).says(code);
        assert!(out.err.contains(&format!("]: {name}: ")), "{out:?}");
        assert!(out.err.contains(words), "{out:?}");
    }
}
