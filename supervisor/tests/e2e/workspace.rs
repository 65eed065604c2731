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
    // Nor does a second one that is refused undo the first.
    world.sup(&["export", &run, "--ref", "../../x"]).ends(4).says("export.bad_ref");
    world.sup(&["export", &run, "--ref", "refs/heads/bad..ref"]).ends(4).says("export.bad_ref");
    world.sup(&["export", &run, "--ref", "refs/heads/main"]).ends(4).says("export.ref_moved");
    assert_eq!(world.status(&run)["workspace"], "exported");
}

#[test]
fn export_writes_a_patch_that_applies() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    let run = changed(&world, "echo two >> file; printf '\\0\\1\\2' > binary; chmod +x binary");
    let patch = world.dir().join("changes.patch");
    // A file that is there is kept, and nothing is exported: the work can be exported elsewhere.
    std::fs::write(&patch, "kept").unwrap();
    let refused = world.sup(&["export", &run, "--patch", patch.to_str().unwrap()]).ends(4);
    assert!(refused.err.contains("exists already"), "{refused:?}");
    assert!(refused.err.contains("choose another file"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&patch).unwrap(), "kept");
    assert_eq!(world.status(&run)["workspace"], "sealed");
    std::fs::remove_file(&patch).unwrap();
    world.sup(&["export", &run, "--patch", patch.to_str().unwrap()]).ends(0);
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    let object = world.sup(&["--json", "export", &run, "--patch", "-"]).ends(0).object();
    assert_eq!(object["patch"], std::fs::read_to_string(&patch).unwrap());
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
    let refused = world.sup(&["export", &run]).ends(4).says("export.nothing");
    refused.tells("changed nothing");
    assert_eq!(world.sup(&["diff", &run]).ends(0).tells("changed nothing").out, "");
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

#[test]
fn work_that_started_from_uncommitted_files_can_be_taken_by_the_command_that_is_printed() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    std::fs::write(work.join("file"), "uncommitted\n").unwrap();
    std::fs::write(work.join("untracked"), "the user's own\n").unwrap();
    let run = changed(&world, "echo two >> file; echo new > added");
    let name = format!("refs/atenea/{run}");
    let diff = world.sup(&["diff", &run]).ends(0).out;
    let exported = world.sup(&["export", &run]).ends(0);
    let below = format!("{name}^");
    let between = ["diff", "--full-index", "--no-renames", &below, &name];
    assert_eq!(git(&work, &between), diff, "the agent's commit is what diff shows");
    assert_eq!(
        git(&work, &["rev-parse", &format!("{name}^^")]),
        git(&work, &["rev-parse", "main"])
    );
    let take = exported.err.split_once("take: ").unwrap().1.lines().next().unwrap().to_owned();
    assert_eq!(take, format!("git diff --binary {name}^ {name} | git apply"));
    // As a person would: it is pasted into a shell.
    let shell = std::process::Command::new("sh").args(["-ec", &take]).current_dir(&work).output();
    assert!(shell.as_ref().is_ok_and(|out| out.status.success()), "{shell:?}");
    assert_eq!(std::fs::read_to_string(work.join("file")).unwrap(), "uncommitted\ntwo\n");
    assert_eq!(std::fs::read_to_string(work.join("added")).unwrap(), "new\n");
    // Control: git does not merge over files that are not committed.
    let mut merge = std::process::Command::new("git");
    let merged = merge.args(["merge", &name]).current_dir(&work).output().unwrap();
    assert!(!merged.status.success(), "{merged:?}");
}

#[test]
fn commits_branches_and_tags_that_no_export_carries_are_named() {
    let world = World::new();
    repository(&world.work());
    let script = "git checkout -q -b topic && echo z > z && git add z && git commit -q -m topic \
                  && git checkout -q main && git tag t1 && echo two >> file";
    let run = changed(&world, script);
    let words = "not exported, only the final files: refs/heads/topic, refs/tags/t1";
    let diff = world.sup(&["diff", &run]).ends(0).tells(words);
    assert!(!diff.out.contains("topic"), "the diff itself stays one: {diff:?}");
    world.sup(&["export", &run]).ends(0).tells(words);
}

#[test]
fn ignored_files_and_changes_below_git_are_told_apart_from_what_is_exported() {
    let world = World::new();
    let work = world.work();
    repository(&work);
    std::fs::write(work.join(".gitignore"), "built\n*.o\n").unwrap();
    let out = world.shell(WRITE, "echo x > built; echo x > a.o").ends(0);
    assert!(out.err.contains("2 ignored files changed\n  look: atenea-sup "), "{out:?}");
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let diff = world.sup(&["diff", &run]).ends(0);
    assert_eq!(diff.out, "");
    assert!(diff.err.contains("2 ignored files changed; they are not exported"), "{diff:?}");
    let json = world.sup(&["--json", "diff", &run]).ends(0).object();
    let parts = serde_json::json!({ "files": 0, "refused": 0, "ignored": 2, "refs": 0 });
    assert_eq!(json["changes"], parts);
    assert_eq!(world.status(&run)["changes"], parts);
    // C4: it is kept all the same; an export of nothing is none.
    world.sup(&["export", &run]).ends(4).says("export.nothing");
    assert_eq!(world.status(&run)["workspace"], "sealed");

    let out = world.shell(WRITE, "git config some.key value").ends(0);
    assert!(out.err.contains("no file changed, only something below .git"), "{out:?}");
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let diff = world.sup(&["diff", &run]).ends(0).tells("below .git");
    assert_eq!(diff.out, "");
    let out = world.shell(WRITE, "echo x > a.o; echo two >> file").ends(0);
    assert!(out.err.contains("1 file changed, 1 ignored file changed\n"), "{out:?}");
}

#[test]
fn a_repository_inside_and_a_name_that_deceives_are_named_for_review() {
    let world = World::new();
    repository(&world.work());
    let run = changed(
        &world,
        r#"mkdir -p deep/x/objects deep/x/refs; : > deep/x/objects/k; : > deep/x/refs/k
           echo 'ref: refs/heads/m' > deep/x/HEAD
           printf '[core]\n\tfsmonitor = "false"\n' > deep/x/config
           : > "$(printf 'rtl\342\200\256gpj.exe')"; : > "$(printf 'caf\351')"
           : > "$(printf 'two\nlines')""#,
    );
    let diff = world.sup(&["diff", &run]).ends(0);
    for line in [
        "review: deep/x/HEAD (embedded-repository)",
        "review: deep/x/config (embedded-repository)",
        "review: rtl\\u{202e}gpj.exe (deceptive-name)",
        "review: caf\\xe9 (deceptive-name)",
        "review: two\\nlines (deceptive-name)",
    ] {
        assert!(diff.err.lines().any(|said| said == line), "{line}: {diff:?}");
    }
    assert!(!format!("{}{}", diff.out, diff.err).contains('\u{202e}'), "{diff:?}");
}

#[test]
fn an_export_to_a_directory_that_is_gone_says_so() {
    let world = World::new();
    let project = world.work().join("project");
    repository(&project);
    let out =
        world.sup_in(&project, &["run", "--profile", "workspace-write", "--", "touch", "new"]);
    out.ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    std::fs::remove_dir_all(&project).unwrap();
    let out = world.sup(&["export", &run]).ends(3).says("fs.not_found");
    assert!(out.err.contains(project.to_str().unwrap()), "{out:?}");
}
