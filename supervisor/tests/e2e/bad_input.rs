//! Bad input gets one clear error with its code, and nothing of it is left.

use std::path::Path;
use std::process::Command;

use crate::support::{World, host, picture, program};

/// Refused with this code, one error, and neither directory nor group of a run is there.
#[track_caller]
fn refused(world: &World, args: &[&str], code: &str) {
    refused_in(world, &world.work(), args, code);
}

#[track_caller]
fn refused_in(world: &World, dir: &Path, args: &[&str], code: &str) {
    let before = world.run_dirs();
    let out = world.sup_in(dir, args).ends(125).says(code);
    assert_eq!(out.err.matches("error[").count(), 1, "{out:?}");
    assert_eq!(out.out, "", "{out:?}");
    assert_eq!(world.run_dirs(), before, "{args:?} left something");
    assert!(world.groups().is_empty(), "{args:?} left a group");
}

#[test]
fn a_manifest_with_an_unknown_key_version_or_form_is_refused() {
    let world = World::new();
    let path = world.dir().join("m.toml");
    let name = path.to_str().unwrap();
    let command = "[command]\nargv = [\"true\"]\n[workspace]\npath = \"/srv\"\n";
    for (text, code) in [
        (format!("version = 1\nprofil = \"read\"\n{command}"), "manifest.unknown_key"),
        (format!("version = 2\n{command}"), "manifest.unknown_version"),
        (format!("version = 1\n{command}[limits]\nmemory = \"0\"\n"), "manifest.bad_limit"),
        (format!("version = 1\n{command}[limits]\npids = -1\n"), "manifest.bad_limit"),
        (format!("version = 1\neffects = [\"fly\"]\n{command}"), "manifest.unknown_effect"),
        ("version = [".to_owned(), "manifest.unreadable"),
    ] {
        std::fs::write(&path, &text).unwrap();
        refused(&world, &["run", "--manifest", name], code);
        world.sup(&["manifest", "check", name]).ends(4).says(code);
    }
    refused(&world, &["run", "--manifest", "/nosuch/file"], "manifest.unreadable");
    refused(&world, &["run"], "manifest.no_command");
}

#[test]
fn zero_negative_and_shapeless_limits_are_refused() {
    let world = World::new();
    for option in ["--memory", "--cpus", "--pids", "--timeout", "--disk", "--output"] {
        for value in ["0", "-1", "much"] {
            let option = format!("{option}={value}");
            refused(&world, &["run", &option, "--", "true"], "manifest.bad_limit");
        }
    }
    for pids in ["--pids=1", "--pids=2"] {
        refused(&world, &["run", pids, "--", "true"], "manifest.bad_limit");
    }
    world.sup(&["run", "--pids=3", "--", "true"]).ends(0);
    refused(&world, &["run", "--budget=-1", "--", "true"], "budget.bad_amount");
}

#[test]
fn a_limit_above_the_ceiling_is_refused() {
    let text = "[limits.max]\nmemory = \"1GiB\"\nduration = \"1h\"\npids = 100\n";
    let world = World::configured(text);
    for option in ["--memory=2GiB", "--timeout=2h", "--pids=101"] {
        refused(&world, &["run", option, "--", "true"], "manifest.above_ceiling");
    }
    world.sup(&["run", "--memory=1GiB", "--timeout=1h", "--pids=100", "--", "true"]).ends(0);
}

#[test]
fn a_budget_the_account_cannot_cover_is_refused_with_a_receipt_and_nothing_else() {
    let world = World::new();
    world.sup(&["budget", "set", "default", "1"]).ends(0);
    world.sup(&["run", "--budget", "1.01", "--", "true"]).ends(125).says("budget.insufficient");
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let left = std::fs::read_dir(world.run_dir(&run)).unwrap();
    let left: Vec<_> = left.map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["receipt.json"]);
    assert_eq!(world.receipt(&run)["outcome"], "refused");
    assert_eq!(world.account("default")["usd_held"], "0");
}

