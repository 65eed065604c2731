//! Where people start runs: every kind of directory.

use std::path::Path;

use crate::support::{World, git, picture, repository, unborn};

const WRITE: &str = "workspace-write";

/// Changes a file in a private clone from `dir` and exports it to the default ref.
#[track_caller]
fn change_and_export(world: &World, dir: &Path) -> String {
    let script = "echo two >> file && git add -A && git commit -q -m inside";
    world.sup_in(dir, &["run", "--profile", WRITE, "--", "sh", "-c", script]).ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let exported = world.sup(&["--json", "export", &run]).ends(0).object();
    exported["ref"].as_str().unwrap().to_owned()
}

#[test]
fn a_plain_directory_gives_a_patch_and_no_ref() {
    let world = World::new();
    std::fs::write(world.work().join("file"), "one\n").unwrap();
    let before = picture(&world.work());
    assert_eq!(world.shell(&[], "cat file").ends(0).out, "one\n");
    world.shell(&["--profile", WRITE], "echo two >> file").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert!(world.sup(&["diff", &run]).ends(0).out.contains("+two"));
    world.sup(&["export", &run]).ends(4).says("export.not_repository");
    let patch = world.sup(&["export", &run, "--patch", "-"]).ends(0).out;
    assert!(patch.contains("+two"), "{patch}");
    assert_eq!(picture(&world.work()), before);
}

#[test]
fn an_empty_directory_is_a_workspace_too() {
    let world = World::new();
    world.shell(&[], "test -z \"$(ls -A)\"").ends(0);
    world.shell(&["--profile", WRITE], "echo new > made").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert!(world.sup(&["diff", &run]).ends(0).out.contains("+new"));
}

#[test]
fn a_start_in_an_ignored_or_empty_directory_is_refused_and_says_what_to_do() {
    let world = World::new();
    repository(&world.work());
    std::fs::write(world.work().join(".gitignore"), "built\n").unwrap();
    for dir in ["built", "empty"] {
        let dir = world.work().join(dir);
        std::fs::create_dir(&dir).unwrap();
        world.sup_in(&dir, &["run", "--", "pwd"]).ends(125).says("fs.bad_workspace");
    }
    std::fs::create_dir(world.work().join("sub")).unwrap();
    std::fs::write(world.work().join("sub/file"), "x").unwrap();
    let inside = world.sup_in(&world.work().join("sub"), &["run", "--", "pwd"]).ends(0).out;
    assert_eq!(inside, format!("{}\n", world.work().join("sub").display()));
}

#[test]
fn a_path_with_spaces_and_a_newline_is_a_path() {
    let world = World::new();
    let dir = world.dir().join("two words\nand a line");
    repository(&dir);
    let pwd = world.sup_in(&dir, &["run", "--", "sh", "-c", "pwd"]).ends(0).out;
    assert_eq!(pwd, format!("{}\n", dir.display()));
    let name = change_and_export(&world, &dir);
    assert_eq!(git(&dir, &["show", &format!("{name}:file")]), "one\ntwo\n");
}

#[test]
fn a_repository_without_a_commit_gets_its_first_one() {
    let world = World::new();
    unborn(&world.work());
    std::fs::write(world.work().join("file"), "one\n").unwrap();
    let name = change_and_export(&world, &world.work());
    assert_eq!(git(&world.work(), &["show", &format!("{name}:file")]), "one\ntwo\n");
    // HEAD is still unborn.
    assert_eq!(git(&world.work(), &["status", "--porcelain"]), "?? file\n");
}

