//! Pipes in the user's own tree, in the places where git or we read a file: refused, not waited for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use atenea_core::{Code, Refusal};
use atenea_workspace::{
    CloneOptions, Identity, NoProgress, SnapshotOptions, clone_private, inspect, snapshot,
};
use rustix::fs::{CWD, Mode};
use support::{Bench, bench};

/// Far above anything a refusal needs: only a hang gets there.
const HANGS: Duration = Duration::from_secs(60);

fn soon<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(work()));
    match told.recv_timeout(HANGS) {
        Ok(got) => got,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: it panicked"),
    }
}

fn pipe(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = std::fs::remove_file(path);
    rustix::fs::mkfifoat(CWD, path, Mode::RWXU).unwrap();
}

/// Everything that a run does with a project, until the first refusal.
fn use_it(bench: &Bench, identity: Identity) -> Result<(), Refusal> {
    let source = inspect(&bench.project, None)?;
    let options =
        SnapshotOptions { excludes: identity.excludes.clone(), ..SnapshotOptions::default() };
    snapshot(&source, &bench.cache, &options, &mut NoProgress)?;
    std::fs::create_dir_all(bench.ws.parent().unwrap()).unwrap();
    let options = CloneOptions { identity, ..CloneOptions::default() };
    let (ws, store) = (&bench.ws, &bench.store);
    clone_private(&source, ws, store, &bench.cache, &options, &mut NoProgress).map(drop)
}

#[test]
fn a_pipe_where_git_reads_a_file_is_refused_and_not_waited_for() {
    let places = [
        ".gitignore",
        "src/.gitignore",
        "outer/.gitignore",
        ".git/HEAD",
        ".git/config",
        ".git/index",
        ".git/packed-refs",
        ".git/shallow",
        ".git/info/exclude",
        ".git/info/attributes",
        ".git/objects/info/alternates",
    ];
    for place in places {
        let bench = bench().repository();
        bench.write("src/.gitignore", "*.tmp\n");
        bench.write("outer/inner/x", "x");
        bench.commit("rules");
        pipe(&bench.project.join(place));
        let refused = soon(place, move || use_it(&bench, Identity::default())).unwrap_err();
        assert_eq!(refused.code, Code::FsBadWorkspace, "{place}: {refused}");
        assert!(refused.to_string().contains(place), "{place}: {refused}");
    }
}

#[test]
fn a_pipe_as_the_users_own_ignore_file_is_refused_and_not_waited_for() {
    let bench = bench().repository();
    let rules = bench.path().join("rules");
    pipe(&rules);
    let identity = Identity { excludes: Some(rules.into()), ..Identity::default() };
    let refused = soon("excludes", move || use_it(&bench, identity)).unwrap_err();
    assert_eq!(refused.code, Code::FsBadWorkspace, "{refused}");
}

#[test]
fn pipes_that_nobody_reads_are_in_nobodys_way() {
    let bench = bench().repository();
    bench.write("src/.gitattributes", "* text\n");
    bench.commit("attributes");
    for place in [".gitattributes", "src/.gitattributes", "src/pipe", ".git/description"] {
        pipe(&bench.project.join(place));
    }
    soon("the rest", move || use_it(&bench, Identity::default())).unwrap();
}
