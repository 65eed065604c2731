//! A private clone: work inside it, look at it, accept or drop it; the project itself is untouched.

use crate::support::{World, git, picture, repository};

const WRITE: &[&str] = &["--profile", "workspace-write"];

/// Runs a script that changes something and gives the run's id.
#[track_caller]
fn changed(world: &World, script: &str) -> String {
    world.shell(WRITE, script).ends(0);
    let run = world.last();
    assert_eq!(run["workspace"], "sealed", "{run}");
    run["run"].as_str().unwrap().to_owned()
}

#[test]
fn a_commit_inside_leaves_the_project_untouched_and_is_exported_to_one_ref() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    let before = picture(&work);
    let out = world.shell(WRITE, "echo two >> file && echo new > added && git add -A && git commit -q -m inside && git log --format=%an:%s -1");
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!(out.out, "Ada:inside\n");
    assert!(out.err.contains("2 files changed"), "no word of what to do next: {out:?}");
    assert_eq!(picture(&work), before);

    let run = world.last()["run"].as_str().unwrap().to_owned();
    let diff = world.sup(&["diff", &run]).ends(0).out;
    assert!(diff.contains("+two") && diff.contains("+new"), "{diff}");
    let exported = world.sup(&["--json", "export", &run]).ends(0).object();
    let name = format!("refs/atenea/{run}");
    assert_eq!(exported["ref"], name.as_str());
    assert_eq!(git(&work, &["rev-parse", &name]).trim(), exported["commit"].as_str().unwrap());
    assert_eq!(git(&work, &["show", &format!("{name}:file")]), "one\ntwo\n");
    assert_eq!(git(&work, &["show", &format!("{name}:added")]), "new\n");
    // Branch, index and working tree are as they were.
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    assert_eq!(
        git(&work, &["for-each-ref", "--format=%(refname)"]),
        format!("{name}\nrefs/heads/main\n")
    );
    git(&work, &["fsck", "--strict"]);
    git(&work, &["merge", "-q", "--ff", &name]);
    assert_eq!(world.status(&run)["workspace"], "exported");
}

#[test]
fn uncommitted_and_untracked_work_is_there_inside_and_ignored_is_not() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    std::fs::write(work.join("file"), "uncommitted\n").unwrap();
    std::fs::write(work.join("untracked"), "here\n").unwrap();
    std::fs::write(work.join(".gitignore"), "ignored\n").unwrap();
    std::fs::write(work.join("ignored"), "secret\n").unwrap();
    for profile in ["read", "workspace-write"] {
        let out =
            world.shell(&["--profile", profile], "cat file untracked; test ! -e ignored").ends(0);
        assert_eq!(out.out, "uncommitted\nhere\n", "{profile}");
    }
}

#[test]
fn export_goes_to_a_ref_of_ones_own_only_when_it_is_free() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    let run = changed(&world, "echo two >> file");
    world.sup(&["export", &run, "--ref", "refs/heads/main"]).ends(4).says("export.ref_moved");
    world.sup(&["export", &run, "--ref", "../../x"]).ends(4).says("export.bad_ref");
    assert_eq!(git(&work, &["show", "main:file"]), "one\n");
    // A refused export loses nothing.
    assert_eq!(world.status(&run)["workspace"], "sealed");
    world.sup(&["export", &run, "--ref", "refs/heads/agent"]).ends(0);
    assert_eq!(git(&work, &["show", "agent:file"]), "one\ntwo\n");
}

#[test]
fn export_writes_a_patch_that_applies() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    let run = changed(&world, "echo two >> file; printf '\\0\\1\\2' > binary; chmod +x binary");
    let patch = world.dir().join("changes.patch");
    world.sup(&["export", &run, "--patch", patch.to_str().unwrap()]).ends(0);
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    git(&work, &["apply", patch.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(work.join("file")).unwrap(), "one\ntwo\n");
    assert_eq!(std::fs::read(work.join("binary")).unwrap(), [0, 1, 2]);
}

#[test]
fn a_discarded_workspace_is_gone_and_nothing_can_be_exported() {
    let world = World::new();
    repository(&world.work());
    let run = changed(&world, "echo two >> file");
    let ws = world.run_dir(&run).join("ws");
    assert!(ws.exists(), "the work is not where the test looks");
    world.sup(&["discard", &run]).ends(0);
    assert!(!ws.exists());
    assert!(!world.run_dir(&run).join("base.git").exists());
    assert_eq!(world.status(&run)["workspace"], "discarded");
    world.sup(&["export", &run]).ends(4).says("export.nothing");
    world.sup(&["diff", &run]).ends(4).says("export.nothing");
}

#[test]
fn a_workspace_survives_a_stop_and_is_discarded_only_when_told() {
    let world = World::new();
    repository(&world.work());
    let run = changed(&world, "echo two >> file");
    world.sup(&["stop"]).ends(0);
    // C4: nobody gave it up.
    assert_eq!(world.status(&run)["workspace"], "sealed");
    world.sup(&["export", &run]).ends(0);
}

#[test]
fn a_run_that_changed_nothing_leaves_no_workspace() {
    let world = World::new();
    repository(&world.work());
    world.shell(WRITE, "cat file; git status --short").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let dir = world.run_dir(&run);
    // The deletion may take a while; a supervisor that stops finishes it first.
    world.sup(&["stop"]).ends(0);
    assert!(!dir.join("ws").exists() && !dir.join("base.git").exists());
    let status = world.status(&run);
    assert_eq!((&status["changed"], &status["workspace"]), (&0.into(), &"discarded".into()));
    world.sup(&["export", &run]).ends(4).says("export.nothing");
}

#[test]
fn a_commit_without_a_changed_file_is_work_too() {
    let world = World::new();
    repository(&world.work());
    changed(&world, "git commit -q --allow-empty -m empty");
}

#[test]
fn work_of_a_cancelled_and_of_a_failed_run_is_kept() {
    let world = World::new();
    repository(&world.work());
    world.shell(WRITE, "echo half >> file; exit 1").ends(1);
    assert_eq!(world.last()["workspace"], "sealed");
    let run = world.ready(WRITE, "echo half >> file; echo ready; sleep 1000");
    world.sup(&["export", &run]).ends(4).says("export.not_ended");
    world.sup(&["cancel", &run, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &run]).ends(137);
    assert!(world.sup(&["diff", &run]).ends(0).out.contains("+half"));
}

#[test]
fn two_runs_on_one_project_do_not_see_each_other() {
    let world = World::new();
    repository(&world.work());
    let first = world.ready(WRITE, "echo first > mine; echo ready; sleep 1000");
    world.shell(WRITE, "test ! -e mine && echo second > mine").ends(0);
    let second = world.last()["run"].as_str().unwrap().to_owned();
    world.sup(&["cancel", &first, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &first]).ends(137);
    assert!(world.sup(&["diff", &first]).ends(0).out.contains("+first"));
    assert!(world.sup(&["diff", &second]).ends(0).out.contains("+second"));
}