#[test]
fn a_linked_worktree_exports_into_its_repository() {
    let world = World::new();
    let main = world.dir().join("main");
    repository(&main);
    let linked = world.dir().join("linked");
    git(&main, &["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    std::fs::write(linked.join("file"), "side\n").unwrap();
    git(&linked, &["commit", "-q", "-am", "side"]);
    let name = change_and_export(&world, &linked);
    assert_eq!(git(&main, &["show", &format!("{name}:file")]), "side\ntwo\n");
    assert_eq!(git(&main, &["status", "--porcelain"]), "");
    assert_eq!(git(&linked, &["status", "--porcelain"]), "");
}

#[test]
fn a_repository_of_another_user_gets_nothing_that_belongs_to_root() {
    assert!(rustix::process::geteuid().is_root(), "this test changes owners: run it as root");
    let world = World::new();
    let work = world.work();
    repository(&work);
    let other = 654_321;
    let mut all = vec![work.clone()];
    all.extend(picture(&work).into_iter().map(|(path, ..)| path));
    for path in &all {
        std::os::unix::fs::lchown(path, Some(other), Some(other)).unwrap();
    }
    // Its owner has to reach it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(world.dir(), mode).unwrap();
    let name = change_and_export(&world, &work);
    assert_eq!(git(&work, &["show", &format!("{name}:file")]), "one\ntwo\n");
    // Nothing of the run became theirs: what is in its store was not all exported.
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let kept = picture(&world.run_dir(&run));
    assert!(kept.iter().any(|(path, ..)| path.ends_with("base.git/config")));
    for (path, ..) in kept {
        let owner = std::os::unix::fs::MetadataExt::uid(&path.symlink_metadata().unwrap());
        assert_ne!(owner, other, "{}", path.display());
    }
    // S6: objects and ref were written with the rights of the repository's owner.
    for (path, ..) in picture(&work) {
        let owner = std::os::unix::fs::MetadataExt::uid(&path.symlink_metadata().unwrap());
        assert_eq!(owner, other, "{}", path.display());
    }
}

#[test]
fn a_run_started_in_a_sub_directory_starts_there_and_sees_the_whole_project() {
    let world = World::new();
    repository(&world.work());
    let below = world.work().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    std::fs::write(below.join("deep"), "deep\n").unwrap();
    for profile in ["read", WRITE] {
        let script = "pwd; cat deep ../../file";
        let args = ["run", "--profile", profile, "--", "sh", "-c", script];
        let out = world.sup_in(&below, &args).ends(0).out;
        assert_eq!(out, format!("{}\ndeep\none\n", below.display()), "{profile}");
    }
}

#[test]
fn files_of_every_kind_arrive_as_they_are() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let work = world.work();
    repository(&work);
    std::fs::write(work.join(std::ffi::OsStr::from_bytes(b"caf\xe9")), "latin\n").unwrap();
    std::fs::write(work.join("tool"), "#!/bin/sh\necho tool\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(work.join("tool"), mode).unwrap();
    std::os::unix::fs::symlink("file", work.join("link")).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", work.join("escape")).unwrap();
    let script = "cat caf*; ./tool; readlink link; cat link; cat escape 2>/dev/null || echo hidden";
    for profile in ["read", WRITE] {
        let out = world.shell(&["--profile", profile], script).ends(0).out;
        assert_eq!(out, "latin\ntool\nfile\none\nhidden\n", "{profile}");
    }
}

#[test]
fn a_submodule_is_there_and_a_change_inside_it_is_not_silently_lost() {
    let world = World::new();
    let part = world.dir().join("part");
    repository(&part);
    let work = world.work();
    repository(&work);
    let url = part.to_str().unwrap();
    let add = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", url, "part"];
    git(&work, &add);
    git(&work, &["commit", "-q", "-m", "part"]);
    for profile in ["read", WRITE] {
        let out = world.shell(&["--profile", profile], "cat part/file").ends(0).out;
        assert_eq!(out, "one\n", "{profile}");
    }
    world.shell(&["--profile", WRITE], "echo two >> part/file").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    world.sup(&["export", &run]).ends(4).says("export.submodule");
    let patch = world.sup(&["export", &run, "--patch", "-"]).ends(0).out;
    assert!(patch.contains("+two"), "{patch}");
}
