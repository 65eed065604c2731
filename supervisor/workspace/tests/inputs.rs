//! The kinds of directories people start runs from.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use atenea_core::Code;
use atenea_workspace::export::Message;
use atenea_workspace::{
    Base, CloneOptions, Filter, NoProgress, RawPath, SnapshotOptions, SourceKind, clone_private,
    identity, inspect, is_unchanged, snapshot,
};
use support::{
    Bench, ada, bench, bench_named, chmod, export_ref, git, git_command, name, picture, raw, write,
};

fn read(dir: &RawPath, path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(dir.as_path().join(path)).unwrap()
}

fn assert_same_status(bench: &Bench) {
    let status = ["status", "--porcelain=v2", "--branch", "-z"];
    assert_eq!(git(&bench.ws, &status), git(&bench.project, &status));
}

fn message() -> Message {
    Message { text: "m".to_owned(), seconds: 1 }
}

#[test]
fn a_snapshot_is_the_working_state_read_only() {
    let bench = bench().repository();
    bench.write("README.md", "modified\n");
    bench.write("staged", "staged\n");
    git(&bench.project, &["add", "staged"]);
    bench.write(name(b"caf\xe9\n"), "untracked\n");
    bench.write("target/out", "ignored\n");
    bench.write("x.log", "ignored\n");
    std::fs::remove_file(bench.project.join("src/main.rs")).unwrap();
    let before = picture(&bench.project);
    let snapshot = bench.snapshot();
    assert_eq!(picture(&bench.project), before);
    let at = snapshot.path.as_path();
    assert_eq!(read(&snapshot.path, "README.md"), b"modified\n");
    assert_eq!(read(&snapshot.path, name(b"caf\xe9\n")), b"untracked\n");
    assert_eq!(read(&snapshot.path, "staged"), b"staged\n");
    for absent in ["src", "target", "x.log", ".git"] {
        assert!(!at.join(absent).exists(), "{absent}");
    }
    let mode = |path: &str| at.join(path).symlink_metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("run.sh"), mode("README.md"), mode("")), (0o555, 0o444, 0o555));
    assert_eq!(std::fs::read_link(at.join("link")).unwrap(), Path::new("README.md"));
    let again = bench.snapshot();
    assert_eq!((&again.tree, &again.path), (&snapshot.tree, &snapshot.path));
    assert!(snapshot.newly_made && !again.newly_made);
}

#[test]
fn the_tree_id_is_the_one_git_computes() {
    let bench = bench().repository();
    bench.write("a-b", "1");
    bench.write("a.c", "2");
    bench.write("a/x/y", "3");
    bench.write("a0", "4");
    bench.commit("second");
    let expected = git(&bench.project, &["rev-parse", "HEAD^{tree}"]);
    assert_eq!(bench.snapshot().tree, expected.trim());
    let clone = bench.clone();
    assert_eq!(
        (clone.base_tree.as_str(), clone.raw_tree.as_str()),
        (expected.trim(), expected.trim())
    );
}

#[test]
fn the_clone_shows_the_status_the_user_has() {
    let bench = bench().repository();
    for n in 0..4 {
        bench.write(format!("f{n}"), format!("{n}\n"));
    }
    bench.commit("second");
    bench.write("f0", "modified\n");
    bench.write("f1", "staged\n");
    git(&bench.project, &["add", "f1"]);
    bench.write("f1", "staged, then modified\n");
    std::fs::remove_file(bench.project.join("f2")).unwrap();
    git(&bench.project, &["rm", "-q", "--cached", "f3"]);
    bench.write("new file", "untracked\n");
    bench.write("announced", "intent to add\n");
    git(&bench.project, &["add", "-N", "announced"]);
    chmod(&bench.project.join("README.md"), 0o755);
    bench.write(name(b"\xff\xfe"), "x");
    bench.write("target/ignored", "x");
    bench.clone();
    assert_same_status(&bench);
    assert_eq!(git(&bench.ws, &["show", ":f1"]), "staged\n");
    assert_eq!(
        git(&bench.ws, &["log", "--format=%H"]),
        git(&bench.project, &["log", "--format=%H"])
    );
    git(&bench.ws, &["fsck", "--strict"]);
    assert!(is_unchanged(&bench.ws, &bench.store).unwrap());
    git(&bench.ws, &["checkout", "-q", "-b", "topic"]);
    assert!(!is_unchanged(&bench.ws, &bench.store).unwrap(), "a new branch is work");
}

