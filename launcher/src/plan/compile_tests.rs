use atenea_core::{Limits, RunId};

use super::super::{
    FileIdentity, Grant, HostRuntime, SandboxPlan, TmpfsSizes, WorkspaceInput, default_listeners,
    default_rlimits,
};
use super::*;

/// A run of `sh -c true` with a workspace.
pub(crate) fn input() -> PlanInput {
    let vetted = FileIdentity { dev: 1, ino: 2 };
    let limits = Limits::default();
    PlanInput {
        run: RunId::parse("r_0123456789ab").unwrap(),
        profile: Profile::WorkspaceWrite,
        argv: vec!["sh".into(), "-c".into(), "true".into()],
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".into()), ("HOME".to_owned(), HOME.into())],
        cwd: None,
        workspace: Some(WorkspaceInput {
            source: "/state/runs/r/clone".into(),
            vetted,
            target: "/home/me/my project".into(),
        }),
        grants: vec![Grant {
            source: "/srv/models".into(),
            vetted,
            directory: true,
            target: "/opt/models".into(),
        }],
        runtime: HostRuntime {
            entries: vec![
                RuntimeEntry::Bind { path: "/usr".into(), vetted, directory: true },
                RuntimeEntry::Symlink { path: "/bin".into(), to: "usr/bin".into() },
                RuntimeEntry::Bind { path: "/etc/ssl/certs".into(), vetted, directory: true },
                RuntimeEntry::Bind { path: "/etc/ld.so.cache".into(), vetted, directory: false },
            ],
        },
        outside_uid: 700_001,
        outside_gid: 700_001,
        tmpfs: TmpfsSizes::for_limits(&limits),
        limits,
        listeners: default_listeners(),
        rlimits: default_rlimits(),
        tty: None,
    }
}

fn with(change: impl FnOnce(&mut PlanInput)) -> Result<SandboxPlan, Refusal> {
    let mut input = input();
    change(&mut input);
    compile(input)
}

#[test]
fn the_plan_of_a_workspace_write_run_is_exactly_this() {
    let text = compile(input()).unwrap().to_string();
    let golden = include_str!("golden/workspace_write.txt");
    assert_eq!(text, golden, "got:\n{text}");
}

#[test]
fn the_plan_of_a_read_run_mounts_its_workspace_read_only_and_differs_in_nothing_else() {
    let write = compile(input()).unwrap().to_string();
    let read = with(|input| input.profile = Profile::Read).unwrap().to_string();
    let changed: Vec<_> =
        write.lines().zip(read.lines()).filter(|(write, read)| write != read).collect();
    assert_eq!(
        changed,
        [
            ("run r_0123456789ab profile workspace-write", "run r_0123456789ab profile read"),
            (
                "mount /home/me/my project bind rw directory /state/runs/r/clone",
                "mount /home/me/my project bind ro directory /state/runs/r/clone"
            ),
        ]
    );
}

#[test]
fn compiling_twice_gives_the_same_plan() {
    assert_eq!(compile(input()).unwrap(), compile(input()).unwrap());
}

#[test]
fn an_unenforced_profile_has_no_plan() {
    // S2
    let refusal = with(|input| input.profile = Profile::TrustedHost).unwrap_err();
    assert_eq!(refusal.code, Code::ManifestBadValue);
}

#[test]
fn host_uid_or_gid_0_is_refused() {
    for change in [|i: &mut PlanInput| i.outside_uid = 0, |i: &mut PlanInput| i.outside_gid = 0] {
        assert_eq!(with(change).unwrap_err().code, Code::HostNoUidRange);
    }
}

#[test]
fn a_mount_inside_on_or_above_another_is_refused() {
    for target in [
        "/home/me/my project",
        "/home/me/my project/sub",
        "/home/me",
        "/home",
        "/usr/local",
        "/usr",
        "/bin/x",
        "/tmp",
        "/home/agent",
        "/etc/ssl",
        "/dev/x",
    ] {
        let refusal = with(|input| input.grants[0].target = target.into()).unwrap_err();
        assert_eq!(refusal.code, Code::FsBadTarget, "{target}");
    }
    for target in ["/tmp/x", "/home/agent/models", "/home/other", "/opt"] {
        with(|input| input.grants[0].target = target.into()).unwrap();
    }
}

#[test]
fn a_declared_runtime_part_in_a_tree_of_the_sandbox_or_in_another_part_is_refused() {
    let vetted = FileIdentity { dev: 1, ino: 2 };
    let declared = |path: &str| {
        let entry = RuntimeEntry::Bind { path: path.into(), vetted, directory: true };
        with(|input| input.runtime.entries.push(entry))
    };
    for bad in ["/run", "/proc", "/usr/local", "/etc/passwd", "/etc/ssl", "/etc/ssl/certs/x"] {
        assert_eq!(declared(bad).unwrap_err().code, Code::FsBadTarget, "{bad}");
    }
    declared("/etc/fonts").unwrap();
    declared("/nix/store").unwrap();
}

#[test]
fn a_command_or_variable_that_cannot_be_passed_is_refused() {
    let code = |change: fn(&mut PlanInput)| with(change).unwrap_err().code;
    assert_eq!(code(|i| i.argv.clear()), Code::ManifestNoCommand);
    assert_eq!(code(|i| i.argv = vec!["".into()]), Code::ManifestNoCommand);
    assert_eq!(code(|i| i.argv.push("a\0b".into())), Code::ManifestBadValue);
    assert_eq!(code(|i| i.argv.push("x".repeat(131_072).into())), Code::ManifestTooLarge);
    assert_eq!(code(|i| i.env.push(("A=B".into(), "".into()))), Code::ManifestBadValue);
    assert_eq!(code(|i| i.env.push(("PATH".into(), "".into()))), Code::ManifestBadValue);
    assert_eq!(code(|i| i.env.push(("1A".into(), "".into()))), Code::ManifestBadValue);
    with(|i| i.argv.push("x".repeat(131_071).into())).unwrap();
}

#[test]
fn memory_below_the_sum_of_the_filesystems_in_memory_is_refused() {
    let refusal = with(|input| input.limits.memory_bytes = 1 << 30).unwrap_err();
    assert_eq!(refusal.code, Code::ManifestBadLimit);
}
