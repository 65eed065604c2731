//! From a repository through clone, agent, seal and diff to the exported commit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use atenea_core::Code;
use atenea_workspace::diff::Status;
use atenea_workspace::export::Message;
use atenea_workspace::{CloneOptions, diff, diff_json, export_patch, is_unchanged, read_ref};
use support::{ada, bench, export_ref, git, git_command, raw};

fn message() -> Message {
    Message { text: "Work of a run".to_owned(), seconds: 1_700_000_000 }
}

/// Gives the project another history and removes the old one with its commit.
fn prune(project: &std::path::Path, commit: &str) {
    git(project, &["checkout", "-q", "--orphan", "fresh"]);
    git(project, &["commit", "-q", "-a", "-m", "another history"]);
    git(project, &["branch", "-q", "-D", "main"]);
    git(project, &["reflog", "expire", "--expire=now", "--all"]);
    git(project, &["gc", "-q", "--prune=now"]);
    let gone = git_command(project).args(["cat-file", "-e", commit]).output().unwrap();
    assert!(!gone.status.success());
}

#[test]
fn work_of_an_agent_comes_back_as_one_commit_on_top_of_what_the_run_started_from() {
    let bench = bench().repository();
    let head = git(&bench.project, &["rev-parse", "HEAD"]);
    bench.write("README.md", "hello, changed by the user\n");
    bench.write("new.txt", "untracked\n");
    let clone = bench.clone();
    assert_eq!(clone.base_commit.as_deref(), Some(head.trim()));
    assert!(is_unchanged(&bench.ws, &bench.store).unwrap());
    assert_eq!(
        git(&bench.ws, &["status", "--porcelain=v2", "--branch"]),
        git(&bench.project, &["status", "--porcelain=v2", "--branch"]),
    );
    bench.edit("src/main.rs", "fn main() { println!(); }\n");
    bench.edit("src/added.rs", "// new\n");
    std::fs::remove_file(bench.ws.join("run.sh")).unwrap();
    git(&bench.ws, &["add", "-A"]);
    git(&bench.ws, &["commit", "-q", "-m", "inside"]);
    assert!(!is_unchanged(&bench.ws, &bench.store).unwrap());

    let sealed = bench.seal();
    assert_eq!(sealed.refused, []);
    let changes = sealed.changes;
    assert_eq!((changes.added, changes.modified, changes.deleted), (1, 1, 1));
    let text = diff(&bench.store, &sealed, 1 << 20).unwrap().text;
    assert!(text.contains("+fn main() { println!(); }") && !text.contains("changed by the user"));
    let files = diff_json(&bench.store, &sealed).unwrap();
    let seen: Vec<_> = files.iter().map(|file| (file.path.shown(), file.status)).collect();
    assert_eq!(
        seen,
        [
            ("run.sh".to_owned(), Status::Deleted),
            ("src/added.rs".to_owned(), Status::Added),
            ("src/main.rs".to_owned(), Status::Modified),
        ]
    );

    let name = raw("refs/atenea/r_test");
    let source = bench.source();
    let export = || export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada());
    let first = export().unwrap();
    assert!(!first.repeated);
    assert_eq!(read_ref(&source, &name).unwrap(), Some(first.commit.clone()));
    // The base held uncommitted files: they are a commit of their own, and the agent's commit is
    // what `diff` shows and nothing else.
    let below = git(&bench.project, &["rev-parse", &format!("{}^", first.commit)]);
    assert_eq!(first.base.as_deref(), Some(below.trim()));
    assert!(sealed.uncommitted_base);
    assert_eq!(git(&bench.project, &["rev-parse", &format!("{}^^", first.commit)]), head);
    let names =
        |range: [&str; 2]| git(&bench.project, &["diff", "--name-only", range[0], range[1]]);
    assert_eq!(names([head.trim(), below.trim()]), "README.md\nnew.txt\n");
    assert_eq!(names([below.trim(), &first.commit]), "run.sh\nsrc/added.rs\nsrc/main.rs\n");
    let range = ["diff", "--full-index", "--no-renames", below.trim(), &first.commit];
    assert_eq!(git(&bench.project, &range), text);
    // Which can be taken into the working tree as it is.
    let patch = bench.path().join("taken");
    std::fs::write(&patch, git(&bench.project, &range)).unwrap();
    git(&bench.project, &["apply", "--check", patch.to_str().unwrap()]);
    let shown = |path: &str| git(&bench.project, &["show", &format!("{}:{path}", first.commit)]);
    assert_eq!(shown("src/main.rs"), "fn main() { println!(); }\n");
    assert_eq!(shown("README.md"), "hello, changed by the user\n");
    assert_eq!(shown("new.txt"), "untracked\n");
    git(&bench.project, &["fsck", "--strict"]);
    // R2: once more, as after a crash between the ref and its journal record.
    let second = export().unwrap();
    assert!(second.repeated && second.commit == first.commit);
    // R2: as after a crash between the objects and the ref, and a week later.
    git(&bench.project, &["update-ref", "-d", "refs/atenea/r_test"]);
    let third = export().unwrap();
    assert!(!third.repeated && third.commit == first.commit);
    // And when the base commit itself was pruned meanwhile, its history comes along.
    git(&bench.project, &["update-ref", "-d", "refs/atenea/r_test"]);
    prune(&bench.project, head.trim());
    assert_eq!(export().unwrap().commit, first.commit);
    git(&bench.project, &["fsck", "--strict"]);
}