#[test]
fn a_change_as_young_as_the_index_is_seen_inside_too() {
    let bench = bench().repository();
    bench.write("racy", "aaaa\n");
    git(&bench.project, &["add", "racy"]);
    git(&bench.project, &["commit", "-q", "-m", "racy"]);
    // Same size, same second: only the content tells.
    let time = bench.project.join(".git/index").metadata().unwrap().modified().unwrap();
    bench.write("racy", "bbbb\n");
    for path in [".git/index", "racy"] {
        let file = std::fs::File::options().write(true).open(bench.project.join(path)).unwrap();
        file.set_modified(time).unwrap();
    }
    let clone = bench.clone();
    assert!(git(&bench.ws, &["status", "--porcelain"]).contains("M racy"));
    let base = git(&bench.store, &["cat-file", "blob", &format!("{}:racy", clone.base_tree)]);
    assert_eq!(base, "bbbb\n");
}

#[test]
fn an_unborn_head_is_a_repository_without_commits() {
    let bench = bench();
    git(&bench.project, &["init", "-q", "-b", "trunk"]);
    bench.write("a", "1\n");
    bench.write("b", "2\n");
    git(&bench.project, &["add", "a"]);
    let clone = bench.clone();
    assert_eq!(clone.base_commit, None);
    assert_same_status(&bench);
    bench.edit("c", "3\n");
    let sealed = bench.seal();
    let source = bench.source();
    let refused = export_ref(
        &bench.store,
        &sealed,
        &source,
        &raw("refs/heads/trunk"),
        None,
        &message(),
        &ada(),
    );
    assert_eq!(refused.unwrap_err().code, Code::ExportBadRef, "the unborn branch is checked out");
    let name = raw("refs/atenea/x");
    let done = export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada()).unwrap();
    let parents = git(&bench.project, &["log", "--format=%P", &done.commit]);
    assert_eq!(parents.trim(), done.base.as_deref().unwrap(), "the user's files, then the agent's");
    let listed = |commit: &str| git(&bench.project, &["ls-tree", "-r", "--name-only", commit]);
    assert_eq!(
        (listed(parents.trim()), listed(&done.commit)),
        ("a\nb\n".into(), "a\nb\nc\n".into())
    );
    let options = CloneOptions { base: Base::Head, ..CloneOptions::default() };
    let (ws, store) = (bench.path().join("w2"), bench.path().join("s2"));
    let refused = clone_private(&source, &ws, &store, &bench.cache, &options, &mut NoProgress);
    assert_eq!(refused.unwrap_err().code, Code::FsBadWorkspace);
}

#[test]
fn a_linked_worktree_works_as_the_starting_directory() {
    let bench = bench().repository();
    git(&bench.project, &["worktree", "add", "-q", "-b", "side", "../side"]);
    let bench = Bench { project: bench.path().join("side"), ..bench };
    bench.write("only here", "x\n");
    let source = inspect(&bench.project.join("src"), None).unwrap();
    assert_eq!(source.root.as_path(), bench.project);
    assert_eq!(source.branch, Some(raw("side")));
    bench.clone();
    assert_same_status(&bench);
    assert!(bench.ws.join(".git").is_dir());
    bench.edit("only here", "y\n");
    let name = raw("refs/atenea/x");
    let sealed = bench.seal();
    export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada()).unwrap();
    let shown = git(&bench.project, &["show", "refs/atenea/x:only here"]);
    assert_eq!(shown, "y\n");
    let refused = raw("refs/heads/main");
    let refused = export_ref(&bench.store, &sealed, &source, &refused, None, &message(), &ada());
    assert_eq!(refused.unwrap_err().code, Code::ExportBadRef, "checked out in the main work tree");
}

