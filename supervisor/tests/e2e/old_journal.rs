//! J8: journals that released programs wrote are opened. `fixtures/journals` holds one directory for each;
//! `scripts/old-journal` made them, with what that program itself said of its runs.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::World;

fn journals() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/journals");
    let found: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!found.is_empty());
    found
}

/// A place whose journal is the kept one.
fn world(kept: &Path, with_snapshots: bool) -> World {
    let world = World::new();
    let journal = world.state().join("journal");
    let snapshots = journal.join("snapshots");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&snapshots).unwrap();
    std::fs::set_permissions(world.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let copy = |name: &Path, to: &Path| {
        std::fs::copy(name, to.join(name.file_name().unwrap())).unwrap();
    };
    copy(&kept.join("journal.redb"), &journal);
    copy(&kept.join("anchor"), &journal);
    let made = std::fs::read_dir(kept.join("snapshots")).unwrap();
    for snapshot in made.take(if with_snapshots { usize::MAX } else { 0 }) {
        copy(&snapshot.unwrap().path(), &snapshots);
    }
    world
}

/// What is said now has every value that was said then. Not compared: what is read from the disk beside the
/// journal, which is not kept.
#[track_caller]
fn same(then: &Path, now: &[Value]) {
    let then = std::fs::read_to_string(then).unwrap();
    let then: Vec<Value> = then.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(then.len(), now.len());
    for (then, now) in then.iter().zip(now) {
        for (key, value) in then.as_object().unwrap() {
            if !["workspace_path", "changes"].contains(&key.as_str()) {
                assert_eq!(&now[key], value, "{key} of {now}");
            }
        }
    }
}

#[track_caller]
fn opens(kept: &Path, with_snapshots: bool) {
    let world = world(kept, with_snapshots);
    world.sup(&["journal", "verify"]).ends(0);
    same(&kept.join("runs.json"), &world.sup(&["--json", "status", "--all"]).ends(0).json());
    same(&kept.join("budgets.json"), &world.sup(&["--json", "budget", "list"]).ends(0).json());
    // B4: its key still stands for the run it made.
    let again = ["run", "--idempotency-key", "k1", "--", "true"];
    world.sup(&again).ends(125).says("process.idempotency_mismatch");
    world.sup(&["run", "--", "true"]).ends(0);
    world.sup(&["stop"]).ends(0);
    world.sup(&["journal", "verify"]).ends(0);
}

#[test]
fn journals_of_every_release_open_with_their_runs_and_money() {
    for kept in journals() {
        opens(&kept, true);
    }
}

#[test]
fn journals_of_every_release_open_without_their_snapshots() {
    // J6: what the events alone say is the same.
    for kept in journals() {
        opens(&kept, false);
    }
}
