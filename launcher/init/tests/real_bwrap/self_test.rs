//! S4: what the self-test says in a real sandbox, and that it sees what is not refused.

use std::os::unix::net::UnixListener;

use crate::harness::{Setup, open_directory, strings};

/// Loads the number, then allows everything.
const ALLOW_ALL: [u8; 16] = [0x20, 0, 0, 0, 0, 0, 0, 0, 0x06, 0, 0, 0, 0, 0, 0xff, 0x7f];

/// Name and expected answer of every act.
const EXPECTED: &[(&str, &str)] = &[
    ("write_etc", "EROFS, ENOENT"),
    ("read_canary", "ENOENT"),
    ("connect_outside", "ENETUNREACH"),
    ("unix_host_path", "ENOENT"),
    ("unix_abstract", "ECONNREFUSED"),
    ("vsock", "EPERM"),
    ("netlink", "EPERM"),
    ("packet", "EPERM"),
    ("io_uring_setup", "EPERM"),
    ("unshare_user", "EPERM"),
    ("clone_newuser", "EPERM"),
    ("clone3_namespaces", "ENOSYS"),
    ("setns", "EPERM"),
    ("ptrace_init", "EPERM"),
    ("process_vm_readv", "EPERM"),
    ("proc_1_mem", "EACCES"),
    ("mount", "EPERM"),
    ("new_mount_api", "EPERM"),
    ("mknod", "EPERM"),
    ("proc_sys_write", "EACCES, ENOENT"),
    ("keyctl", "EPERM"),
    ("add_key", "EPERM"),
    ("bpf", "EPERM"),
    ("perf_event_open", "EPERM"),
    ("userfaultfd", "EPERM"),
    ("tiocsti_high_bits", "EPERM"),
    ("tioclinux", "EPERM"),
    ("become_root", "EINVAL"),
    ("extra_descriptors", "EBADF"),
    ("x32_call", "killed"),
    ("i386_call", "killed"),
];

#[test]
fn s4_every_forbidden_act_is_refused_in_a_usual_sandbox() {
    let mut running = Setup::new(&["true"]).start();
    let (results, fds) = running.ready();
    assert!(fds.is_empty());
    let seen: Vec<(&str, &str)> =
        results.iter().map(|result| (result.name.as_str(), result.detail.as_str())).collect();
    // The second of its files is one that not every kernel has.
    let without = |name| match name {
        ("proc_sys_write", "EACCES") => ("proc_sys_write", "EACCES, ENOENT"),
        other => other,
    };
    assert_eq!(seen.into_iter().map(without).collect::<Vec<_>>(), EXPECTED);
    assert!(results.iter().all(|result| result.refused));
}

/// The failed acts of a sandbox that must not be used.
fn reached(setup: &Setup) -> Vec<String> {
    let mut running = setup.start();
    let (_, detail) = running.failed("self_test");
    assert!(running.hear().is_none());
    assert_eq!(running.output(), "", "S4: the agent ran");
    detail.split("; ").map(str::to_owned).collect()
}

fn names(reached: &[String]) -> Vec<&str> {
    reached.iter().filter_map(|act| act.split(':').next()).collect()
}

#[test]
fn s4_a_program_that_allows_everything_is_found_out_and_nothing_starts() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.program = ALLOW_ALL.to_vec();
    setup.isolation.retain(|word| word != "--disable-userns");
    let reached = reached(&setup);
    let names = names(&reached);
    // What this kernel offers to every user when no program refuses it. Mounts come with the user
    // namespace that the probe could make before.
    for act in [
        "netlink",
        "unshare_user",
        "clone_newuser",
        "clone3_namespaces",
        "setns",
        "process_vm_readv",
        "mount",
        "new_mount_api",
        "keyctl",
        "add_key",
        "tiocsti_high_bits",
        "tioclinux",
    ] {
        assert!(names.contains(&act), "{act} is missing: {reached:?}");
    }
    // Debian's kernel has a level of its own above the usual ones, which refuses it to users itself.
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    let offered = paranoid.trim().parse::<i32>().unwrap() <= 2;
    assert_eq!(names.contains(&"perf_event_open"), offered, "{paranoid}: {reached:?}");
    for act in ["write_etc", "read_canary", "connect_outside", "unix_host_path", "unix_abstract"] {
        assert!(!names.contains(&act), "{act}: {reached:?}");
    }
}

#[test]
fn s4_a_writable_etc_a_visible_canary_and_a_host_socket_are_found_out() {
    let directory = open_directory();
    let socket = directory.path().join("docker.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.plan.canary = b"/usr/bin/env".to_vec();
    let socket = socket.to_str().unwrap();
    setup.last = strings(&["--tmpfs", "/etc", "--ro-bind", socket, "/run/docker.sock"]);
    let reached = reached(&setup);
    assert_eq!(
        reached,
        [
            "write_etc: reached /etc/atenea-probe, ENOENT, reached /etc",
            "read_canary: reached the canary",
            "unix_host_path: ENOENT, reached /run/docker.sock",
        ]
    );
}

#[test]
fn s4_a_route_outside_and_a_foreign_abstract_socket_are_found_out() {
    // A network namespace made for this test, in which the documentation address is local and a
    // stranger listens. Nothing leaves it.
    let script = r#"
        ip link set lo up && ip route add local 192.0.2.0/24 dev lo || exit 9
        exec 6< <(exec python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind("\0stranger"); s.listen()
print("listening", flush=True); sys.stdin.read()' <&0 3<&- 4<&- 5<&-)
        read -r line <&6; exec 6<&-; exec "$@""#;
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.around = strings(&["unshare", "--user", "--map-root-user", "--net", "bash", "-c"]);
    setup.around.extend(strings(&[script, "around"]));
    setup.isolation.retain(|word| word != "--unshare-net");
    // As root of that namespace bubblewrap keeps the bounding set unless told otherwise.
    setup.first = strings(&["--cap-drop", "ALL"]);
    let reached = reached(&setup);
    assert_eq!(names(&reached), ["connect_outside", "unix_abstract"], "{reached:?}");
    assert!(reached[0].contains("reached 192.0.2.1:53"), "{reached:?}");
    assert!(reached[1].contains("reached @stranger"), "{reached:?}");
}

#[test]
fn s4_without_a_canary_nothing_starts() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.plan.canary = Vec::new();
    assert_eq!(names(&reached(&setup)), ["read_canary"]);
}