#[test]
fn submodules_come_with_their_working_state_and_change_only_by_patch() {
    let library = bench().repository();
    let bench = bench().repository();
    let from = library.project.to_str().unwrap().to_owned();
    git(&bench.project, &["submodule", "add", "-q", &from, "lib"]);
    bench.commit("with a submodule");
    bench.write("lib/README.md", "modified in the submodule\n");
    bench.write("lib/target/ignored", "x\n");
    let snapshot = bench.snapshot();
    assert_eq!(read(&snapshot.path, "lib/README.md"), b"modified in the submodule\n");
    assert!(!snapshot.path.as_path().join("lib/target").exists());
    assert!(!snapshot.path.as_path().join("lib/.git").exists());
    let clone = bench.clone();
    assert_eq!(std::fs::read(bench.ws.join("lib/src/main.rs")).unwrap(), b"fn main() {}\n");
    let listed = git(&bench.store, &["ls-tree", &clone.base_tree, "lib"]);
    assert!(listed.starts_with("160000 commit "), "{listed}");
    bench.edit("top", "x\n");
    assert_eq!(bench.seal().refused, []);
    bench.edit("lib/README.md", "changed by the agent\n");
    let sealed = bench.seal();
    assert_eq!(sealed.refused_total, 1);
    let left_out: Vec<Code> = sealed.left_out(false).map(|refused| refused.code).collect();
    assert_eq!((left_out, sealed.left_out(true).count()), (vec![Code::ExportSubmodule], 0));
    let patch = bench.path().join("p");
    atenea_workspace::export_patch(&bench.store, &sealed, &patch).unwrap();
    assert!(std::fs::read_to_string(patch).unwrap().contains("+changed by the agent"));
}

#[test]
fn a_submodule_that_was_never_filled_is_not_shown_as_deleted() {
    let library = bench().repository();
    let origin = bench().repository();
    let from = library.project.to_str().unwrap().to_owned();
    git(&origin.project, &["submodule", "add", "-q", &from, "lib"]);
    origin.commit("with a submodule");
    let bench = bench();
    let url = origin.project.to_str().unwrap();
    git(&bench.path(), &["clone", "-q", "--no-local", url, "fresh"]);
    let bench = Bench { project: bench.path().join("fresh"), ..bench };
    for base in [Base::WorkingTree, Base::Head] {
        let other = support::bench();
        let bench = Bench { project: bench.project.clone(), ..other };
        let clone = bench.clone_with(&CloneOptions { base, ..CloneOptions::default() });
        assert_eq!(git(&bench.ws, &["status", "--porcelain"]), "");
        assert_eq!(bench.seal().result_tree, clone.base_tree);
    }
}

/// Changes a file each time the copy reports progress: while it is being read.
fn snapshot_while_it_changes(times: usize) -> Result<atenea_workspace::Snapshot, Code> {
    let bench = bench();
    let path = bench.project.join("large");
    std::fs::write(&path, vec![1_u8; 9 << 20]).unwrap();
    let mut left = times;
    let mut report = |progress: atenea_workspace::Progress| {
        if progress.bytes > 0 && progress.done == 0 && left > 0 {
            left -= 1;
            let file = std::fs::File::options().append(true).open(&path).unwrap();
            file.set_len(file.metadata().unwrap().len() + 1).unwrap();
        }
    };
    let options = SnapshotOptions::default();
    snapshot(&bench.source(), &bench.cache, &options, &mut report).map_err(|refusal| refusal.code)
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_once_more_and_then_refused() {
    assert_eq!(snapshot_while_it_changes(1).unwrap().bytes, (9 << 20) + 1);
    assert_eq!(snapshot_while_it_changes(usize::MAX).unwrap_err(), Code::FsChanged);
}

#[test]
fn an_inner_repository_that_nobody_added_comes_as_files() {
    let bench = bench().repository();
    let inner = bench.project.join("inner");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, &["init", "-q"]);
    write(&inner.join("f"), "x\n");
    write(&inner.join(".gitignore"), "*.o\n");
    write(&inner.join("a.o"), "x\n");
    let snapshot = bench.snapshot();
    assert_eq!(read(&snapshot.path, "inner/f"), b"x\n");
    assert!(!snapshot.path.as_path().join("inner/a.o").exists());
    assert!(!snapshot.path.as_path().join("inner/.git").exists());
}

