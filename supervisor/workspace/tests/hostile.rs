//! S7: nothing a repository or an agent configures runs on the host. Each canary is proven to work
//! by plain git first, as an ordinary uid in namespaces of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use atenea_workspace::export::Message;
use atenea_workspace::{
    CloneOptions, Filter, clone::Base, diff, diff_json, export_patch, identity, is_unchanged,
};
use support::{Bench, ada, bench, chmod, export_ref, git, git_command, picture, raw, write};

const HOOKS: &[&str] = &[
    "post-index-change",
    "reference-transaction",
    "pre-commit",
    "post-commit",
    "post-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "prepare-commit-msg",
    "commit-msg",
    "fsmonitor-watchman",
];

/// A directory with one program per canary; each leaves its name in `fired`.
struct Canaries {
    dir: PathBuf,
}

impl Canaries {
    fn new(root: &Path) -> Self {
        let dir = root.join("canaries");
        std::fs::create_dir_all(dir.join("fired")).unwrap();
        chmod(&dir.join("fired"), 0o777);
        Canaries { dir }
    }

    fn program(&self, name: &str) -> String {
        let path = self.dir.join(name);
        let mark = self.dir.join("fired").join(name);
        let body = format!("#!/bin/sh\n: >> {mark:?}\n[ -t 0 ] || cat 2>/dev/null\nexit 0\n");
        write(&path, body);
        chmod(&path, 0o755);
        path.to_str().unwrap().to_owned()
    }

    fn fired(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.dir.join("fired")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn clear(&self) {
        for name in self.fired() {
            std::fs::remove_file(self.dir.join("fired").join(name)).unwrap();
        }
    }

    /// Puts every canary into a repository: configuration, included and per-worktree configuration,
    /// hooks, attributes.
    fn plant(&self, tree: &Path) {
        let git_dir = tree.join(".git");
        for hook in HOOKS {
            let path = git_dir.join("hooks").join(hook);
            write(&path, std::fs::read(self.program(&format!("hook-{hook}"))).unwrap());
            chmod(&path, 0o755);
        }
        let config = [
            ("core.fsmonitor", self.program("fsmonitor")),
            ("filter.evil.clean", self.program("clean")),
            ("filter.evil.smudge", self.program("smudge")),
            ("filter.evil.required", "true".to_owned()),
            ("filter.proc.process", self.program("process")),
            ("diff.evil.textconv", self.program("textconv")),
            ("diff.evil.command", self.program("diff-command")),
            ("diff.external", self.program("diff-external")),
            ("uploadpack.packObjectsHook", self.program("pack-objects-hook")),
            ("core.sshCommand", self.program("ssh")),
            ("core.pager", self.program("pager")),
            ("core.alternateRefsCommand", self.program("alternate-refs")),
            ("gpg.program", self.program("gpg")),
            ("commit.gpgSign", "true".to_owned()),
            ("extensions.worktreeConfig", "true".to_owned()),
        ];
        for (key, value) in &config {
            git(tree, &["config", key, value]);
        }
        let included = git_dir.join("included");
        write(&included, format!("[filter \"inc\"]\n\tclean = {}\n", self.program("included")));
        git(tree, &["config", "include.path", "included"]);
        let own = format!("[filter \"wt\"]\n\tclean = {}\n", self.program("worktree-config"));
        write(&git_dir.join("config.worktree"), own);
        let attributes = "*.txt filter=evil diff=evil\n*.proc filter=proc\n*.inc filter=inc\n\
                          *.wt filter=wt\n";
        write(&tree.join(".gitattributes"), attributes);
        write(&git_dir.join("info/attributes"), attributes);
        for name in ["a.txt", "b.proc", "c.inc", "d.wt"] {
            write(&tree.join(name), format!("content of {name}\n"));
        }
    }
}

/// Plain git as an ordinary uid in its own user and network namespace, on a copy.
fn control(bench: &Bench, tree: &Path, canaries: &Canaries) -> BTreeSet<String> {
    let copy = bench.path().join("control");
    run(Command::new("cp").arg("-a").arg(tree).arg(&copy));
    if rustix::process::geteuid().is_root() {
        run(Command::new("chown").args(["-R", "65534:65534"]).arg(&copy));
    }
    let commands: [&[&str]; 7] = [
        &["status"],
        &["add", "-A"],
        &["diff", "HEAD"],
        &["commit", "-m", "x"],
        &["tag", "control"],
        &["rm", "-r", "-q", "--cached", "."],
        &["checkout", "-f", "HEAD"],
    ];
    for args in commands {
        let git = git_command(&copy);
        let mut command = Command::new("unshare");
        if rustix::process::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "unshare"]);
        }
        command.args(["--user", "--map-current-user", "--net", "--"]);
        command.arg(git.get_program()).args(git.get_args()).args(args).current_dir(&copy);
        command.env_clear();
        for (key, value) in git.get_envs() {
            command.env(key, value.unwrap_or_default());
        }
        // Canaries may make git fail; that they ran is what counts.
        command.output().unwrap();
    }
    let fired = canaries.fired();
    canaries.clear();
    run(Command::new("rm").arg("-rf").arg(&copy));
    fired
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn message() -> Message {
    Message { text: "m".to_owned(), seconds: 1 }
}