#[test]
fn grants_on_what_is_not_there_or_must_not_be_seen_are_refused() {
    let world = World::new();
    refused(&world, &["run", "--mount", "/nosuch", "--", "true"], "fs.not_found");
    refused(&world, &["run", "--workspace", "/nosuch", "--", "true"], "fs.not_found");
    for target in ["/usr:/proc/x", "/usr:/dev/x", "/usr:/sys/x", "/usr:/run/x", "/usr:/a/../b"] {
        refused(&world, &["run", "--mount", target, "--", "true"], "fs.bad_target");
    }
}

#[test]
fn a_workspace_that_is_the_root_or_holds_the_state_is_refused() {
    let world = World::new();
    refused(&world, &["run", "--workspace", "/", "--", "true"], "fs.bad_workspace");
    refused_in(&world, Path::new("/"), &["run", "--", "true"], "fs.bad_workspace");
    refused_in(&world, world.dir(), &["run", "--", "true"], "fs.state_in_workspace");
    let state = world.state().display().to_string();
    refused(&world, &["run", "--workspace", &state, "--", "true"], "fs.state_in_workspace");
    let file = world.work().join("file");
    std::fs::write(&file, "").unwrap();
    let args = ["run", "--workspace", file.to_str().unwrap(), "--", "true"];
    refused(&world, &args, "fs.bad_workspace");
}

#[test]
fn what_this_version_cannot_enforce_is_refused_and_not_ignored() {
    let world = World::new();
    for option in ["--allow=example.com", "--parent=r_0123456789ab"] {
        refused(&world, &["run", option, "--", "true"], "manifest.unsupported_feature");
    }
}

#[test]
fn wrong_usage_ends_with_2_and_starts_nothing() {
    let world = World::new();
    for args in [&["nosuch"][..], &["run", "--nosuch"], &["cancel"], &["wait"], &["budget"]] {
        world.sup(args).ends(2);
    }
    assert!(!world.state().exists());
}

#[test]
fn a_configuration_with_an_unknown_key_or_value_starts_nothing() {
    for text in
        ["[sandbox]\nmod = \"off\"\n", "[sandbox]\nidle_seconds = 0\n", "[llm]\nx = 1\n", "x"]
    {
        let world = World::configured(text);
        world.sup(&["run", "--", "true"]).ends(125).says("host.config");
        assert!(world.run_dirs().is_empty());
        world.sup(&["info"]).ends(3).says("host.no_supervisor");
    }
    let world = World::new();
    let args = ["--config", "/nosuch.toml", "run", "--", "true"];
    world.sup(&args).ends(125).says("host.config");
}

#[test]
fn a_state_directory_of_somebody_else_or_open_to_all_is_not_used() {
    assert!(rustix::process::geteuid().is_root(), "this test changes owners: run it as root");
    let world = World::new();
    std::fs::create_dir(world.state()).unwrap();
    std::os::unix::fs::chown(world.state(), Some(65_533), Some(65_533)).unwrap();
    world.sup(&["run", "--", "true"]).ends(125).says("host.state_dir");
    std::os::unix::fs::chown(world.state(), Some(0), Some(0)).unwrap();
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(world.state(), mode(0o777)).unwrap();
    world.sup(&["run", "--", "true"]).ends(125).says("host.state_dir");
    assert_eq!(std::fs::read_dir(world.state()).unwrap().count(), 0, "something was made in it");
    std::fs::set_permissions(world.state(), mode(0o700)).unwrap();
    world.sup(&["run", "--", "true"]).ends(0);
}