#[test]
fn paths_with_blanks_newlines_and_any_bytes_work() {
    for dir in ["with blank", "line\nbreak\n", "-dash", "\"quo'te\\", "a:b"] {
        let bench = bench_named(dir).repository();
        bench.write(name(b"\xff \n"), "x\n");
        assert_eq!(bench.source().kind, SourceKind::Repository, "{dir:?}");
        bench.snapshot();
        bench.clone();
        assert_same_status(&bench);
        bench.edit(name(b"\xfe \n"), "x\n");
        let sealed = bench.seal();
        let (source, target) = (bench.source(), raw("refs/atenea/x"));
        export_ref(&bench.store, &sealed, &source, &target, None, &message(), &ada()).unwrap();
    }
    let bench = bench();
    let odd = bench.project.join(name(b"\xe9\xff"));
    std::fs::create_dir(&odd).unwrap();
    let bench = Bench { project: odd, ..bench }.repository();
    let source = bench.source();
    let json = serde_json::to_string(&source).unwrap();
    assert_eq!(serde_json::from_str::<atenea_workspace::Source>(&json).unwrap(), source);
    bench.snapshot();
    bench.clone();
    assert_same_status(&bench);
}

#[test]
fn a_plain_directory_and_an_empty_one_work() {
    let bench = bench();
    let empty = bench.snapshot();
    assert_eq!((empty.files, empty.tree.as_str()), (0, "4b825dc642cb6eb9a060e54bf8d69288fbee4904"));
    bench.write("a/b", "x\n");
    bench.write(".gitignore", "a/\n");
    std::fs::create_dir_all(bench.project.join("d/e")).unwrap();
    symlink("/etc", bench.project.join("out")).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(bench.project.join("f"))
            .status()
            .unwrap()
            .success()
    );
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.files, 3, "ignore rules mean nothing without a repository");
    assert_eq!((snapshot.skipped_total, &snapshot.skipped[0].path), (1, &raw("f")));
    assert!(snapshot.path.as_path().join("d/e").is_dir());
    assert_eq!(std::fs::read_link(snapshot.path.as_path().join("out")).unwrap(), Path::new("/etc"));
    let clone = bench.clone();
    assert_eq!((clone.files, clone.skipped_total), (3, 1));
    assert!(is_unchanged(&bench.ws, &bench.store).unwrap());
    bench.edit("a/c", "x\n");
    let sealed = bench.seal();
    assert_eq!((sealed.changes.added, sealed.changes.ignored), (1, 0));
    let target = raw("refs/atenea/x");
    let refused =
        export_ref(&bench.store, &sealed, &bench.source(), &target, None, &message(), &ada());
    assert_eq!(refused.unwrap_err().code, Code::ExportNotRepository);
}

#[test]
fn a_directory_of_projects_keeps_their_repositories_and_exports_around_them() {
    let bench = bench();
    let inner = bench.project.join("one");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, &["init", "-q", "-b", "main"]);
    write(&inner.join("f"), "x\n");
    git(&inner, &["add", "-A"]);
    git(&inner, &["commit", "-q", "-m", "first"]);
    bench.clone();
    assert!(is_unchanged(&bench.ws, &bench.store).unwrap());
    let ws = bench.ws.join("one");
    bench.edit("one/f", "y\n");
    git(&ws, &["commit", "-q", "-a", "-m", "inside"]);
    let sealed = bench.seal();
    assert_eq!((sealed.refused.len(), sealed.changes.modified), (0, 1));
    bench.edit("one/f", "x\n");
    assert!(!is_unchanged(&bench.ws, &bench.store).unwrap(), "a commit inside is work");
}

#[test]
fn a_large_file_is_copied_whole() {
    let bench = bench().repository();
    let mut content = vec![0_u8; 10 << 20];
    for (n, chunk) in content.chunks_mut(4).enumerate() {
        chunk.copy_from_slice(&u32::try_from(n).unwrap().to_le_bytes());
    }
    bench.write("large.bin", &content);
    let snapshot = bench.snapshot();
    assert!(read(&snapshot.path, "large.bin") == content);
    let id = git(&bench.project, &["hash-object", "large.bin"]);
    bench.clone();
    assert!(std::fs::read(bench.ws.join("large.bin")).unwrap() == content);
    content.push(1);
    bench.edit("large.bin", &content);
    let sealed = bench.seal();
    let (source, target) = (bench.source(), raw("refs/atenea/x"));
    export_ref(&bench.store, &sealed, &source, &target, None, &message(), &ada()).unwrap();
    assert_ne!(git(&bench.project, &["rev-parse", "refs/atenea/x:large.bin"]), id);
    let size = git(&bench.project, &["cat-file", "-s", "refs/atenea/x:large.bin"]);
    assert_eq!(size.trim(), content.len().to_string());
}

