//! What an agent leaves in its workspace is looked at, diffed and exported without being obeyed.

use crate::support::{World, git, repository};

const WRITE: &[&str] = &["--profile", "workspace-write"];

/// Runs a script in a private clone and gives the run's id.
#[track_caller]
fn left(world: &World, script: &str) -> String {
    repository(&world.work());
    world.shell(WRITE, script).ends(0);
    world.last()["run"].as_str().unwrap().to_owned()
}

/// The export is refused with the code, and no ref is made.
#[track_caller]
fn not_exported(script: &str, code: &str) {
    let world = World::new();
    let run = left(&world, script);
    world.sup(&["export", &run]).ends(4).says(code);
    let refs = git(&world.work(), &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(refs, "refs/heads/main\n", "{script}");
    // Nothing is lost: a person can look at it still.
    world.sup(&["diff", &run]).ends(0);
}

#[test]
fn a_link_that_points_outside_is_not_exported() {
    not_exported("ln -s /etc/passwd link", "export.link_escapes");
    not_exported("ln -s ../../outside link", "export.link_escapes");
}

#[test]
fn a_fifo_a_setuid_file_and_a_hard_link_are_not_exported() {
    not_exported("mkfifo pipe; echo x > other", "export.special_file");
    not_exported("echo x > tool; chmod 6755 tool", "export.setuid");
    not_exported("echo x > a; ln a b", "export.hard_link");
}

#[test]
fn hooks_and_configuration_of_the_agent_are_not_executed() {
    let world = World::new();
    let fired = world.dir().join("fired");
    std::fs::create_dir(&fired).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&fired, mode).unwrap();
    let fired = fired.display();
    let script = format!(
        "cat > trap <<'END'\n#!/bin/sh\necho \"$0\" >> {fired}/by\nexit 0\nEND\nchmod +x trap\n\
         for h in post-index-change reference-transaction pre-commit post-checkout pre-auto-gc; do \
         cp trap .git/hooks/$h; done\n\
         git config core.fsmonitor \"$PWD/trap\"; git config core.hooksPath \"$PWD/.git/hooks\"\n\
         git config diff.external \"$PWD/trap\"; git config filter.f.clean \"$PWD/trap\"\n\
         git config core.sshCommand \"$PWD/trap\"; git config core.pager \"$PWD/trap\"\n\
         echo '* filter=f diff=f' > .gitattributes; git config diff.f.textconv \"$PWD/trap\"\n\
         echo two >> file\n"
    );
    let run = left(&world, &script);
    // S7: the workspace crate shows with plain git that such traps work; here nobody steps on them.
    world.sup(&["diff", &run]).ends(0);
    world.sup(&["export", &run]).ends(0);
    world.sup(&["status", &run]).ends(0);
    let by = world.dir().join("fired/by");
    assert!(!by.exists(), "fired: {}", std::fs::read_to_string(by).unwrap_or_default());
    let name = format!("refs/atenea/{run}");
    assert_eq!(git(&world.work(), &["show", &format!("{name}:file")]), "one\ntwo\n");
}

#[test]
fn what_a_terminal_would_obey_is_escaped_in_diff_and_status() {
    let world = World::new();
    let run = left(&world, "printf 'a\\033]0;evil\\007b\\n' > \"$(printf 'x\\033[2Jy')\"");
    let diff = world.sup(&["diff", &run]).ends(0);
    assert!(diff.out.contains("evil"), "{diff:?}");
    for text in [&diff.out, &diff.err, &world.sup(&["status", &run]).out] {
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    }
}
