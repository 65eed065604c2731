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

/// Alone, the change is refused with the code and no ref is made; beside others it is left out, and
/// the export says so.
#[track_caller]
fn not_exported(script: &str, code: &str) {
    refused_alone(script, code);
    let world = World::new();
    let run = left(&world, &format!("{script}; echo work > work"));
    let exported = world.sup(&["export", &run]).ends(0).tells("note: left out: ");
    assert!(exported.err.contains(&format!("({code}")), "{exported:?}");
    let name = format!("refs/atenea/{run}");
    let files = git(&world.work(), &["diff", "--name-only", "main", &name]);
    assert_eq!(files, "work\n", "{script}");
    // A patch leaves out the same.
    let world = World::new();
    let run = left(&world, &format!("{script}; echo work > work"));
    let patch = world.sup(&["export", &run, "--patch", "-"]).ends(0).tells(code);
    assert!(patch.out.contains("+work"), "{patch:?}");
    assert_eq!(patch.out.matches("diff --git").count(), 1, "{patch:?}");
}

#[track_caller]
fn refused_alone(script: &str, code: &str) {
    let world = World::new();
    let run = left(&world, script);
    world.sup(&["export", &run]).ends(4).says(code);
    let refs = git(&world.work(), &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(refs, "refs/heads/main\n", "{script}");
    // Nothing is lost, and nothing is hidden: a person sees what stands against the export.
    let diff = world.sup(&["diff", &run]).ends(0).out;
    assert!(diff.starts_with("! not exportable: "), "{diff}");
    assert!(diff.contains(&format!("({code}")), "{diff}");
}

#[test]
fn a_link_that_points_outside_is_not_exported() {
    not_exported("ln -s /etc/passwd link", "export.link_escapes");
    not_exported("ln -s ../../outside link", "export.link_escapes");
}

#[test]
fn a_fifo_a_setuid_file_and_a_hard_link_are_not_exported() {
    not_exported("mkfifo pipe", "export.special_file");
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

#[test]
fn every_change_that_cannot_be_exported_is_shown_in_diff_beside_the_others() {
    let world = World::new();
    let run = left(
        &world,
        "mkfifo pipe; ln -s /etc/passwd out; echo x > tool; chmod 4755 tool; echo y > a; ln a b
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'
        mkdir -p one/.GIT 'two/.git ' 'three/git~1'; echo x > one/.GIT/config
        echo x > 'two/.git /config'; echo x > three/git~1/config; echo good > fine",
    );
    let want = [
        ("a", "export.hard_link"),
        ("b", "export.hard_link"),
        ("one/.GIT", "export.git_path"),
        ("out", "export.link_escapes"),
        ("pipe", "export.special_file"),
        ("sock", "export.special_file"),
        ("three/git~1", "export.git_path"),
        ("tool", "export.setuid"),
        ("two/.git ", "export.git_path"),
    ];
    let diff = world.sup(&["diff", &run]).ends(0).out;
    let shown: Vec<&str> = diff.lines().take_while(|line| line.starts_with('!')).collect();
    let lines = want.map(|(path, code)| format!("! not exportable: {path} ({code})"));
    assert_eq!(shown, lines);
    assert!(diff.contains("+good"), "what can be exported is not there: {diff}");
    let json = world.sup(&["--json", "diff", &run]).ends(0).object();
    let files = json["files"].as_array().unwrap();
    let refused: Vec<(&str, &str)> = files
        .iter()
        .filter_map(|f| Some((f["path"].as_str().unwrap(), f["refused"].as_str()?)))
        .collect();
    assert_eq!(refused, want);
    let exported = world.sup(&["--json", "export", &run]).ends(0).object();
    let left_out: Vec<&str> = exported["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| entry["path"].as_str())
        .collect();
    assert_eq!(left_out, want.map(|(path, _)| path));
    let name = format!("refs/atenea/{run}");
    assert_eq!(git(&world.work(), &["diff", "--name-only", "main", &name]), "fine\n");
}

#[test]
fn a_file_that_gits_own_check_refuses_is_left_out_with_its_words() {
    let modules =
        "printf '[submodule \"x\"]\n\tpath = x\n\turl = -oProxyCommand=x\n' > .gitmodules";
    not_exported(modules, "export.bad_path");
    let world = World::new();
    let run = left(&world, modules);
    let diff = world.sup(&["diff", &run]).ends(0);
    assert!(
        diff.out.starts_with("! not exportable: .gitmodules (export.bad_path: gitmodulesUrl"),
        "{diff:?}"
    );
}

#[test]
fn a_link_of_the_base_that_leads_outside_stays_as_it_is() {
    let world = World::new();
    repository(&world.work());
    std::os::unix::fs::symlink("/etc/hostname", world.work().join("old")).unwrap();
    world.shell(WRITE, "echo work > work").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    let exported = world.sup(&["--json", "export", &run]).ends(0).object();
    assert_eq!(exported["left_out"], serde_json::json!([]));
    let name = format!("refs/atenea/{run}");
    assert_eq!(git(&world.work(), &["show", &format!("{name}:old")]), "/etc/hostname");
}

#[test]
fn a_workspace_that_cannot_be_sealed_says_why_and_can_be_discarded() {
    // It costs the agent nothing and claims more than a workspace may hold: holes of the largest
    // size a file may have.
    let holes = "for i in 1 2 3 4; do truncate -s 1048576 hole$i || exit 9; done";
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "1MiB"]].concat();
    world.shell(&options, holes).ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    // C3, C4: the run has ended in order, and its work is kept until a person gives it up.
    assert_eq!(world.receipt(&run)["leftovers"].as_array().map(Vec::len), Some(0));
    let diff = world.sup(&["diff", &run]).ends(4).says("fs.too_large");
    assert!(diff.err.contains("bytes") && diff.err.contains("discard"), "{diff:?}");
    world.sup(&["export", &run]).ends(4).says("fs.too_large");
    assert!(world.run_dir(&run).join("ws").exists(), "it was deleted");
    world.sup(&["discard", &run]).ends(0);
    assert_eq!(world.status(&run)["workspace"], "discarded");
    assert!(!world.run_dir(&run).join("ws").exists(), "it is still there");
    assert_eq!(git(&world.work(), &["for-each-ref", "--format=%(refname)"]), "refs/heads/main\n");
}

#[test]
fn work_of_a_run_that_wrote_far_beyond_its_disk_limit_can_be_looked_at_and_taken() {
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "1MiB"]].concat();
    // Forty times the limit at once, then it waits for the accountant.
    let script = "echo precious > precious; i=0; while [ $i -lt 80 ]; do \
                  head -c 500000 /dev/zero > f$i; i=$((i+1)); done; sleep 1000";
    world.shell(&options, script).ends(137).says("limit.disk");
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert!(world.sup(&["diff", &run]).ends(0).out.contains("+precious"));
    world.sup(&["export", &run]).ends(0);
    let name = format!("refs/atenea/{run}:precious");
    assert_eq!(git(&world.work(), &["show", &name]), "precious\n");
}