#[test]
fn a_repository_of_another_uid_is_read_all_the_same() {
    assert!(rustix::process::geteuid().is_root(), "only root can make such a repository");
    let bench = bench().repository();
    let status = std::process::Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(&bench.project)
        .status()
        .unwrap();
    assert!(status.success());
    // The control: plain git refuses it.
    let mut plain = std::process::Command::new("git");
    plain.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "/nonexistent");
    assert!(!plain.arg("status").current_dir(&bench.project).output().unwrap().status.success());
    let source = bench.source();
    assert_eq!((source.kind, source.owner), (SourceKind::Repository, 65_534));
    bench.snapshot();
    bench.clone();
}

#[test]
fn everything_in_the_clone_belongs_to_the_uid_it_is_made_for() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can give files away: the request is refused, not ignored.
        let bench = bench().repository();
        std::fs::create_dir_all(bench.ws.parent().unwrap()).unwrap();
        let options = CloneOptions { owner: Some((0, 0)), ..CloneOptions::default() };
        let (source, cache) = (bench.source(), &bench.cache);
        let refused =
            clone_private(&source, &bench.ws, &bench.store, cache, &options, &mut NoProgress);
        assert_eq!(refused.unwrap_err().code, Code::FsNotYours);
        return;
    }
    let bench = bench().repository();
    symlink("/etc/passwd", bench.project.join("absolute")).unwrap();
    let before = Path::new("/etc/passwd").metadata().unwrap().uid();
    bench.clone_with(&CloneOptions { owner: Some((64_000, 64_001)), ..CloneOptions::default() });
    for path in picture(&bench.ws).keys() {
        let meta = path.symlink_metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (64_000, 64_001), "{path:?}");
    }
    assert_eq!(Path::new("/etc/passwd").metadata().unwrap().uid(), before);
    chmod(&bench.ws.join("run.sh"), 0o4755);
    std::fs::write(bench.ws.join("foreign"), "x").unwrap();
    let back = atenea_workspace::give_to(&bench.ws, 0, 0, Some(64_000)).unwrap();
    assert_eq!((back.setuid, back.foreign), (vec![raw("run.sh")], 1));
}

#[test]
fn a_shallow_repository_stays_shallow() {
    let origin = bench().repository();
    origin.write("second", "x\n");
    origin.commit("second");
    let bench = bench();
    let url = format!("file://{}", origin.project.display());
    git(&bench.path(), &["clone", "-q", "--depth", "1", &url, "shallow"]);
    let bench = Bench { project: bench.path().join("shallow"), ..bench };
    bench.clone();
    assert_eq!(git(&bench.ws, &["rev-list", "--count", "HEAD"]).trim(), "1");
    git(&bench.ws, &["fsck"]);
    bench.edit("third", "x\n");
    let (source, target) = (bench.source(), raw("refs/atenea/x"));
    export_ref(&bench.store, &bench.seal(), &source, &target, None, &message(), &ada()).unwrap();
    git(&bench.project, &["fsck"]);
}

#[test]
fn a_detached_head_stays_detached() {
    let bench = bench().repository();
    git(&bench.project, &["checkout", "-q", "--detach"]);
    assert_eq!(bench.source().branch, None);
    bench.clone();
    assert_same_status(&bench);
}

#[test]
fn a_ceiling_shows_only_its_files_and_no_history() {
    let bench = bench().repository();
    bench.write("secret", "s\n");
    let secret = bench.commit("secret");
    bench.write("src/lib.rs", "// untracked\n");
    bench.write("README.md", "modified outside of the ceiling\n");
    let filter = Filter { files: vec!["src/**".to_owned()], ..Filter::default() };
    let options = SnapshotOptions { filter: filter.clone(), ..SnapshotOptions::default() };
    let snapshot = bench.snapshot_with(&options);
    assert_eq!(snapshot.files, 2);
    assert!(!snapshot.path.as_path().join("secret").exists());
    bench.clone_with(&CloneOptions { filter, ..CloneOptions::default() });
    assert!(!bench.ws.join("secret").exists());
    assert_eq!(git(&bench.ws, &["rev-list", "--count", "--all"]).trim(), "1");
    assert_eq!(git(&bench.ws, &["status", "--porcelain"]), "");
    let there = git_command(&bench.ws).args(["cat-file", "-e", &secret]).status().unwrap();
    assert!(!there.success());
    bench.edit("src/main.rs", "fn main() { }\n");
    let sealed = bench.seal();
    assert_eq!((sealed.refused.len(), sealed.changes.modified), (0, 1));
    let (source, target) = (bench.source(), raw("refs/atenea/x"));
    export_ref(&bench.store, &sealed, &source, &target, None, &message(), &ada()).unwrap();
    let changed = git(&bench.project, &["diff", "--name-only", "HEAD", "refs/atenea/x"]);
    assert_eq!(
        changed, "src/lib.rs\nsrc/main.rs\n",
        "what is beyond the ceiling stays as committed"
    );
}

