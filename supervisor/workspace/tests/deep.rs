//! Trees that are deeper than a path can name: handled, or refused with a code, and removed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atenea_core::Code;
use atenea_workspace::{
    CloneOptions, NoProgress, SnapshotOptions, clone_private, give_to, is_unchanged, snapshot,
};
use rustix::fs::{Mode, OFlags};
use support::{Bench, bench_within};

/// More levels than a path of one-letter names can have, and names of which a path has few.
const SHAPES: [(&[u8], usize); 2] = [(b"d", 10_000), (&[b'n'; 255], 100)];

/// In memory: a disk spends milliseconds on each directory.
fn bench() -> Bench {
    bench_within(Path::new("/dev/shm"), "project")
}

/// A chain of directories with a file in the innermost.
fn chain(top: &Path, name: &[u8], levels: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here: OwnedFd = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, name, flags, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(&here, "file", flags, Mode::RUSR | Mode::WUSR).unwrap();
}

/// The standard library's own removal needs a descriptor for each level.
fn flatten(top: &Path, name: &[u8]) {
    let name = OsStr::from_bytes(name);
    for n in 0.. {
        let deep: PathBuf = std::iter::repeat_n(name, 14).collect();
        let to = top.join(format!("flat-{n}"));
        if std::fs::rename(top.join(deep), &to).is_err() {
            break;
        }
        std::fs::remove_dir_all(top.join(name)).unwrap();
        std::fs::rename(&to, top.join(name)).unwrap();
    }
}

#[test]
fn a_seal_refuses_what_no_path_can_name_and_takes_the_rest() {
    for (name, levels) in SHAPES {
        let bench = bench().repository();
        bench.clone();
        bench.edit("new.txt", "new\n");
        chain(&bench.ws, name, levels);
        let sealed = bench.seal();
        assert_eq!(sealed.changes.added, 1, "{sealed:?}");
        assert_eq!(sealed.refused_total, 1, "{levels}");
        assert_eq!(sealed.refused[0].code, Code::ExportBadPath);
        assert_eq!(sealed.left_out(false).count(), 1, "the rest can be exported");
        // C4: what was not looked at is somebody's work.
        assert!(!is_unchanged(&bench.ws, &bench.store).unwrap());
        let own = rustix::process::getuid().as_raw();
        let refused = give_to(&bench.ws, own, own, None).unwrap_err();
        assert_eq!(refused.code, Code::FsIo, "{refused}");
        flatten(&bench.ws, name);
    }
}

#[test]
fn a_project_that_no_path_can_name_is_refused_with_a_code_and_leaves_nothing() {
    for (name, levels) in SHAPES {
        let bench = bench();
        chain(&bench.project, name, levels);
        let source = bench.source();
        let options = SnapshotOptions::default();
        let refused = snapshot(&source, &bench.cache, &options, &mut NoProgress).unwrap_err();
        assert_eq!(refused.code, Code::FsIo, "{refused}");
        std::fs::create_dir_all(bench.ws.parent().unwrap()).unwrap();
        let options = CloneOptions::default();
        let (ws, store) = (&bench.ws, &bench.store);
        let refused = clone_private(&source, ws, store, &bench.cache, &options, &mut NoProgress);
        assert_eq!(refused.unwrap_err().code, Code::FsIo);
        assert_eq!(std::fs::read_dir(bench.cache.join("staging")).unwrap().count(), 0);
        flatten(&bench.project, name);
    }
}

#[test]
fn a_half_made_tree_of_the_deepest_path_of_a_repository_is_swept() {
    // A repository can hold a path of nearly 4,096 bytes: two thousand levels.
    let few = rustix::process::Rlimit { current: Some(512), maximum: Some(512) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let bench = bench();
    let staging = bench.cache.join("staging");
    for levels in [1, 31, 32, 33, 2_000, 10_000] {
        let tree = staging.join(format!("s-{levels}"));
        std::fs::create_dir_all(&tree).unwrap();
        chain(&tree, b"d", levels);
        std::fs::create_dir(tree.join("atenea-1")).unwrap();
        std::fs::write(tree.join("atenea-2"), "x").unwrap();
    }
    assert_eq!(atenea_workspace::sweep_staging(&bench.cache).unwrap(), 6);
    assert_eq!(std::fs::read_dir(&staging).unwrap().count(), 0);
}
