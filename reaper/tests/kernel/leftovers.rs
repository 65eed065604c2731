//! What lies in the state directory and is no part of a known run.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;

use atenea_cgroup::Layout;
use atenea_core::RunId;
use atenea_reaper::{Leftover, State, observe, remove_leftover};

use crate::support::{Fixture, said};

const NO_INSTANCE: &str = "reaper-none";

#[test]
fn half_made_files_sockets_and_unknown_runs_are_found_and_removed_but_no_workspace() {
    let fixture = Fixture::new();
    let top = fixture.state.path().to_owned();
    let run_dir = top.join("runs").join(fixture.run.as_str());
    let unknown = RunId::from_random(1);
    let precious = RunId::from_random(2);
    fs::create_dir(top.join("runs").join(unknown.as_str())).unwrap();
    fs::create_dir_all(top.join("runs").join(precious.as_str()).join("ws/work")).unwrap();
    fs::write(top.join("runs/notes"), "x").unwrap();
    fs::create_dir_all(top.join("cache/staging/abc/tree")).unwrap();
    fs::write(run_dir.join("manifest.new"), "x").unwrap();
    fs::write(run_dir.join("ws/mine.new"), "x").unwrap();
    fs::write(top.join("instance.new"), "x").unwrap();
    drop(UnixListener::bind(top.join("control.sock")).unwrap());
    drop(UnixListener::bind(run_dir.join("broker.sock")).unwrap());

    let look = || {
        let layout = Layout::detect().unwrap();
        observe(&fixture.state, &layout, NO_INSTANCE)
            .unwrap()
            .compare(|_| false, |run| *run == fixture.run)
    };
    let mut found = look();
    found.sort_by_key(|leftover| format!("{leftover:?}"));
    let mut wanted = vec![
        Leftover::Foreign(top.join("runs/notes")),
        Leftover::HalfMade(top.join("cache/staging/abc")),
        Leftover::HalfMade(top.join("instance.new")),
        Leftover::HalfMade(run_dir.join("manifest.new")),
        Leftover::RunDir { run: unknown.clone(), precious: false },
        Leftover::RunDir { run: precious.clone(), precious: true },
        Leftover::Socket(top.join("control.sock")),
        Leftover::Socket(run_dir.join("broker.sock")),
    ];
    wanted.sort_by_key(|leftover| format!("{leftover:?}"));
    assert_eq!(found, wanted);

    for leftover in found.iter().chain(&found) {
        let removed = remove_leftover(&fixture.state, leftover).unwrap();
        let kept =
            matches!(leftover, Leftover::Foreign(_) | Leftover::RunDir { precious: true, .. });
        assert_eq!(removed.is_none(), kept, "{leftover:?}");
    }
    // C4: somebody's work stays, also where the journal does not know its run.
    let mut left = look();
    left.sort_by_key(|leftover| format!("{leftover:?}"));
    assert_eq!(
        left,
        [
            Leftover::Foreign(top.join("runs/notes")),
            Leftover::RunDir { run: precious, precious: true },
        ]
    );
    assert!(run_dir.join("ws/mine.new").exists());
}

#[test]
fn a_leftover_that_points_elsewhere_is_refused() {
    let fixture = Fixture::new();
    let top = fixture.state.path();
    fs::create_dir(top.join("journal")).unwrap();
    fs::write(top.join("journal/store"), "x").unwrap();
    for path in ["journal", "journal/store", "runs", "cache/staging/../../journal"] {
        for leftover in [Leftover::HalfMade(top.join(path)), Leftover::Socket(top.join(path))] {
            let refused = remove_leftover(&fixture.state, &leftover);
            assert!(refused.is_err(), "{path}: {refused:?}");
        }
    }
    assert!(remove_leftover(&fixture.state, &Leftover::HalfMade("/etc/x.new".into())).is_err());
    assert!(top.join("journal/store").exists());
}

#[test]
fn a_state_directory_that_cannot_be_read_is_an_error_and_not_empty() {
    let fixture = Fixture::new();
    let layout = Layout::detect().unwrap();
    let runs = fixture.state.path().join("runs");
    fs::remove_dir_all(&runs).unwrap();
    fs::write(&runs, "not a directory").unwrap();
    let refused = observe(&fixture.state, &layout, NO_INSTANCE);
    assert!(refused.is_err());
    // Control: absent is empty.
    fs::remove_file(&runs).unwrap();
    assert!(observe(&fixture.state, &layout, NO_INSTANCE).unwrap().runs.is_empty());
}

const ENTRY: &str = "ATENEA_REAPER_TEST_MOUNTS";

/// Not a test: looks for mounts in the namespace in which it was started.
#[test]
fn entry() {
    let Some(path) = std::env::var_os(ENTRY) else { return };
    let state = State::open(path.as_ref()).unwrap();
    let seen = observe(&state, &Layout::detect().unwrap(), NO_INSTANCE).unwrap();
    println!("mounts: {:?}", seen.mounts);
}

#[test]
fn mounts_below_the_state_directory_are_seen() {
    let fixture = Fixture::new();
    let top = fixture.state.path();
    fs::create_dir(top.join("a b")).unwrap();
    let script = format!(
        "mount -t tmpfs none '{}/a b'; {} --exact leftovers::entry --nocapture --test-threads=1",
        top.display(),
        std::env::current_exe().unwrap().display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", &script])
        .env(ENTRY, top)
        .output()
        .unwrap();
    let wanted = format!("mounts: [{:?}]", top.join("a b"));
    assert!(said(&output).contains(&wanted), "{}", said(&output));
    let seen = observe(&fixture.state, &Layout::detect().unwrap(), NO_INSTANCE).unwrap();
    assert!(seen.mounts.is_empty(), "{:?}", seen.mounts);
}
