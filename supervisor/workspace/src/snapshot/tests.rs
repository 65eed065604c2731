use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::progress::NoProgress;
use crate::staging::sweep_staging;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("p")).unwrap();
        Bench { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("p").join(name)
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// A snapshot that believes it starts this late.
    fn snapshot(&self, started: Option<i128>) -> Snapshot {
        let source = crate::inspect(&self.dir.path().join("p"), None).unwrap();
        let options = SnapshotOptions::default();
        snapshot_as_of(&source, &self.cache(), &options, &mut NoProgress, started).unwrap()
    }
}

/// Changes a file in a way that no stat shows except by its change time.
fn change_behind_its_stat(path: &Path, text: &str) {
    let before = std::fs::metadata(path).unwrap();
    std::fs::write(path, text).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
}

#[test]
fn an_unchanged_tree_is_not_read_again() {
    let bench = Bench::new();
    std::fs::write(bench.file("a"), "one").unwrap();
    let first = bench.snapshot(Some(i128::MAX));
    assert!(first.newly_made);
    // Unreadable now, and the same stat but for the change time, which is put into the cache by
    // hand: only a reader would notice.
    let mut bytes = 0;
    let source = crate::inspect(&bench.dir.path().join("p"), None).unwrap();
    let mut report = |progress: crate::progress::Progress| bytes = progress.bytes;
    let second =
        snapshot_as_of(&source, &bench.cache(), &SnapshotOptions::default(), &mut report, None)
            .unwrap();
    assert_eq!((second.tree, second.newly_made), (first.tree, false));
    assert_eq!(bytes, 0, "no content was read");
}

#[test]
fn a_file_that_is_younger_than_the_cache_is_read_again() {
    let bench = Bench::new();
    std::fs::write(bench.file("a"), "one").unwrap();
    let first = bench.snapshot(None);
    change_behind_its_stat(&bench.file("a"), "two");
    let second = bench.snapshot(None);
    assert_ne!(first.tree, second.tree);
    assert_eq!(std::fs::read(second.path.as_path().join("a")).unwrap(), b"two");
}

#[test]
fn a_change_behind_size_and_modification_time_is_noticed() {
    let bench = Bench::new();
    std::fs::write(bench.file("a"), "one").unwrap();
    let first = bench.snapshot(Some(i128::MAX));
    change_behind_its_stat(&bench.file("a"), "two");
    assert_ne!(bench.snapshot(Some(i128::MAX)).tree, first.tree);
}

#[test]
fn a_half_made_tree_is_swept_and_one_in_the_making_is_kept() {
    let bench = Bench::new();
    make_dirs(&bench.cache().join("staging")).unwrap();
    let alive = Staging::new(&bench.cache()).unwrap();
    let dead = bench.cache().join("staging/s-dead");
    std::fs::create_dir_all(dead.join("tree/sub")).unwrap();
    std::fs::write(dead.join("tree/sub/f"), "x").unwrap();
    std::fs::set_permissions(dead.join("tree/sub"), PermissionsExt::from_mode(0o555)).unwrap();
    assert_eq!(sweep_staging(&bench.cache()).unwrap(), 1);
    assert!(!dead.exists() && alive.path.exists());
    // R2: again does no harm.
    assert_eq!(sweep_staging(&bench.cache()).unwrap(), 0);
}

#[test]
fn the_loser_of_a_race_for_one_tree_drops_its_own() {
    let bench = Bench::new();
    std::fs::write(bench.file("a"), "one").unwrap();
    let source = crate::inspect(&bench.dir.path().join("p"), None).unwrap();
    let made: Vec<Snapshot> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let options = SnapshotOptions::default();
                    snapshot(&source, &bench.cache(), &options, &mut NoProgress).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|snapshot| snapshot.newly_made).count(), 1);
    assert!(made.windows(2).all(|pair| pair[0].path == pair[1].path));
    assert_eq!(std::fs::read_dir(bench.cache().join("staging")).unwrap().count(), 0);
}

#[test]
fn a_tree_of_an_earlier_boot_or_without_its_marker_is_made_again() {
    let bench = Bench::new();
    std::fs::write(bench.file("a"), "one").unwrap();
    let first = bench.snapshot(Some(i128::MAX));
    let tree = bench.cache().join("trees").join(&first.tree);
    for marker in [&b"{\"boot\":\"another\"}"[..], b""] {
        std::fs::set_permissions(tree.join("tree/a"), PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::write(tree.join("tree/a"), "").unwrap();
        std::fs::write(tree.join("complete"), marker).unwrap();
        let again = bench.snapshot(None);
        assert_eq!((&again.tree, again.newly_made), (&first.tree, true));
        assert_eq!(std::fs::read(tree.join("tree/a")).unwrap(), b"one");
    }
    assert_eq!(std::fs::read_dir(bench.cache().join("staging")).unwrap().count(), 0);
}

#[test]
fn a_file_over_the_limit_is_refused_and_leaves_nothing() {
    let bench = Bench::new();
    std::fs::write(bench.file("a"), "one").unwrap();
    std::fs::write(bench.file("b"), "two").unwrap();
    let source = crate::inspect(&bench.dir.path().join("p"), None).unwrap();
    for limits in [Limits { files: 1, bytes: 100 }, Limits { files: 9, bytes: 5 }] {
        let options = SnapshotOptions { limits, ..SnapshotOptions::default() };
        let refused = snapshot(&source, &bench.cache(), &options, &mut NoProgress).unwrap_err();
        assert_eq!(refused.code, Code::FsTooLarge);
    }
    assert_eq!(std::fs::read_dir(bench.cache().join("staging")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(bench.cache().join("trees")).unwrap().count(), 0);
}
