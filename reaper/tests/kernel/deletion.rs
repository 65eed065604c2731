//! Trees that an agent may have written, deleted without touching anything else.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use atenea_core::RunId;
use atenea_reaper::{Error, Part, Permission, Removed, State, remove_part, remove_run_dir};
use rustix::fs::{Mode, OFlags};

use crate::support::{Fixture, Program, as_user, said};

/// Levels of the deep tree.
const LEVELS: u64 = 10_000;

#[test]
fn a_link_in_a_workspace_is_removed_and_its_target_is_not() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    symlink(outside.path(), fixture.ws().join("dir-link")).unwrap();
    symlink(outside.path().join("precious"), fixture.ws().join("file-link")).unwrap();
    fs::create_dir(fixture.ws().join("sub")).unwrap();
    symlink(outside.path(), fixture.ws().join("sub/deep-link")).unwrap();
    let permission = fixture.permission();
    remove_part(&fixture.state, &fixture.run, Part::Workspace(&permission)).unwrap();
    assert!(!fixture.ws().exists());
    assert!(outside.path().join("precious").exists());
}

#[test]
fn control_a_deletion_that_follows_the_same_link_destroys_the_target() {
    let program = Program::new();
    let dir = program.users_dir();
    let script = "mkdir outside ws; touch outside/precious; ln -s ../outside ws/link; \
                  rm -rf ws/link/*; test ! -e outside/precious; echo destroyed";
    assert!(said(&as_user(script, &dir, &[])).contains("destroyed"));
}

#[test]
fn a_workspace_that_is_itself_a_link_is_removed_as_a_link() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    fs::remove_dir(fixture.ws()).unwrap();
    symlink(outside.path(), fixture.ws()).unwrap();
    let permission = fixture.permission();
    remove_part(&fixture.state, &fixture.run, Part::Workspace(&permission)).unwrap();
    assert!(fixture.ws().symlink_metadata().is_err());
    assert!(outside.path().join("precious").exists());
}

#[test]
fn a_run_directory_that_is_a_link_is_never_entered() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("ws")).unwrap();
    fs::remove_dir_all(fixture.run_dir()).unwrap();
    symlink(outside.path(), fixture.run_dir()).unwrap();
    let permission = fixture.permission();
    let refused = remove_part(&fixture.state, &fixture.run, Part::Workspace(&permission));
    assert!(refused.is_err(), "{refused:?}");
    assert!(outside.path().join("ws").exists());
}

/// Makes a chain of directories; no path could name its end.
fn make_chain(top: &Path, levels: u64) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here: OwnedFd = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "d", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn a_tree_of_ten_thousand_levels_is_removed_with_few_descriptors() {
    // In memory: a disk spends milliseconds on each directory, whoever removes it.
    let fixture = Fixture::within(Path::new("/dev/shm"));
    make_chain(&fixture.ws(), LEVELS);
    let output = Command::new("prlimit")
        .args(["--nofile=96", "--stack=262144"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "deletion::entry", "--nocapture", "--test-threads=1"])
        .env(ENTRY, fixture.dir.path())
        .output()
        .unwrap();
    let text = said(&output);
    assert!(text.contains(&format!("Ok(Removed {{ entries: {} }})", LEVELS + 1)), "{text}");
    assert!(!fixture.ws().exists());
}

#[test]
fn a_wide_and_deep_tree_is_removed_although_its_upper_levels_were_let_go() {
    let fixture = Fixture::new();
    // More levels than are held open, more sub-directories than are noted at once.
    let mut entries = 1;
    let mut here = fixture.ws();
    for level in 0..100 {
        let width = if level % 40 == 0 { 600 } else { 2 };
        for n in 0..width {
            fs::create_dir(here.join(format!("d{n}"))).unwrap();
            fs::write(here.join(format!("f{n}")), "x").unwrap();
        }
        entries += 2 * width;
        here = here.join("d1");
    }
    let permission = fixture.permission();
    let removed = remove_part(&fixture.state, &fixture.run, Part::Workspace(&permission)).unwrap();
    assert_eq!(removed, Removed { entries });
    assert!(!fixture.ws().exists());
}

#[test]
fn names_of_any_bytes_and_special_files_are_removed() {
    let fixture = Fixture::new();
    for name in
        [b"\xff\xfe".as_slice(), b"-rf", b"a\nb", b" ", b"*", b"\x1b[2J", b"...", &[b'x'; 255]]
    {
        let dir = fixture.ws().join(OsStr::from_bytes(name));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(OsStr::from_bytes(name)), "x").unwrap();
    }
    let socket = std::os::unix::net::UnixListener::bind(fixture.ws().join("socket")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, fixture.ws().join("fifo"), Mode::RWXU).unwrap();
    fs::write(fixture.ws().join("file"), "x").unwrap();
    fs::hard_link(fixture.ws().join("file"), fixture.ws().join("second-name")).unwrap();
    let permission = fixture.permission();
    remove_part(&fixture.state, &fixture.run, Part::Workspace(&permission)).unwrap();
    assert!(!fixture.ws().exists());
    drop(socket);
}

#[test]
fn directories_without_any_mode_are_removed_by_their_owner() {
    let program = Program::new();
    let dir = program.users_dir();
    let script = format!(
        "mkdir -p runs/{run}/ws/overlay/upper/closed runs/{run}/ws/ro/a runs/{run}/ws/nox/a; \
         touch runs/{run}/ws/ro/a/f runs/{run}/ws/nox/a/f; \
         chmod 000 runs/{run}/ws/overlay/upper/closed runs/{run}/ws/overlay/upper; \
         chmod 500 runs/{run}/ws/ro/a runs/{run}/ws/ro; chmod 600 runs/{run}/ws/nox/a runs/{run}/ws/nox; \
         {call}",
        run = run_id(),
        call = program.call("deletion::entry"),
    );
    // Control: without the modes the owner cannot even list them.
    let output = as_user(&script, &dir, &[(ENTRY, dir.to_str().unwrap())]);
    assert!(said(&output).contains("Ok(Removed { entries: 10 })"), "{}", said(&output));
    assert!(!dir.join("runs").join(run_id().as_str()).join("ws").exists());
}

