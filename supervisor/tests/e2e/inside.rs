//! What a run sees: itself, its workspace, its grants, and nothing else. Each thing that must be
//! hidden or refused is shown to be there, or to work, outside.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::support::{World, host};

/// Connects with bash, says how it went, and how long it took in whole seconds.
fn connect(to: &str) -> String {
    format!(
        "SECONDS=0; if (exec 3<>/dev/tcp/{to}) 2>&1; then echo connected; else echo refused; fi; echo after $SECONDS"
    )
}

#[test]
fn a_run_is_nobody_and_has_no_capability() {
    let world = World::new();
    let out = world.shell(&[], "id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status");
    let lines: Vec<&str> = out.out.lines().collect();
    assert_ne!(lines[0], "0");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let line = lines.iter().find(|l| l.starts_with(set)).unwrap();
        assert!(line.ends_with("\t0000000000000000"), "{line}");
    }
    assert!(lines.contains(&"NoNewPrivs:\t1"), "{lines:?}");
    assert!(lines.contains(&"Seccomp:\t2"), "{lines:?}");
}

#[test]
fn a_run_sees_only_its_own_processes() {
    let world = World::new();
    let mut other = Command::new("sleep").arg("98765.4321").spawn().unwrap();
    let look = "sleep 12345.6789 & cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; ls -d /proc/[0-9]* | wc -l";
    let outside = host(Command::new("sh").args(["-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]));
    assert!(outside.out.contains("sleep 98765.4321"), "the control is not visible outside");
    let inside = world.shell(&[], look).ends(0);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(inside.out.contains("sleep 12345.6789"), "its own is not visible: {inside:?}");
    assert!(!inside.out.contains("98765.4321"), "{inside:?}");
    let count: usize = inside.out.lines().last().unwrap().trim().parse().unwrap();
    assert!(count <= 6, "{count} processes: pid 1, sh, sleep and those that look");
}

#[test]
fn the_environment_holds_exactly_what_was_granted() {
    let world = World::new();
    let names = |options: &[&str]| -> BTreeSet<String> {
        let mut command = world.command();
        command.env("HOST_SECRET", "hunter2").arg("run").args(options).args(["--", "env"]);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|l| l.split('=').next().unwrap().to_owned()).collect()
    };
    let own = [
        "ATENEA_BROKER",
        "ATENEA_PROFILE",
        "ATENEA_RUN",
        "ATENEA_TOKEN",
        "HOME",
        "LANG",
        "PATH",
        "TERM",
        "TMPDIR",
        "USER",
    ];
    let own: BTreeSet<String> = own.map(str::to_owned).into();
    assert_eq!(names(&[]), own);
    let mut granted = own;
    granted.extend(["HOST_SECRET".to_owned(), "MADE".to_owned()]);
    assert_eq!(names(&["--env", "HOST_SECRET", "--env", "MADE=here"]), granted);
    let said = world.shell(&["--env", "MADE=a b=c"], "printf %s \"$MADE\"").ends(0);
    assert_eq!(said.out, "a b=c");
    let missing = ["run", "--env", "NOT_SET_ANYWHERE", "--", "true"];
    world.sup(&missing).ends(125).says("manifest.bad_value");
}

#[test]
fn a_run_has_descriptors_0_to_2_and_no_more() {
    let world = World::new();
    // The client holds more than that, and it does not get in.
    let more = std::fs::File::open("/etc/passwd").unwrap();
    let fd = rustix::io::fcntl_dupfd_cloexec(&more, 20).unwrap();
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
    let out = world.shell(&[], "ls /proc/$$/fd; true").ends(0);
    assert_eq!(out.out, "0\n1\n2\n");
}

#[test]
fn places_of_the_host_are_not_there() {
    let world = World::new();
    std::fs::write(world.dir().join("beside"), "secret").unwrap();
    let beside = world.dir().join("beside").display().to_string();
    let state = world.state().display().to_string();
    let hidden = [
        "/etc/shadow",
        "/root",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/sys/fs/cgroup",
        "/var",
        "/proc/sysrq-trigger",
        "/dev/kmsg",
        &beside,
        &state,
    ];
    for place in ["/etc/shadow", "/root", "/sys/fs/cgroup", "/var", &beside] {
        assert!(std::fs::exists(place).unwrap(), "the control {place} is not there outside");
    }
    let script = "for p; do if [ -e \"$p\" ] && [ -r \"$p\" ]; then echo there: $p; fi; done";
    let out = world.sup(&[&["run", "--", "sh", "-c", script, "sh"], &hidden[..]].concat()).ends(0);
    assert_eq!(out.out, "");
    assert_eq!(world.shell(&[], "ls -A /home; ls -A /home/agent").ends(0).out, "agent\n");
    // The script does find what is there.
    let out = world.sup(&["run", "--", "sh", "-c", script, "sh", "/etc/passwd"]).ends(0);
    assert_eq!(out.out, "there: /etc/passwd\n");
}

#[test]
fn a_mount_is_there_read_only_and_only_when_granted() {
    let world = World::new();
    let data = world.dir().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("file"), "granted").unwrap();
    let grant = format!("{}:/mnt/data", data.display());
    world.shell(&[], "test ! -e /mnt/data").ends(0);
    let script = "cat /mnt/data/file; echo x > /mnt/data/file || echo readonly";
    let out = world.shell(&["--mount", &grant], script).ends(0);
    assert_eq!(out.out, "grantedreadonly\n");
    assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "granted");
}