#[test]
fn a_patch_applies_to_the_users_files_also_without_a_repository() {
    let bench = bench();
    bench.write("a.txt", "one\n");
    bench.write("bin", b"\0\x01\x02");
    std::fs::create_dir(bench.project.join("empty")).unwrap();
    let clone = bench.clone();
    assert_eq!(clone.base_commit, None);
    assert!(bench.ws.join("empty").is_dir() && !bench.ws.join(".git").exists());
    bench.edit("a.txt", "two\n");
    bench.edit("bin", b"\0\x03");
    bench.edit("sub/new", "x\n");
    let sealed = bench.seal();
    let patch = bench.path().join("out.patch");
    assert!(export_patch(&bench.store, &sealed, &patch).unwrap() > 0);
    git(&bench.project, &["apply", patch.to_str().unwrap()]);
    assert_eq!(std::fs::read(bench.project.join("a.txt")).unwrap(), b"two\n");
    assert_eq!(std::fs::read(bench.project.join("bin")).unwrap(), b"\0\x03");
    assert_eq!(std::fs::read(bench.project.join("sub/new")).unwrap(), b"x\n");
    assert!(export_patch(&bench.store, &sealed, &patch).is_err(), "an existing file is kept");
    assert!(git_command(&bench.project).arg("status").output().unwrap().status.code() == Some(128));
}

#[test]
fn a_run_that_started_from_a_clean_tree_is_exported_as_one_commit() {
    let bench = bench().repository();
    let head = git(&bench.project, &["rev-parse", "HEAD"]);
    bench.clone();
    bench.edit("new", "x\n");
    let sealed = bench.seal();
    assert!(!sealed.uncommitted_base);
    let (name, source) = (raw("refs/atenea/x"), bench.source());
    let done = export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada()).unwrap();
    assert_eq!(done.base, None);
    assert_eq!(git(&bench.project, &["rev-parse", "refs/atenea/x^"]), head);
}

#[test]
fn nothing_that_an_export_carries_is_no_empty_commit() {
    let bench = bench().repository();
    bench.write("untracked", "the user's own\n");
    bench.clone();
    bench.edit("target/built", "ignored\n");
    git(&bench.ws, &["commit", "-q", "--allow-empty", "-m", "empty"]);
    let sealed = bench.seal();
    assert_eq!(sealed.changes.ignored, 1);
    let (name, source) = (raw("refs/atenea/x"), bench.source());
    let refused = export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada());
    assert_eq!(refused.unwrap_err().code, Code::ExportNothing);
    let refused = export_patch(&bench.store, &sealed, &bench.path().join("p"));
    assert_eq!(refused.unwrap_err().code, Code::ExportNothing);
    assert!(!bench.path().join("p").exists());
    assert_eq!(read_ref(&source, &name).unwrap(), None);
}

#[test]
fn branches_tags_and_commits_of_the_agent_are_named_because_no_export_carries_them() {
    let refs = |bench: &support::Bench| -> (Vec<String>, bool) {
        let history = bench.seal().history;
        assert_eq!(history.total, history.refs.len() as u64);
        (history.refs.iter().map(|name| name.shown()).collect(), history.unreadable)
    };
    let bench = bench().repository();
    bench.clone();
    bench.edit("new", "x\n");
    assert_eq!(refs(&bench), (vec![], false), "files are no history");
    git(&bench.ws, &["checkout", "-q", "-b", "topic/one"]);
    git(&bench.ws, &["add", "-A"]);
    git(&bench.ws, &["commit", "-q", "-m", "on a branch"]);
    git(&bench.ws, &["tag", "t1"]);
    git(&bench.ws, &["checkout", "-q", "main"]);
    let named = ["refs/heads/topic/one", "refs/tags/t1"].map(str::to_owned).to_vec();
    assert_eq!(refs(&bench), (named.clone(), false));
    git(&bench.ws, &["pack-refs", "--all"]);
    assert_eq!(refs(&bench), (named, false), "packed");
    git(&bench.ws, &["checkout", "-q", "--detach"]);
    git(&bench.ws, &["commit", "-q", "--allow-empty", "-m", "on no branch"]);
    assert_eq!(refs(&bench).0[0], "HEAD");
    git(&bench.ws, &["checkout", "-q", "main"]);
    git(&bench.ws, &["merge", "-q", "topic/one"]);
    assert_eq!(refs(&bench).0[0], "refs/heads/main");
    // Whatever the agent puts there is not followed and not waited for.
    std::fs::remove_file(bench.ws.join(".git/packed-refs")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", bench.ws.join(".git/packed-refs")).unwrap();
    assert_eq!(refs(&bench), (vec![], true));
    std::fs::remove_file(bench.ws.join(".git/packed-refs")).unwrap();
    let fifo = bench.ws.join(".git/refs/heads/pipe");
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    assert_eq!(refs(&bench), (vec![], true));
}

#[test]
fn a_commit_inside_works_for_a_user_who_has_told_git_no_name() {
    let bench = bench().repository();
    bench.clone_with(&CloneOptions::default());
    bench.edit("new.txt", "new\n");
    // As inside: no configuration but the clone's own.
    let commit = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.current_dir(&bench.ws).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        git.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
        let out = git.args(["-c", "safe.directory=*"]).args(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    commit(&["add", "-A"]);
    commit(&["commit", "-q", "-m", "inside"]);
    assert_eq!(commit(&["log", "-1", "--format=%an <%ae>"]), "atenea <atenea@localhost>\n");
}