#[test]
fn ignored_files_stay_out_unless_the_manifest_names_them() {
    let bench = bench().repository();
    bench.write("target/out", "x\n");
    bench.write("target/keep/a", "x\n");
    let filter = Filter { include_ignored: vec!["target/keep/**".to_owned()], ..Filter::default() };
    bench.clone_with(&CloneOptions { filter, ..CloneOptions::default() });
    assert!(bench.ws.join("target/keep/a").exists() && !bench.ws.join("target/out").exists());
    bench.edit("target/debug/b", "x\n");
    bench.edit("target/debug/.git/config", "x\n");
    bench.edit("target/keep/b", "x\n");
    bench.edit("x.log", "x\n");
    // The agent's own rules do not count before somebody accepted them (S7).
    bench.edit(".gitignore", "*\n");
    bench.edit("hidden?", "x\n");
    let sealed = bench.seal();
    assert_eq!(sealed.refused, []);
    let changes = sealed.changes;
    assert_eq!((changes.added, changes.modified, changes.ignored), (2, 1, 3));
    assert!(!is_unchanged(&bench.ws, &bench.store).unwrap());
}

#[test]
fn the_users_own_ignore_file_counts() {
    let bench = bench().repository();
    let home = bench.path().join("home");
    write(&home.join(".config/git/ignore"), "*.swp\n");
    write(&home.join(".gitconfig"), "[user]\n\tname = Grace\n\temail = g@example.org\n");
    let source = bench.source();
    let identity = identity(&source, Some(&home)).unwrap();
    assert_eq!(identity.name.as_deref(), Some("Grace"));
    bench.write("a.swp", "x\n");
    let options =
        SnapshotOptions { excludes: identity.excludes.clone(), ..SnapshotOptions::default() };
    let with = snapshot(&source, &bench.cache, &options, &mut NoProgress).unwrap();
    assert_eq!(with.files + 1, bench.snapshot().files);
    bench.clone_with(&CloneOptions { identity, ..CloneOptions::default() });
    assert!(!bench.ws.join("a.swp").exists());
    bench.edit("b.swp", "x\n");
    assert_eq!(git(&bench.ws, &["status", "--porcelain"]), "");
    assert_eq!(bench.seal().changes.ignored, 1);
}

#[test]
fn unchanged_files_keep_their_recorded_entry_whatever_their_bytes_are() {
    let bench = bench().repository();
    git(&bench.project, &["config", "core.autocrlf", "true"]);
    git(&bench.project, &["config", "filter.up.clean", "tr a-z A-Z"]);
    bench.write(".gitattributes", "*.up filter=up\n");
    bench.write("a.up", "filtered\n");
    bench.write("crlf.txt", "one\r\ntwo\r\n");
    bench.commit("second");
    let recorded = |path: &str| git(&bench.project, &["rev-parse", &format!("HEAD:{path}")]);
    let (up, crlf) = (recorded("a.up"), recorded("crlf.txt"));
    assert_ne!(git(&bench.project, &["hash-object", "--no-filters", "a.up"]), up);
    // Older than the index, so that the index can speak for it without reading it.
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    for path in ["a.up", "crlf.txt"] {
        let file = std::fs::File::options().write(true).open(bench.project.join(path)).unwrap();
        file.set_modified(old).unwrap();
    }
    git(&bench.project, &["update-index", "-q", "--refresh"]);
    let source = bench.source();
    let identity = identity(&source, None).unwrap();
    assert_eq!(identity.settings.get("core.autocrlf").map(String::as_str), Some("true"));
    bench.clone_with(&CloneOptions { identity, ..CloneOptions::default() });
    assert_same_status(&bench);
    bench.edit("new", "x\n");
    let target = raw("refs/atenea/x");
    export_ref(&bench.store, &bench.seal(), &source, &target, None, &message(), &ada()).unwrap();
    let exported =
        |path: &str| git(&bench.project, &["rev-parse", &format!("refs/atenea/x:{path}")]);
    assert_eq!((exported("a.up"), exported("crlf.txt")), (up, crlf));
}

