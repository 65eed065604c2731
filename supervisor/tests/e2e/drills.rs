//! The drill of recovery, given as a person gives it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Out, host, program};

/// A drill of these names in a place of its own; nothing of it may be left there.
#[track_caller]
fn drill(config: &str, args: &[&str]) -> Out {
    let dir = tempfile::Builder::new().prefix("atenea-e2e.").tempdir().unwrap();
    let places = dir.path().join("places");
    std::fs::create_dir(&places).unwrap();
    let file = dir.path().join("atenea-sup.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg("300").arg(program());
    command.arg("--config").arg(&file).args(["--json", "drill"]).args(args);
    let out = host(command.env("TMPDIR", &places));
    let left: Vec<_> = std::fs::read_dir(&places).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?} of {out:?}");
    out
}

/// Objects for the cases and the summary, which is the last one.
#[track_caller]
fn parts(out: &Out) -> (Vec<Value>, Value) {
    let mut all = out.json();
    let summary = all.pop().expect("a summary");
    assert_eq!(summary["summary"], true, "{out:?}");
    (all, summary)
}

#[test]
fn a_drill_of_a_few_places_is_clean_and_each_of_them_was_reached() {
    // R1 R2 C1 C4 B3
    let cases = [
        "effect.create-sandbox.before/read/helper/work",
        "append.agent-started.after/workspace-write/both/work",
        "append.cancel-requested.before/trusted-host/supervisor/cancel",
        "start.scanned/workspace-write-plain/supervisor/again-running",
        "effect.export.after/workspace-write/both/again-exporting",
    ];
    let out = drill("", &cases).ends(0);
    let (played, summary) = parts(&out);
    let mut names: Vec<&str> = played.iter().map(|case| case["case"].as_str().unwrap()).collect();
    names.sort_unstable();
    let mut wanted = cases;
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    assert!(played.iter().all(|case| case["result"] == "ok"), "{out:?}");
    assert_eq!((&summary["cases"], &summary["clean"]), (&5.into(), &5.into()));
}

#[test]
fn what_a_drill_leaves_behind_on_purpose_is_found_by_it() {
    let case = "append.agent-started.after/workspace-write/both/work";
    let planted = [
        ("file", "planted is left"),
        ("process", "(sleep 600)"),
        ("group", "group /"),
        ("base", "base: file has changed"),
    ];
    for (what, words) in planted {
        let out = drill("", &["--plant", what, case]).ends(1);
        let (played, summary) = parts(&out);
        let findings = played[0]["findings"].to_string();
        assert!(findings.contains(words), "{what}: {findings}");
        assert_eq!((&summary["clean"], &summary["with_findings"]), (&0.into(), &1.into()));
    }
}

#[test]
fn a_place_that_was_not_reached_is_a_finding() {
    // A host that cannot contain a run never comes to its sandbox.
    let config = "[sandbox.bubblewrap]\npath = \"/nonexistent/bwrap\"\n";
    let out = drill(config, &["append.agent-started.after/read/both/work"]).ends(1);
    let findings = parts(&out).0[0]["findings"].to_string();
    assert!(findings.contains("append.agent-started.after:1:both was never reached"), "{findings}");
}

#[test]
fn a_drill_takes_no_name_that_does_not_exist_and_no_place_of_somebody_else() {
    let unknown = drill("", &["append.nothing.before"]).ends(2);
    assert!(unknown.err.contains("drill --list"), "{unknown:?}");
    drill("", &["--state-dir", "/nonexistent"]).ends(2).says("api.bad_request");
}

#[test]
fn the_list_of_a_drill_has_every_place_with_its_stories_and_what_a_story_is() {
    let all = drill("", &["--list"]).ends(0).json();
    let places: Vec<&Value> = all.iter().filter(|row| row.get("place").is_some()).collect();
    assert!(places.len() > 100, "{}", places.len());
    let stories: Vec<&str> = all.iter().filter_map(|row| row["story"].as_str()).collect();
    for place in places {
        let named = place["stories"].as_array().unwrap();
        assert!(!named.is_empty(), "{place}");
        assert!(named.iter().all(|n| stories.contains(&n.as_str().unwrap())), "{place}");
    }
}

#[test]
fn no_variable_and_no_file_arms_a_place_only_the_option_of_the_supervisor_does() {
    let dir = tempfile::Builder::new().prefix("atenea-e2e.").tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg("60").arg(program());
    command.arg("--state-dir").arg(dir.path().join("state"));
    command.args(["__supervisor", "--ready-fd", "0", "--crash", "start.locked"]);
    // `timeout` ends as its command did.
    assert_eq!(command.stdin(Stdio::null()).output().unwrap().status.signal(), Some(9));
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg("60").arg(program());
    command.arg("--state-dir").arg(dir.path().join("state")).arg("status");
    for name in ["ATENEA_CRASH", "ATENEA_DRILL", "CRASH", "FAILPOINTS"] {
        command.env(name, "start.locked");
    }
    host(&mut command).ends(0);
    let mut stop = Command::new(program());
    host(stop.arg("--state-dir").arg(dir.path().join("state")).arg("stop")).ends(0);
}