#[test]
fn only_home_tmp_and_a_private_workspace_can_be_written() {
    let world = World::new();
    std::fs::write(world.work().join("here"), "").unwrap();
    let script = "for d in / /usr /etc /bin /tmp \"$HOME\" .; do \
        if touch \"$d/planted\" 2>/dev/null; then echo \"wrote $d\"; fi; done";
    let read = world.shell(&[], script).ends(0);
    assert_eq!(read.out, "wrote /tmp\nwrote /home/agent\n");
    let write = world.shell(&["--profile", "workspace-write"], script).ends(0);
    assert_eq!(write.out, "wrote /tmp\nwrote /home/agent\nwrote .\n");
    assert!(!world.work().join("planted").exists());
    // Nothing stays for the next run.
    world.shell(&[], "test ! -e /tmp/planted && test ! -e ~/planted").ends(0);
}

#[test]
fn a_listener_on_the_loopback_of_the_host_is_not_reached() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let act = connect(&format!("127.0.0.1/{port}"));
    let outside = host(Command::new("bash").args(["-c", &act]));
    assert!(outside.out.contains("connected"), "the control does not connect: {outside:?}");
    listener.accept().unwrap();
    let inside = world.sup(&["run", "--", "bash", "-c", &act]).ends(0);
    assert!(inside.out.contains("refused\nafter 0"), "{inside:?}");
    listener.set_nonblocking(true).unwrap();
    let error = listener.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "somebody came");
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
}

#[test]
fn an_address_outside_fails_at_once() {
    let world = World::new();
    // RFC 5737 and RFC 3849: nobody is there, and without a route nothing is sent.
    for address in ["192.0.2.1/80", "2001:db8::1/80"] {
        let out = world.sup(&["run", "--", "bash", "-c", &connect(address)]).ends(0);
        assert!(out.out.contains("unreachable"), "{out:?}");
        assert!(out.out.contains("refused\nafter 0"), "{out:?}");
    }
    let out = world.shell(&[], "wc -l < /proc/net/route").ends(0);
    assert_eq!(out.out, "1\n", "there is a route");
}

#[test]
fn the_declared_runtime_works() {
    let world = World::new();
    std::fs::write(
        world.work().join("a.c"),
        "#include <stdio.h>\nint main(void) { puts(\"compiled\"); }\n",
    )
    .unwrap();
    world.shell(&[], "/usr/bin/python3 -c 'import json, ssl, sqlite3; print(1)'").ends(0);
    world.sup(&["run", "--", "git", "--version"]).ends(0);
    let out = world.shell(&[], "gcc -o /tmp/a a.c && /tmp/a").ends(0);
    assert_eq!(out.out, "compiled\n");
}

#[test]
fn a_part_of_the_runtime_that_was_replaced_is_the_new_one_in_the_next_run() {
    let place = tempfile::tempdir().unwrap();
    let kit = place.path().join("kit");
    let install = |version: &str| {
        std::fs::create_dir(&kit).unwrap();
        std::fs::write(kit.join("version"), version).unwrap();
    };
    install("one");
    let path = kit.display().to_string();
    let world = World::configured(&format!("[runtime.host]\nmounts = [\"{path}\"]\n"));
    let version = format!("cat {path}/version");
    assert_eq!(world.shell(&[], &version).ends(0).out, "one");
    let supervisor = world.supervisor();
    // As an update of the host does it, while the supervisor lives.
    std::fs::rename(&kit, place.path().join("old")).unwrap();
    install("two");
    assert_eq!(world.shell(&[], &version).ends(0).out, "two");
    assert_eq!(world.supervisor().pid, supervisor.pid, "it was another supervisor");
}