#[test]
fn control_an_ordinary_deletion_of_such_directories_fails() {
    let program = Program::new();
    let dir = program.users_dir();
    let script =
        "mkdir -p ws/upper/closed; chmod 000 ws/upper; rm -rf ws && echo gone; chmod 700 ws/upper";
    let output = as_user(script, &dir, &[]);
    assert!(!said(&output).contains("gone"), "{}", said(&output));
}

#[test]
fn a_mount_below_is_reported_and_what_is_in_it_survives() {
    for mount in ["mount -t tmpfs none", "mount --bind outside"] {
        let fixture = Fixture::new();
        let outside = fixture.dir.path().join("outside");
        fs::create_dir_all(&outside).unwrap();
        let script = format!(
            "cd {top}; mkdir -p {ws}/a/m; {mount} {ws}/a/m; touch {ws}/a/m/precious; \
             {exe} --exact deletion::entry --nocapture --test-threads=1; \
             test -e {ws}/a/m/precious && echo survived",
            top = fixture.dir.path().display(),
            ws = fixture.ws().display(),
            exe = std::env::current_exe().unwrap().display(),
        );
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc", &script])
            .env(ENTRY, fixture.dir.path())
            .output()
            .unwrap();
        let text = said(&output);
        assert!(text.contains("MountBelow") && text.contains("a/m"), "{mount}: {text}");
        assert!(text.contains("survived"), "{mount}: {text}");
    }
}

#[test]
fn control_an_ordinary_deletion_crosses_the_same_mount() {
    let program = Program::new();
    let dir = program.users_dir();
    let script = "mkdir -p ws/a/m outside; unshare --user --map-root-user --mount sh -euc \
                  'mount --bind outside ws/a/m; touch ws/a/m/precious; rm -rf ws 2>/dev/null || true; \
                   test ! -e outside/precious; echo crossed'";
    let output = as_user(script, &dir, &[]);
    assert!(said(&output).contains("crossed"), "{}", said(&output));
}

#[test]
fn a_mount_in_the_place_of_the_run_directory_is_reported() {
    let fixture = Fixture::new();
    let script = format!(
        "mount -t tmpfs none {run}; mkdir {run}/ws; \
         {exe} --exact deletion::entry --nocapture --test-threads=1; test -d {run}/ws && echo survived",
        run = fixture.run_dir().display(),
        exe = std::env::current_exe().unwrap().display(),
    );
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", &script])
        .env(ENTRY, fixture.dir.path())
        .output()
        .unwrap();
    let text = said(&output);
    assert!(text.contains("MountBelow") && text.contains("survived"), "{text}");
}

#[test]
fn without_a_permission_a_workspace_stays_and_so_does_everything_beside_it() {
    // C4
    let fixture = Fixture::new();
    fs::write(fixture.run_dir().join("stdout"), "x").unwrap();
    let kept = remove_run_dir(&fixture.state, &fixture.run, None);
    assert!(matches!(kept, Err(Error::WorkspaceKept { .. })), "{kept:?}");
    assert!(fixture.ws().exists() && fixture.run_dir().join("stdout").exists());
    let other = Permission::discarded(RunId::from_random(1));
    let kept = remove_run_dir(&fixture.state, &fixture.run, Some(&other));
    assert!(matches!(kept, Err(Error::OtherRun { .. })), "{kept:?}");
    for name in ["ws", "base.git", "../ws", ".", "..", "", "ws/", "a/b", "./ws"] {
        let kept = remove_part(&fixture.state, &fixture.run, Part::Other(OsStr::new(name)));
        assert!(matches!(kept, Err(Error::BadPart { .. })), "{name}: {kept:?}");
    }
    assert!(fixture.ws().exists());
    remove_run_dir(&fixture.state, &fixture.run, Some(&fixture.permission())).unwrap();
    assert!(!fixture.run_dir().exists());
}

#[test]
fn every_removal_may_be_repeated() {
    // R2
    let fixture = Fixture::new();
    fs::write(fixture.run_dir().join("stdout"), "x").unwrap();
    let permission = fixture.permission();
    for first in [1, 0] {
        let part = Part::Other(OsStr::new("stdout"));
        let removed = remove_part(&fixture.state, &fixture.run, part).unwrap();
        assert_eq!(removed.entries, first);
        let removed = remove_part(&fixture.state, &fixture.run, Part::Workspace(&permission));
        assert_eq!(removed.unwrap().entries, first);
    }
    for first in [1, 0] {
        let removed = remove_run_dir(&fixture.state, &fixture.run, None).unwrap();
        assert_eq!(removed.entries, first);
    }
}

const ENTRY: &str = "ATENEA_REAPER_TEST_STATE";

fn run_id() -> RunId {
    RunId::from_random(0x1234_5678_9abc)
}

/// Not a test: removes the workspace of a state directory as whoever started this.
#[test]
fn entry() {
    let Some(path) = std::env::var_os(ENTRY) else { return };
    let state = State::open(Path::new(&path)).unwrap();
    let permission = Permission::discarded(run_id());
    println!("{:?}", remove_part(&state, &run_id(), Part::Workspace(&permission)));
}