#[test]
fn a_place_in_the_state_directory_that_is_a_link_is_refused_and_what_it_points_to_is_not_touched() {
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    world.sup(&["stop"]).ends(0);
    let elsewhere = world.dir().join("elsewhere");
    for place in ["runs", "journal", "cache", "staging"] {
        let own = world.state().join(place);
        std::fs::rename(&own, &elsewhere).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o750);
        std::fs::set_permissions(&elsewhere, mode).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &own).unwrap();
        let before = (std::fs::metadata(&elsewhere).unwrap().permissions(), picture(&elsewhere));
        world.sup(&["run", "--", "true"]).ends(125).says("host.state_dir");
        let after = (std::fs::metadata(&elsewhere).unwrap().permissions(), picture(&elsewhere));
        assert_eq!(before, after, "{place}");
        std::fs::remove_file(&own).unwrap();
        std::fs::rename(&elsewhere, &own).unwrap();
    }
    // Control: the same directories in their places are accepted.
    world.sup(&["run", "--", "true"]).ends(0);
}

#[test]
fn runs_without_their_journal_are_a_loss_and_no_fresh_start() {
    let world = World::new();
    world.sup(&["budget", "set", "default", "5"]).ends(0);
    world.sup(&["run", "--budget", "1", "--", "true"]).ends(0);
    world.sup(&["stop"]).ends(0);
    let (journal, lost) = (world.state().join("journal"), world.dir().join("lost"));
    std::fs::rename(&journal, &lost).unwrap();
    for args in [&["run", "--", "true"][..], &["budget", "set", "default", "5"]] {
        // J3, B3: holds and work would be forgotten in silence.
        world.sup(args).says("journal.truncated");
        assert!(!journal.exists(), "a new journal was begun");
    }
    // An empty directory in its place is the same loss.
    std::fs::create_dir(&journal).unwrap();
    world.sup(&["run", "--", "true"]).ends(125).says("journal.truncated");
    assert_eq!(std::fs::read_dir(&journal).unwrap().count(), 0, "a new journal was begun");
    // Who only looks begins none either: the next start would take it for the right one.
    for look in ["dump", "stats", "verify"] {
        let out = world.sup(&["journal", look]);
        assert_ne!(out.status, 0, "{look}: {out:?}");
        assert!(!journal.join("journal.redb").exists(), "{look} began a new journal");
    }
    world.sup(&["run", "--", "true"]).ends(125).says("journal.truncated");
    std::fs::remove_dir_all(&journal).unwrap();
    // Control: with it everything is there again.
    std::fs::rename(&lost, &journal).unwrap();
    world.sup(&["run", "--", "true"]).ends(0);
    assert_eq!(world.sup(&["--json", "status", "--all"]).ends(0).json().len(), 2);
}

#[test]
fn a_grant_that_holds_a_socket_is_refused() {
    let world = World::new();
    let grant = world.dir().join("grant");
    let deep = grant.join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(grant.join("file"), "granted\n").unwrap();
    let socket = deep.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let named = |path: &Path| path.to_str().unwrap().to_owned();
    refused(&world, &["run", "--mount", &named(&grant), "--", "true"], "fs.holds_socket");
    refused(&world, &["run", "--mount", &named(&socket), "--", "true"], "fs.holds_socket");
    // Control: the single file beside it, and the directory without it.
    let file = named(&grant.join("file"));
    let out = world.sup(&["run", "--mount", &file, "--", "cat", &file]).ends(0);
    assert_eq!(out.out, "granted\n");
    std::fs::remove_file(&socket).unwrap();
    world.sup(&["run", "--mount", &named(&grant), "--", "cat", &file]).ends(0);
}

#[test]
fn a_grant_that_overlaps_the_state_directory_is_refused() {
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    // Elsewhere: a grant must not hold the workspace either.
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path().to_str().unwrap();
    let link = world.dir().join("link");
    std::os::unix::fs::symlink(world.dir(), &link).unwrap();
    let state = world.state();
    for source in [world.dir(), &state, &state.join("runs"), &link] {
        let mount = format!("{}:/granted", source.display());
        let args = ["run", "--workspace", workspace, "--mount", &mount, "--", "true"];
        refused(&world, &args, "fs.state_in_workspace");
    }
    // Control: a neighbour whose name begins like it.
    let neighbour = world.dir().join("state2");
    std::fs::create_dir(&neighbour).unwrap();
    let mount = format!("{}:/granted", neighbour.display());
    world.sup(&["run", "--workspace", workspace, "--mount", &mount, "--", "true"]).ends(0);
}

