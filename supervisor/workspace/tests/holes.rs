//! Sparse files: a few bytes on the disk of whoever made them, any number of bytes when they are read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use atenea_core::Code;
use atenea_workspace::{
    Base, CloneOptions, Limits, NoProgress, Progress, SnapshotOptions, clone_private, snapshot,
};
use support::{Bench, bench, git};

/// Large against everything else here, small enough to be hashed without optimisation.
const HOLE: u64 = 10 << 20;
/// What everything that is made of such a file may take on the disk.
const SMALL: u64 = 2 << 20;

/// A file of zeros with a few words within and at its end.
fn hole(path: &Path, size: u64) {
    let file = File::create_new(path).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(b"within", size / 2 + 77).unwrap();
    file.write_all_at(b"end", size - 3).unwrap();
}

/// Bytes on the disk of all that is below a directory.
fn on_disk(dir: &Path) -> u64 {
    let meta = dir.symlink_metadata().unwrap();
    let below = if meta.is_dir() {
        std::fs::read_dir(dir).unwrap().map(|entry| on_disk(&entry.unwrap().path())).sum()
    } else {
        0
    };
    meta.blocks() * 512 + below
}

fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Bytes of the disk that a directory lies on.
fn disk(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_blocks * stat.f_frsize
}

fn assert_same_content(one: &Path, other: &Path) {
    assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap(), "{other:?}");
    assert!(on_disk(other) < SMALL, "{other:?} takes {} bytes", on_disk(other));
}

fn benches() -> [Bench; 2] {
    [bench(), bench().repository()]
}

#[test]
fn a_hole_stays_a_hole_in_a_snapshot() {
    for bench in benches() {
        hole(&bench.project.join("hole"), HOLE);
        File::create_new(bench.project.join("only zeros")).unwrap().set_len(HOLE / 8).unwrap();
        // Control: as a file of bytes it takes what it claims.
        std::fs::write(bench.path().join("dense"), vec![1; 4 << 20]).unwrap();
        assert!(on_disk(&bench.path().join("dense")) >= 4 << 20);
        let snapshot = bench.snapshot();
        for name in ["hole", "only zeros"] {
            assert_same_content(&bench.project.join(name), &snapshot.path.as_path().join(name));
        }
        assert!(on_disk(&bench.cache) < SMALL, "{}", on_disk(&bench.cache));
    }
}

#[test]
fn a_hole_stays_a_hole_in_a_clone_and_takes_little_in_its_store() {
    for bench in benches() {
        hole(&bench.project.join("hole"), HOLE);
        bench.clone();
        assert_same_content(&bench.project.join("hole"), &bench.ws.join("hole"));
        // The other direction: one that the agent left.
        hole(&bench.ws.join("another"), HOLE);
        let sealed = bench.seal();
        assert_eq!((sealed.changes.added, sealed.refused_total), (1, 0));
        let kept =
            ["cat-file", "-s", &format!("{}:another", sealed.result_tree)].map(str::to_owned);
        let kept = git(&bench.store, &kept.each_ref().map(String::as_str));
        assert_eq!(kept.trim(), HOLE.to_string());
        for dir in [&bench.ws, &bench.store, &bench.cache] {
            assert!(on_disk(dir) < SMALL, "{dir:?} takes {} bytes", on_disk(dir));
        }
    }
}

#[test]
fn an_index_that_does_not_fit_on_the_disk_is_not_copied() {
    let bench = bench().repository();
    let index = bench.project.join(".git/index");
    std::fs::remove_file(&index).unwrap();
    File::create_new(&index).unwrap().set_len(disk(&bench.path())).unwrap();
    let refused = refusal(&bench, "snapshot");
    assert_eq!(refused.code, Code::FsDiskFull);
    assert_eq!(count(&bench.cache.join("staging")), 0);
}

fn refusal(bench: &Bench, what: &str) -> atenea_core::Refusal {
    let limits = Limits { bytes: u64::MAX, ..Limits::default() };
    let mut read = 0;
    let mut progress = |progress: Progress| read = progress.bytes.max(read);
    let refused = if what == "snapshot" {
        let options = SnapshotOptions { limits, ..SnapshotOptions::default() };
        snapshot(&bench.source(), &bench.cache, &options, &mut progress).map(drop)
    } else {
        std::fs::create_dir_all(bench.ws.parent().unwrap()).unwrap();
        let options = CloneOptions { limits, ..CloneOptions::default() };
        let (ws, store) = (&bench.ws, &bench.store);
        clone_private(&bench.source(), ws, store, &bench.cache, &options, &mut progress).map(drop)
    };
    assert_eq!(read, 0, "it was read");
    refused.unwrap_err()
}

#[test]
fn a_hole_that_does_not_fit_on_the_disk_is_refused_before_anything_is_read() {
    let disk = disk(&std::env::temp_dir());
    // A little less than the empty disk, which is more than any disk has free; then a little more.
    for (bytes, code) in [(disk - (1 << 20), Code::FsDiskFull), (disk + 1, Code::FsTooLarge)] {
        for what in ["snapshot", "clone"] {
            for bench in benches() {
                std::fs::write(bench.project.join("a"), "first by name").unwrap();
                let hole = File::create_new(bench.project.join("hole")).unwrap();
                hole.set_len(bytes).unwrap();
                let refused = refusal(&bench, what);
                assert_eq!(refused.code, code, "{what}: {}", refused.cause);
                let said: u64 = refused.cause.split(' ').next().unwrap().parse().unwrap();
                assert!(said >= bytes && refused.cause.contains("bytes free"), "{}", refused.cause);
                assert_eq!(count(&bench.cache.join("staging")), 0);
                assert_eq!(count(&bench.cache.join("trees")), 0);
                assert_eq!(count(&bench.ws), 0);
                // Control: without it the same directory is taken.
                std::fs::remove_file(bench.project.join("hole")).unwrap();
                bench.snapshot();
            }
        }
    }
}

#[test]
fn a_hole_that_appears_in_a_known_directory_is_refused_before_it_is_read() {
    let bench = bench();
    for n in 0..9 {
        bench.write(format!("f{n}"), "known");
    }
    bench.snapshot();
    let bytes = disk(&bench.path()) - (1 << 20);
    File::create_new(bench.project.join("hole")).unwrap().set_len(bytes).unwrap();
    assert_eq!(refusal(&bench, "snapshot").code, Code::FsDiskFull);
    assert_eq!(count(&bench.cache.join("staging")), 0);
}

#[test]
fn a_commit_is_refused_before_its_checkout_when_its_files_are_too_large() {
    let bench = bench().repository();
    let mebi = vec![0; 1 << 20];
    for name in ["a", "b", "c", "d"] {
        bench.write(name, &mebi);
    }
    bench.commit("a kilobyte in a pack");
    std::fs::create_dir_all(bench.ws.parent().unwrap()).unwrap();
    let clone = |bytes| {
        let limits = Limits { bytes, ..Limits::default() };
        let options = CloneOptions { base: Base::Head, limits, ..CloneOptions::default() };
        let (ws, store) = (&bench.ws, &bench.store);
        clone_private(&bench.source(), ws, store, &bench.cache, &options, &mut NoProgress)
    };
    // One content under four names counts four times.
    assert_eq!(clone(4 << 20).unwrap_err().code, Code::FsTooLarge);
    assert_eq!(count(&bench.ws), 0, "it was checked out");
    for dir in [&bench.ws, &bench.store] {
        std::fs::remove_dir_all(dir).unwrap();
    }
    assert_eq!(clone((4 << 20) + 200).unwrap().files, 9);
}