#[test]
fn a_sparse_checkout_exports_what_it_does_not_show() {
    let bench = bench().repository();
    bench.write("other/f", "x\n");
    bench.commit("second");
    git(&bench.project, &["sparse-checkout", "set", "--cone", "src"]);
    assert!(!bench.project.join("other").exists());
    bench.clone();
    assert_same_status_without_branch(&bench);
    bench.edit("src/new", "x\n");
    let (source, target) = (bench.source(), raw("refs/atenea/x"));
    export_ref(&bench.store, &bench.seal(), &source, &target, None, &message(), &ada()).unwrap();
    assert_eq!(git(&bench.project, &["diff", "--name-only", "HEAD", "refs/atenea/x"]), "src/new\n");
}

fn assert_same_status_without_branch(bench: &Bench) {
    let status = ["status", "--porcelain"];
    assert_eq!(git(&bench.ws, &status), git(&bench.project, &status));
}

#[test]
fn a_split_index_with_monitors_is_understood() {
    let bench = bench().repository();
    git(&bench.project, &["update-index", "--split-index", "--untracked-cache"]);
    bench.write("staged", "x\n");
    git(&bench.project, &["add", "staged"]);
    bench.clone();
    assert_same_status(&bench);
}

#[test]
fn another_commit_can_be_the_base() {
    let bench = bench().repository();
    let first = git(&bench.project, &["rev-parse", "HEAD"]);
    bench.write("README.md", "second\n");
    bench.commit("second");
    bench.write("README.md", "dirty\n");
    let options =
        CloneOptions { base: Base::Commit(first.trim().to_owned()), ..CloneOptions::default() };
    let clone = bench.clone_with(&options);
    assert_eq!(clone.base_commit.as_deref(), Some(first.trim()));
    assert_eq!(std::fs::read(bench.ws.join("README.md")).unwrap(), b"hello\n");
    assert_eq!(git(&bench.ws, &["status", "--porcelain"]), "");
    assert_eq!(git(&bench.ws, &["rev-list", "--count", "--all"]).trim(), "1");
    for bad in ["--all", "nothing", "HEAD^{tree}"] {
        let options =
            CloneOptions { base: Base::Commit(bad.to_owned()), ..CloneOptions::default() };
        let (ws, store) =
            (bench.path().join(format!("w{bad}")), bench.path().join(format!("s{bad}")));
        let source = bench.source();
        let refused = clone_private(&source, &ws, &store, &bench.cache, &options, &mut NoProgress);
        assert_eq!(refused.unwrap_err().code, Code::FsBadWorkspace, "{bad}");
    }
}

#[test]
fn places_that_are_no_workspace_are_refused() {
    let bench = bench().repository();
    let code = |path: &Path, state: Option<&Path>| inspect(path, state).unwrap_err().code;
    assert_eq!(code(Path::new("/"), None), Code::FsBadWorkspace);
    assert_eq!(code(&bench.path().join("missing"), None), Code::FsNotFound);
    assert_eq!(code(&bench.project.join("README.md"), None), Code::FsBadWorkspace);
    assert_eq!(code(&bench.project.join(".git"), None), Code::FsBadWorkspace);
    git(&bench.path(), &["init", "-q", "--bare", "bare"]);
    assert_eq!(code(&bench.path().join("bare"), None), Code::FsBadWorkspace);
    // The state directory inside, also when it is not made yet, and around.
    for state in [bench.project.clone(), bench.project.join("src/state/x"), bench.path()] {
        assert_eq!(code(&bench.project.join("src"), Some(&state)), Code::FsStateInWorkspace);
    }
    assert!(inspect(&bench.project, Some(&bench.path().join("state"))).is_ok());
    // A damaged repository is not taken for a plain directory.
    std::fs::write(bench.project.join(".git/config"), "[broken\n").unwrap();
    assert_eq!(code(&bench.project, None), Code::FsBadWorkspace);
    // `core.worktree` cannot lead to another place.
    let other = support::bench().repository();
    git(&other.project, &["config", "core.worktree", "/etc"]);
    assert_eq!(code(&other.project, None), Code::FsBadWorkspace);
}
