//! A run that fills the disk of the state directory ends, and no other does.

use std::process::Command;

use crate::support::{Out, World, host, program};

/// Runs a script in a mount namespace of its own, where `$DIR/disk` is a small disk that only it
/// and its supervisor see. `$HOG` fills it as fast as it can and complains about each failure.
#[track_caller]
fn on_a_small_disk(world: &World, script: &str) -> Out {
    assert!(rustix::process::geteuid().is_root(), "this test mounts a small disk: run it as root");
    std::fs::create_dir(world.dir().join("disk")).unwrap();
    let begin = r#"
set -u
mount -t tmpfs -o size=60m,mode=755 tmpfs "$DIR/disk"
sup() { "$SUP" --config "$DIR/atenea-sup.toml" --state-dir "$DIR/disk/state" "$@"; }
"#;
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "--mount", "sh", "-c", &format!("{begin}{script}")]);
    command.env("HOG", "while :; do head -c 4M /dev/zero >> big || echo more; done");
    host(command.env("SUP", program()).env("DIR", world.dir()).current_dir(world.work()))
}

#[test]
fn a_run_that_fills_the_disk_ends_alone_and_everything_else_can_be_ended() {
    let world = World::configured("");
    let script = r#"
innocent=$(sup run --detach -- sh -c 'echo ready; exec sleep 1000') || echo "no first run"
until sup logs "$innocent" | grep -q ready; do :; done
hog=$(sup run --detach --profile workspace-write -- sh -c "$HOG") || echo "no hog"
sup --json wait "$hog" | grep -o '"code":"[^"]*"'
sup --json status "$innocent" | grep -o '"state":"[^"]*"'
sup run -- true; echo "refused: $?"
sup cancel --grace 0s "$innocent"; echo "cancel: $?"
sup wait "$innocent"; echo "wait: $?"
sup discard "$hog"; echo "discard: $?"
sup run -- true; echo "again: $?"
sup journal verify > "$DIR/verify"; echo "verify: $?"
sup stop
"#;
    let out = on_a_small_disk(&world, script);
    let want = "\"code\":\"fs.disk_full\"\n\"state\":\"running\"\nrefused: 125\ncancel: 0\nwait: 137\n\
                discard: 0\nagain: 0\nverify: 0\n";
    assert_eq!(out.out, want, "{out:?}");
    assert!(out.err.contains("error[fs.disk_full]"), "{out:?}");
}