#[test]
fn bytes_below_a_path_that_is_too_long_count_against_the_disk_limit() {
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "4MiB"]].concat();
    // Thirty names of two hundred letters: no path reaches the innermost directory.
    let script = "n=$(printf '%0200d' 0); i=0; while [ $i -lt 30 ]; do mkdir $n && cd -P $n || exit 9; \
                  i=$((i+1)); done; i=0; while [ $i -lt 8 ]; do \
                  head -c 2000000 /dev/zero > f$i || exit 8; i=$((i+1)); done; sleep 1000";
    world.shell(&options, script).ends(137).says("limit.disk");
}

#[test]
fn a_hole_of_a_terabyte_is_no_file_that_a_run_can_make_within_its_limit() {
    let world = World::new();
    let run =
        left(&world, "truncate -s 1T hole; echo $?; stat -c %s hole; rm hole; echo two >> file");
    // 128 and SIGXFSZ.
    assert_eq!(world.sup(&["logs", &run]).ends(0).out, "153\n0\n");
    // Control: within the limit a hole is a file like others.
    world.shell(&[WRITE, &["--disk", "2TiB"]].concat(), "truncate -s 1T hole && rm hole").ends(0);
}

/// Writes eight files of 8 MiB each, without a name, which `keep` then holds.
pub(crate) fn nameless(keep: &str) -> String {
    format!(
        "python3 -c '\nimport mmap, os, time\nheld = []\nfor n in range(8):\n    \
         f = open(str(n), \"w+b\"); os.unlink(str(n)); f.write(bytes(8 << 20)); f.flush()\n    \
         {keep}\nprint(\"wrote\", flush=True)\ntime.sleep(1000)\n'"
    )
}

