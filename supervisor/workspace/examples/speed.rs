//! Prints how long the steps take for a repository of many files. Usage: `speed [FILES]`.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use atenea_workspace::{
    CloneOptions, NoProgress, SealOptions, SnapshotOptions, clone_private, diff, diff_json,
    import_ref, inspect, is_unchanged, pack_export, seal, snapshot,
};

fn git(dir: &Path, args: &[&str]) {
    let identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
    let done = Command::new("git").current_dir(dir).args(identity).args(args).status();
    assert!(done.expect("git runs").success(), "git {args:?}");
}

fn timed<T>(what: &str, step: impl FnOnce() -> Result<T, atenea_core::Refusal>) -> T {
    let start = Instant::now();
    let result = step().unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
    println!("{what:32} {:>8.0} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

fn peak_kib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
    line.to_owned()
}

fn main() {
    let files: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let project = dir.path().join("project");
    for n in 0..files {
        let path = project.join(format!("d{}/e{}/f{n}.txt", n % 40, n % 400));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, format!("file {n}\n").repeat(1 + n % 200)).expect("a file");
    }
    git(&project, &["init", "-q", "-b", "main"]);
    git(&project, &["add", "-A"]);
    git(&project, &["commit", "-q", "-m", "first"]);
    println!("{files} files");
    let cache = dir.path().join("cache");
    let source = timed("inspect", || inspect(&project, None));
    let options = SnapshotOptions::default();
    let take = || snapshot(&source, &cache, &options, &mut NoProgress);
    timed("snapshot, first", take);
    timed("snapshot, again", take);
    std::fs::write(project.join("d0/new"), "x").expect("a file");
    timed("snapshot, one file new", take);
    let (ws, store) = (dir.path().join("ws"), dir.path().join("base.git"));
    let clone = |ws: &Path, store: &Path| {
        let options = CloneOptions::default();
        clone_private(&source, ws, store, &cache, &options, &mut NoProgress)
    };
    timed("clone, first", || clone(&ws, &store));
    timed("clone, history cached", || {
        clone(&dir.path().join("ws2"), &dir.path().join("base2.git"))
    });
    timed("is_unchanged", || is_unchanged(&ws, &store));
    timed("git status inside", || {
        git(&ws, &["status", "--porcelain"]);
        Ok(())
    });
    for n in 0..100 {
        std::fs::write(ws.join(format!("d1/new{n}")), format!("{n}")).expect("a file");
    }
    let seal = || seal(&ws, &store, &SealOptions::default(), &mut NoProgress);
    let sealed = timed("seal, 100 files new", seal);
    timed("diff", || diff(&store, &sealed, 8 << 20));
    timed("diff --json", || diff_json(&store, &sealed));
    let message = atenea_workspace::export::Message { text: "x".to_owned(), seconds: 1 };
    let name = atenea_workspace::RawPath(b"refs/atenea/x".to_vec());
    let who = atenea_workspace::Identity::default();
    let pack = dir.path().join("export.pack");
    let packed =
        timed("export: pack", || pack_export(&store, &sealed, true, &message, &who, &pack, None));
    timed("export: import", || import_ref(&source, &name, &packed.commit, None, &pack));
    println!("peak memory of this process: {}", peak_kib());
}