#[test]
fn a_journal_of_a_newer_version_is_refused_and_not_changed() {
    use atenea_journal::{Holder, Journal, NewRecord, Options, Priority};
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    world.sup(&["stop"]).ends(0);
    let dir = world.state().join("journal");
    let opened = Journal::open(&dir, Options::default(), Holder::this_process("test", 0)).unwrap();
    let newer = NewRecord { kind: 1, schema: 999, payload: atenea_journal::encode(&1).unwrap() };
    opened.journal.append(vec![newer], Priority::Normal).unwrap();
    opened.journal.close().unwrap();
    let anchor = std::fs::read(dir.join("anchor")).unwrap();
    world.sup(&["run", "--", "true"]).ends(125).says("journal.newer");
    world.sup(&["status"]).ends(4).says("journal.newer");
    assert_eq!(std::fs::read(dir.join("anchor")).unwrap(), anchor);
}

#[test]
fn a_journal_that_was_cut_or_replaced_is_refused_until_a_person_accepts_the_loss() {
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    let lost = world.run_dir(world.last()["run"].as_str().unwrap());
    let half_made = world.run_dir("r_000000000000");
    world.sup(&["stop"]).ends(0);
    let store = world.state().join("journal/journal.redb");
    std::fs::remove_file(&store).unwrap();
    world.sup(&["run", "--", "true"]).ends(125).says("journal.truncated");
    world.sup(&["journal", "verify"]).ends(1);
    world.sup(&["journal", "recover", "--accept-loss"]).ends(0);
    std::fs::create_dir(&half_made).unwrap();
    world.sup(&["run", "--", "true"]).ends(0);
    world.sup(&["journal", "verify"]).ends(0);
    // C4: what proves the lost run stays and is named; what proves nothing goes.
    assert!(lost.join("receipt.json").exists());
    assert!(!half_made.exists());
    let unknown = &world.sup(&["--json", "info"]).ends(0).object()["unaccounted"];
    assert_eq!(unknown, &serde_json::json!([lost.to_str().unwrap()]));
}

#[test]
fn on_a_full_disk_new_runs_are_refused_and_old_ones_can_be_ended() {
    assert!(rustix::process::geteuid().is_root(), "this test mounts a small disk: run it as root");
    let world = World::configured("[journal]\nreserve = \"1MiB\"\n");
    std::fs::create_dir(world.dir().join("disk")).unwrap();
    // A disk that only this script and its supervisor see.
    let script = r#"
set -u
mount -t tmpfs -o size=40m,mode=755 tmpfs "$DIR/disk"
sup() { "$SUP" --config "$DIR/atenea-sup.toml" --state-dir "$DIR/disk/state" "$@"; }
run=$(sup run --detach -- sh -c 'echo ready; sleep 1000') || echo "no first run"
until sup logs "$run" | grep -q ready; do :; done
head -c 100000000 /dev/zero > "$DIR/disk/fill" 2>/dev/null
sup run -- true; echo "refused: $?"
sup cancel "$run" --grace 0s; echo "cancel: $?"
sup wait "$run"; echo "wait: $?"
rm "$DIR/disk/fill"
sup run -- true; echo "again: $?"
sup stop --now
"#;
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "--mount", "sh", "-c", script]).current_dir(world.work());
    let out = host(command.env("SUP", program()).env("DIR", world.dir()));
    let want = "refused: 125\ncancel: 0\nwait: 137\nagain: 0\n";
    assert_eq!(out.out, want, "{out:?}");
    assert!(out.err.contains("error[fs.disk_full]"), "{out:?}");
}
