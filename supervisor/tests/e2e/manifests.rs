//! Runs from a manifest file: what was approved, narrowed by options and never widened.

use std::path::PathBuf;

use crate::support::World;

fn manifest(world: &World) -> PathBuf {
    let path = world.dir().join("agent.toml");
    let work = std::fs::canonicalize(world.work()).unwrap();
    let text = format!(
        "version = 1\n[command]\nargv = [\"sh\", \"-c\", \"echo $GREETING; exit 4\"]\n\
         env = {{ GREETING = \"hello\" }}\n[workspace]\npath = {work:?}\n\
         [limits]\nmemory = \"512MiB\"\npids = 50\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_manifest_is_checked_explained_and_run() {
    let world = World::new();
    let path = manifest(&world);
    let name = path.to_str().unwrap();
    world.sup(&["manifest", "check", name]).ends(0);
    let digest = world.sup(&["manifest", "digest", name]).ends(0).out.trim().to_owned();
    assert!(digest.starts_with("b3:"), "{digest}");
    let plain = world.sup(&["manifest", "explain", name]).ends(0).out;
    assert!(plain.contains("512") && plain.contains("GREETING"), "{plain}");
    assert!(!world.state().exists(), "looking at a manifest started something");
    assert_eq!(world.sup(&["run", "--manifest", name]).ends(4).out, "hello\n");
    // S3: the receipt names what was approved.
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert_eq!(receipt["manifest"], digest.as_str());
    assert_eq!(receipt["limits"]["pids"], 50);
}

#[test]
fn options_narrow_a_manifest_and_never_widen_it() {
    let world = World::new();
    let path = manifest(&world);
    let run = ["run", "--manifest", path.to_str().unwrap()];
    for wider in [
        &["--memory", "1GiB"][..],
        &["--pids", "51"],
        &["--profile", "workspace-write"],
        &["--mount", "/usr"],
        &["--env", "MORE=1"],
        &["--workspace", "/srv"],
    ] {
        let out = world.sup(&[&run[..], wider].concat());
        assert_eq!(out.status, 125, "{wider:?}: {out:?}");
        assert!(out.err.contains("error[manifest.wider_than_approved]"), "{wider:?}: {out:?}");
    }
    assert!(world.run_dirs().is_empty());
    world.sup(&[&run[..], &["--memory", "256MiB", "--pids", "20"]].concat()).ends(4);
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert_eq!(receipt["limits"]["pids"], 20);
}

#[test]
fn a_manifest_that_has_no_end_blocks_or_is_huge_is_refused_at_once() {
    let world = World::new();
    let named = |name: &str| world.work().join(name).to_str().unwrap().to_owned();
    let fifo = named("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    // Sparse: to read it whole would take longer than the test waits, and more memory than there is.
    let huge = named("huge.toml");
    std::fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let places = [
        ("/dev/zero", "manifest.unreadable"),
        (fifo.as_str(), "manifest.unreadable"),
        ("/proc/self", "manifest.unreadable"),
        (huge.as_str(), "manifest.too_large"),
    ];
    for (file, code) in places {
        for command in ["check", "digest", "explain"] {
            world.sup(&["manifest", command, file]).ends(4).says(code);
        }
        world.sup(&["run", "--manifest", file]).ends(125).says(code);
    }
}
