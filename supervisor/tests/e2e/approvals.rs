//! A manifest that names the step of a workflow runs only while a person's approval of exactly it lives.

use std::path::PathBuf;

use crate::support::World;

/// A manifest of `step`, run with `true`; its file.
fn manifest(world: &World, name: &str, words: &str) -> PathBuf {
    let file = world.work().join(name);
    let text = format!(
        "version = 1\nprofile = \"read\"\n[command]\nargv = [\"echo\", \"{words}\"]\n\
         [workspace]\npath = \"{}\"\n[approval]\nstep = \"deploy/1\"\n",
        world.work().display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn an_approved_file_runs_as_often_as_allowed_and_its_receipt_names_the_approval() {
    let world = World::new();
    let file = manifest(&world, "m.toml", "hello");
    let file = file.to_str().unwrap();
    world.sup(&["run", "--manifest", file]).ends(125).says("approval.required");
    let given = world.sup(&["--json", "approve", file, "--uses", "2"]).ends(0).object();
    let digest = world.sup(&["manifest", "digest", file]).ends(0).out;
    assert_eq!(given["manifest"].as_str().unwrap(), digest.trim());
    assert_eq!(world.sup(&["run", "--manifest", file]).ends(0).out, "hello\n");
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert_eq!(receipt["approval"]["seq"], given["seq"]);
    assert_eq!(receipt["approval"]["step"], "deploy/1");
    // It survives the supervisor.
    world.sup(&["stop"]).ends(0);
    world.sup(&["run", "--manifest", file]).ends(0);
    world.sup(&["run", "--manifest", file]).ends(125).says("approval.used");
    let listed = world.sup(&["--json", "approve"]).ends(0).object();
    assert_eq!((&listed["used"], &listed["uses"]), (&2.into(), &2.into()));
    // Every refusal is a run with its receipt.
    assert_eq!(world.last()["outcome"], "refused");
    assert!(world.last()["receipt"].is_string());
}

#[test]
fn a_file_that_was_changed_after_its_approval_does_not_run() {
    let world = World::new();
    let file = manifest(&world, "m.toml", "hello");
    let file = file.to_str().unwrap();
    world.sup(&["approve", file]).ends(0);
    manifest(&world, "m.toml", "hellO");
    world.sup(&["run", "--manifest", file]).ends(125).says("approval.mismatch");
    manifest(&world, "m.toml", "hello");
    // An option makes another manifest of it.
    world.sup(&["run", "--manifest", file, "--pids", "9"]).ends(125).says("approval.mismatch");
    world.sup(&["run", "--manifest", file]).ends(0);
}

#[test]
fn where_approval_is_required_nothing_else_runs() {
    let world = World::configured("[approval]\nrequired = true\n");
    world.sup(&["run", "--", "true"]).ends(125).says("approval.required");
    let file = manifest(&world, "m.toml", "hello");
    let file = file.to_str().unwrap();
    world.sup(&["approve", file, "--expires", "1h"]).ends(0);
    world.sup(&["run", "--manifest", file]).ends(0);
}

#[test]
fn approvals_that_could_never_be_claimed_are_refused() {
    let world = World::new();
    let file = manifest(&world, "m.toml", "hello");
    let file = file.to_str().unwrap();
    world.sup(&["approve", file, "--step", "other"]).ends(4).says("approval.mismatch");
    world.sup(&["approve", file, "--uses", "0"]).ends(4).says("manifest.bad_limit");
    world.sup(&["approve", file, "--expires", "0s"]).ends(4).says("manifest.bad_limit");
    world.sup(&["approve", file, "--expires", "400d"]).ends(4).says("manifest.bad_limit");
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.split("[approval]").next().unwrap()).unwrap();
    world.sup(&["approve", file]).ends(4).says("approval.required");
    assert_eq!(world.sup(&["--json", "approve"]).ends(0).out, "");
}