#[test]
fn bytes_in_files_that_are_open_without_a_name_count_against_the_disk_limit() {
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "16MiB"]].concat();
    let open = nameless("held.append(f)");
    world.shell(&options, &open).ends(137).says("limit.disk");
    // Nor does a process hide them that lets nobody look at it.
    let hidden = nameless("import ctypes; ctypes.CDLL(None).prctl(4, 0); held.append(f)");
    world.shell(&options, &hidden).ends(137).says("limit.disk");
    // Control: what is closed is free again.
    let closed = nameless("f.close()").replace("time.sleep(1000)", "time.sleep(2)");
    world.shell(&options, &closed).ends(0);
}

#[test]
fn bytes_in_files_that_are_only_mapped_count_against_the_disk_limit_of_a_supervisor_of_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "the kernel shows mapped files to root: run it so"
    );
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "16MiB"]].concat();
    let mapped = nameless(
        "held.append(mmap.mmap(os.dup(f.fileno()), 4096)); f.close(); os.closerange(3, 99)",
    );
    world.shell(&options, &mapped).ends(137).says("limit.disk");
}

/// Learns from inotify which of two directories was just read, and keeps its files in that one, which
/// a walk does not come back to. It writes once it has seen how the walk goes, and ends by itself.
const HIDE: &str = r#"python3 -c '
import ctypes, os, select, struct
libc = ctypes.CDLL(None)
names = ["d%02d" % n for n in range(12)]
for name in names: os.mkdir(name)
order = [e.name for e in os.scandir(".") if e.name in names]
first, last = order[-1], order[0]
for name in order[1:-1]:
    for n in range(20): os.mkdir(f"{name}/{n}")
os.mkdir(f"{last}/big")
big = os.open(f"{last}/big", os.O_RDONLY)
watch = libc.inotify_init()
CLOSE_NOWRITE = 0x10
first_id = libc.inotify_add_watch(watch, first.encode(), CLOSE_NOWRITE)
last_id = libc.inotify_add_watch(watch, last.encode(), CLOSE_NOWRITE)
here, moves, wrote = last, 0, 0
while moves < 12:
    writes = moves >= 2 and wrote < 32
    if select.select([watch], [], [], 0 if writes else None)[0]:
        events = os.read(watch, 65536)
        while events:
            read, length = struct.unpack_from("i8xI", events)
            events = events[16 + length:]
            to = first if read == first_id else last
            if to != here:
                os.rename(f"{here}/big", f"{to}/big")
                here, moves = to, moves + 1
    elif writes:
        with open(os.open(f"f{wrote}", os.O_CREAT | os.O_WRONLY, dir_fd=big), "wb") as f:
            f.write(bytes(1 << 20))
        wrote += 1
'"#;

#[test]
fn files_that_are_moved_behind_every_look_count_against_the_disk_limit() {
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "16MiB"]].concat();
    world.shell(&options, HIDE).ends(137).says("limit.disk");
    // Control: who stays within the limit may move files as it likes, and is only held up.
    let options = [WRITE, &["--disk", "256MiB"]].concat();
    world.shell(&options, HIDE).ends(0);
}

#[test]
fn a_run_that_ends_before_it_is_looked_at_has_its_growth_in_the_receipt() {
    let world = World::new();
    repository(&world.work());
    let options = [WRITE, &["--disk", "1MiB"]].concat();
    let script = "for n in 1 2 3 4; do head -c 1000000 /dev/zero > f$n; done";
    let out = world.shell(&options, script);
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    // A look may still have come first: then the run was killed.
    match out.status {
        0 => assert_eq!(receipt["denials"]["limit.disk"], 1, "{receipt}"),
        _ => assert_eq!(receipt["cause"]["code"], "limit.disk", "{receipt}"),
    }
    // Control: a run within its limit has nothing to be told of.
    world.shell(&options, "head -c 500000 /dev/zero > f").ends(0);
    let receipt = world.receipt(world.last()["run"].as_str().unwrap());
    assert!(receipt["denials"]["limit.disk"].is_null(), "{receipt}");
}