fn assert_control(fired: &BTreeSet<String>) {
    for name in [
        "fsmonitor",
        "clean",
        "process",
        "included",
        "worktree-config",
        "hook-post-index-change",
        "hook-pre-commit",
        "diff-command",
    ] {
        assert!(fired.contains(name), "control: {name} did not run, only {fired:?}");
    }
}

#[test]
fn nothing_the_users_repository_configures_runs() {
    let bench = bench().repository();
    chmod(bench.dir.path(), 0o755);
    let canaries = Canaries::new(&bench.path());
    bench.write("a.txt", "committed\n");
    bench.commit("second");
    canaries.plant(&bench.project);
    assert_control(&control(&bench, &bench.project, &canaries));
    canaries.clear();

    let before = picture(&bench.project);
    let source = bench.source();
    identity(&source, Some(&bench.path())).unwrap();
    let snapshot = bench.snapshot();
    assert_eq!(
        std::fs::read(snapshot.path.as_path().join("a.txt")).unwrap(),
        b"content of a.txt\n"
    );
    bench.clone();
    assert!(is_unchanged(&bench.ws, &bench.store).unwrap());
    bench.edit("a.txt", "agent\n");
    bench.edit("e.txt", "agent\n");
    let sealed = bench.seal();
    assert!(diff(&bench.store, &sealed, 1 << 20).unwrap().text.contains("+agent"));
    assert_eq!(diff_json(&bench.store, &sealed).unwrap().len(), 2);
    assert_eq!(picture(&bench.project), before, "the user's repository was touched");
    let name = raw("refs/atenea/x");
    export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada()).unwrap();
    assert_eq!(canaries.fired(), BTreeSet::new());
    assert_eq!(
        git(&bench.project, &["cat-file", "blob", "refs/atenea/x:a.txt"]),
        "agent\n",
        "no filter changed what the agent wrote"
    );
}

#[test]
fn a_commit_as_base_is_checked_out_without_filters() {
    let user = bench().repository();
    chmod(user.dir.path(), 0o755);
    let canaries = Canaries::new(&user.path());
    user.write("a.txt", "committed\n");
    user.write(".gitattributes", "*.txt filter=evil\n");
    user.commit("second");
    canaries.plant(&user.project);
    assert!(control(&user, &user.project, &canaries).contains("smudge"));
    let text_only = Filter { files: vec!["*.txt".to_owned()], ..Filter::default() };
    for filter in [Filter::default(), text_only] {
        let other = bench();
        let bench = Bench { project: user.project.clone(), ..other };
        let options = CloneOptions { base: Base::Head, filter, ..CloneOptions::default() };
        bench.clone_with(&options);
        assert_eq!(std::fs::read(bench.ws.join("a.txt")).unwrap(), b"committed\n");
        assert_eq!(git(&bench.ws, &["status", "--porcelain"]), "");
        let sealed = bench.seal();
        assert_eq!(sealed.changes, atenea_workspace::Changes::default());
    }
    assert_eq!(canaries.fired(), BTreeSet::new());
}

#[test]
fn nothing_the_agent_configures_runs() {
    let bench = bench().repository();
    chmod(bench.dir.path(), 0o755);
    let canaries = Canaries::new(&bench.path());
    bench.write("a.txt", "base\n");
    bench.commit("second");
    bench.clone();
    canaries.plant(&bench.ws);
    bench.edit("sub/.gitattributes", "* binary -diff filter=evil\n");
    bench.edit("sub/hidden.c", "int evil;\n");
    assert_control(&control(&bench, &bench.ws, &canaries));
    canaries.clear();

    let sealed = bench.seal();
    let text = diff(&bench.store, &sealed, 1 << 20).unwrap().text;
    assert!(text.contains("+content of a.txt"), "{text}");
    assert!(text.contains("+int evil;"), "attributes of the agent hide nothing: {text}");
    diff_json(&bench.store, &sealed).unwrap();
    export_patch(&bench.store, &sealed, &bench.path().join("p")).unwrap();
    let (name, source) = (raw("refs/atenea/x"), bench.source());
    export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada()).unwrap();
    assert!(!is_unchanged(&bench.ws, &bench.store).unwrap());
    assert_eq!(canaries.fired(), BTreeSet::new());
}

#[test]
fn a_hook_for_refs_does_not_run_on_export() {
    let bench = bench().repository();
    chmod(bench.dir.path(), 0o755);
    let canaries = Canaries::new(&bench.path());
    let hook = bench.project.join(".git/hooks/reference-transaction");
    write(&hook, std::fs::read(canaries.program("ref-hook")).unwrap());
    chmod(&hook, 0o755);
    assert!(control(&bench, &bench.project, &canaries).contains("ref-hook"));
    bench.clone();
    bench.edit("new", "x\n");
    let (name, source) = (raw("refs/atenea/x"), bench.source());
    export_ref(&bench.store, &bench.seal(), &source, &name, None, &message(), &ada()).unwrap();
    assert_eq!(canaries.fired(), BTreeSet::new());
}

#[test]
fn the_users_secrets_in_other_branches_stay_out_of_the_clone() {
    let bench = bench().repository();
    git(&bench.project, &["checkout", "-q", "-b", "other"]);
    bench.write("secret", "deleted secret\n");
    let secret = bench.commit("secret");
    git(&bench.project, &["checkout", "-q", "main"]);
    git(&bench.project, &["branch", "-q", "-D", "other"]);
    bench.clone();
    // The control: the user's own object store still has it.
    git(&bench.project, &["cat-file", "-e", &secret]);
    let there = git_command(&bench.ws).args(["cat-file", "-e", &secret]).status().unwrap();
    assert!(!there.success());
    assert!(!bench.ws.join(".git/objects/info/alternates").exists());
    assert_eq!(git(&bench.ws, &["remote"]), "");
    assert_eq!(git(&bench.ws, &["config", "--local", "user.name"]), "Ada \"A\" \\ L\n");
}

#[test]
fn packs_of_the_clone_share_no_inode_with_the_cache() {
    use std::os::unix::fs::MetadataExt;
    let bench = bench().repository();
    bench.clone();
    let inodes = |dir: &Path| -> BTreeSet<u64> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().ino()).collect()
    };
    let own = inodes(&bench.ws.join(".git/objects/pack"));
    assert!(!own.is_empty());
    assert!(own.is_disjoint(&inodes(&bench.cache.join("packs"))));
    assert!(own.is_disjoint(&inodes(&bench.store.join("objects/pack"))));
}

#[test]
fn an_export_writes_through_no_link_that_was_planted_in_the_repository() {
    for place in ["refs/atenea", "objects", "logs"] {
        let bench = bench().repository();
        bench.clone();
        bench.edit("README.md", "agent\n");
        let (sealed, source) = (bench.seal(), bench.source());
        let (inside, outside) = (bench.project.join(".git").join(place), bench.path().join("out"));
        if inside.exists() {
            std::fs::rename(&inside, &outside).unwrap();
        } else {
            std::fs::create_dir(&outside).unwrap();
        }
        symlink(&outside, &inside).unwrap();
        let before = picture(&outside);
        let name = raw("refs/atenea/x");
        let refused = export_ref(&bench.store, &sealed, &source, &name, None, &message(), &ada());
        assert_eq!(refused.unwrap_err().code, atenea_core::Code::ExportBadRef, "{place}");
        assert_eq!(picture(&outside), before, "{place}");
        if place == "refs/atenea" {
            // Control: git itself follows it.
            git(&bench.project, &["update-ref", "refs/atenea/x", "HEAD"]);
            assert_ne!(picture(&outside), before);
        }
    }
}

#[test]
fn a_log_of_a_ref_gets_no_line_that_the_repository_composed() {
    let bench = bench().repository();
    bench.clone();
    bench.edit("README.md", "agent\n");
    let (sealed, source) = (bench.seal(), bench.source());
    for key in ["user.name", "committer.name", "author.name"] {
        git(&bench.project, &["config", key, "x; touch pwned; #"]);
    }
    git(&bench.project, &["config", "core.logAllRefUpdates", "always"]);
    let logs = bench.project.join(".git/logs/refs/heads");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("there"), "").unwrap();
    for name in ["refs/heads/there", "refs/heads/not"] {
        export_ref(&bench.store, &sealed, &source, &raw(name), None, &message(), &ada()).unwrap();
    }
    let line = std::fs::read_to_string(logs.join("there")).unwrap();
    assert!(line.contains("atenea: export") && !line.contains("pwned"), "{line}");
    assert!(!logs.join("not").exists());
    // Control: git itself writes what the repository says.
    git(&bench.project, &["update-ref", "-m", "m", "refs/heads/control", "HEAD"]);
    let line = std::fs::read_to_string(logs.join("control")).unwrap();
    assert!(line.contains("pwned"), "{line}");
}
