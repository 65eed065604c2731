//! What an agent sees and can do.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use atenea_core::Profile;
use atenea_launcher::plan::{Grant, ListenerRole};

use super::Test;
use super::bench::{Bench, TempDir, bytes, identity, read_all};

pub(crate) const TESTS: &[Test] = &[
    ("an_agent_has_no_privilege", an_agent_has_no_privilege),
    ("an_agent_sees_only_its_own_processes", an_agent_sees_only_its_own_processes),
    ("the_environment_is_exactly_the_plans", the_environment_is_exactly_the_plans),
    ("no_descriptor_above_2_is_open", no_descriptor_above_2_is_open),
    ("paths_of_the_host_are_absent", paths_of_the_host_are_absent),
    ("the_system_is_read_only", the_system_is_read_only),
    ("devices_work_and_are_few", devices_work_and_are_few),
    ("a_workspace_is_writable_or_not_by_its_profile", a_workspace_is_writable_or_not),
    ("a_grant_is_read_only", a_grant_is_read_only),
    ("the_hosts_loopback_is_not_reached", the_hosts_loopback_is_not_reached),
    ("a_listener_is_served_from_outside", a_listener_is_served_from_outside),
    ("nothing_but_loopback_is_routed", nothing_but_loopback_is_routed),
    ("new_namespaces_are_refused", new_namespaces_are_refused),
    ("host_name_and_user_have_names", host_name_and_user_have_names),
];

fn an_agent_has_no_privilege() {
    let mut bench = Bench::new();
    let ran = bench.shell("id -u; id -g; cat /proc/self/status", |_| {});
    assert_eq!(ran.exit(), 0, "{ran:?}");
    let mut lines = ran.stdout.lines();
    assert_eq!((lines.next(), lines.next()), (Some("1000"), Some("1000")));
    let field = |name: &str| {
        let line = ran.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("SigIgn"), "0000000000000000");
    assert_eq!(field("SigBlk"), "0000000000000000");
}

fn an_agent_sees_only_its_own_processes() {
    let mut bench = Bench::new();
    let ran = bench.shell("cd /proc; echo [0-9]*; cat /proc/1/comm", |_| {});
    let mut lines = ran.stdout.lines();
    let pids: Vec<u32> = lines.next().unwrap().split(' ').map(|pid| pid.parse().unwrap()).collect();
    // init, the shell, and what the shell starts.
    assert!(pids.len() <= 3 && pids.iter().all(|pid| *pid < 64), "{pids:?}");
    assert_eq!(pids[0], 1);
}

fn the_environment_is_exactly_the_plans() {
    // S5
    let mut bench = Bench::new();
    let plan = bench.plan(&["env"], |input| {
        input.env = vec![("A".into(), bytes("1 2")), ("PATH".into(), bytes("/usr/bin"))];
    });
    assert_eq!(bench.run(&plan).stdout, "A=1 2\nPATH=/usr/bin\n");
}

fn no_descriptor_above_2_is_open() {
    // S5. A descriptor that this process leaks on purpose must not arrive.
    let leaked = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let mut bench = Bench::new();
    let plan = bench.plan(&["ls", "-l", "/proc/self/fd"], |_| {});
    let ran = bench.run(&plan);
    let numbers: Vec<String> = ran
        .stdout
        .lines()
        .filter_map(|line| line.split_once(" -> "))
        // `ls` itself has the directory open that it lists.
        .filter(|(_, to)| !to.contains("/fd"))
        .map(|(left, _)| left.rsplit(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(numbers, ["0", "1", "2"], "{}", ran.stdout);
}

fn paths_of_the_host_are_absent() {
    let mut bench = Bench::new();
    let (_dir, workspace) = bench.workspace("/home/somebody/project");
    let script = "for p in /etc/shadow /root /run /sys /var /srv /boot /proc/kcore/x \
                  /home/agent/../root /etc/ssh; do [ -e $p ] && echo $p; done; \
                  cd /home && find . -xdev | sort; ls /";
    let ran = bench.shell(script, |input| input.workspace = Some(workspace));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let (home, top) = lines.split_at(4);
    assert_eq!(home, [".", "./agent", "./somebody", "./somebody/project"], "{ran:?}");
    let ours = ["atenea", "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "proc", "sbin"];
    for name in top {
        assert!(ours.contains(name) || ["tmp", "usr"].contains(name), "{name} is visible");
    }
    // Positive control: this host has what is not seen inside.
    assert!(std::path::Path::new("/root").exists() && std::path::Path::new("/var").exists());
}

fn the_system_is_read_only() {
    let mut bench = Bench::new();
    let script = "for p in /x /etc/x /usr/x /dev/x /atenea/x /home/x /proc/sys/kernel/hostname; do \
                  (echo 1 > $p) 2>/dev/null && echo wrote $p; done; \
                  for p in /tmp/x /home/agent/x /dev/shm/x; do echo 1 > $p || echo not $p; done; \
                  mv /atenea/init /tmp 2>/dev/null && echo moved; cat /proc/mounts";
    let ran = bench.shell(script, |_| {});
    let (mounts, rest): (Vec<_>, Vec<_>) =
        ran.stdout.lines().partition(|line| line.split(' ').count() == 6);
    assert!(rest.is_empty(), "{rest:?} {}", ran.stderr);
    for mount in mounts {
        let fields: Vec<&str> = mount.split(' ').collect();
        let options: Vec<&str> = fields[3].split(',').collect();
        assert!(options.contains(&"nosuid"), "{mount}");
        let writable = ["/tmp", "/home/agent", "/dev/shm", "/atenea/run", "/proc"];
        let device = fields[1].starts_with("/dev/");
        assert!(options.contains(&"ro") || device || writable.contains(&fields[1]), "{mount}");
    }
}

fn devices_work_and_are_few() {
    let mut bench = Bench::new();
    let script = "echo x > /dev/null && head -c 4 /dev/urandom | wc -c && head -c 2 /dev/zero | wc -c; \
                  ls /dev; (exec < /dev/kmsg) 2>/dev/null && echo kmsg; \
                  mknod /tmp/d c 1 3 2>/dev/null && echo made";
    let ran = bench.shell(script, |_| {});
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    let expected = [
        "4", "2", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
        "stdout", "tty", "urandom", "zero",
    ];
    assert_eq!(words, expected, "{ran:?}");
}

fn a_workspace_is_writable_or_not() {
    let mut bench = Bench::new();
    for (profile, exit, exists) in [(Profile::WorkspaceWrite, 0, true), (Profile::Read, 1, false)] {
        let (dir, workspace) = bench.workspace("/home/me/my project\n2");
        let ran = bench.shell("pwd; echo hello > made || exit 1", |input| {
            input.profile = profile;
            input.workspace = Some(workspace);
        });
        assert_eq!(ran.exit(), exit, "{ran:?}");
        assert_eq!(ran.stdout, "/home/me/my project\n2\n");
        assert_eq!(dir.path().join("made").exists(), exists, "{profile}");
    }
}

fn a_grant_is_read_only() {
    let mut bench = Bench::new();
    let dir = TempDir::new();
    std::fs::write(dir.path().join("model"), "weights").unwrap();
    std::fs::write(dir.path().join("single"), "one").unwrap();
    let grant = |name: &str, target: &str| {
        let path = dir.path().join(name);
        Grant {
            source: path.as_path().into(),
            vetted: identity(&path),
            directory: path.is_dir(),
            target: target.into(),
        }
    };
    let grants = vec![grant("", "/opt/models"), grant("single", "/srv/one.txt")];
    let script = "cat /opt/models/model /srv/one.txt; \
                  (echo x > /opt/models/model) 2>/dev/null && echo wrote; \
                  (echo x > /srv/one.txt) 2>/dev/null && echo wrote";
    let ran = bench.shell(script, |input| input.grants = grants);
    assert_eq!(ran.stdout, "weightsone", "{ran:?}");
}

fn the_hosts_loopback_is_not_reached() {
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = outside.local_addr().unwrap();
    // Positive control: from here it is reached.
    assert!(TcpStream::connect(address).is_ok());
    outside.accept().unwrap();
    let mut bench = Bench::new();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{} && echo reached", address.port());
    let plan = bench.plan(&["bash", "-c", &script], |_| {});
    let ran = bench.run(&plan);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("Connection refused"), "{ran:?}");
    outside.set_nonblocking(true).unwrap();
    assert!(outside.accept().is_err());
}

fn a_listener_is_served_from_outside() {
    let mut bench = Bench::new();
    let script = "for p in 3128 1080 53 7411; do exec 3<>/dev/tcp/127.0.0.1/$p; read -r line <&3; \
                  echo $line; done";
    let plan = bench.plan(&["bash", "-c", script], |_| {});
    let roles: Vec<ListenerRole> = plan.listeners.iter().map(|listener| listener.role).collect();
    let mut fds = bench.started(&plan);
    assert_eq!(fds.listeners.len(), roles.len());
    let udp = fds.listeners.remove(2);
    drop(udp);
    for (number, listener) in fds.listeners.into_iter().enumerate() {
        let listener = TcpListener::from(listener);
        listener.set_nonblocking(false).unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        writeln!(connection, "lane {number}").unwrap();
    }
    assert_eq!(read_all(fds.stdout), "lane 0\nlane 1\nlane 2\nlane 3\n");
    bench.ended();
    bench.remove(&plan.run);
}

fn nothing_but_loopback_is_routed() {
    let mut bench = Bench::new();
    let ran = bench.shell("cat /proc/net/dev /proc/net/route", |_| {});
    let interfaces: Vec<&str> =
        ran.stdout.lines().filter_map(|line| line.split_once(':')).map(|(l, _)| l.trim()).collect();
    assert_eq!(interfaces, ["lo"], "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 4, "a route is there: {ran:?}");
    // The synthetic range is local: refused at once, not unreachable.
    let script = "(exec 3<>/dev/tcp/198.18.3.4/443) 2>&1; (exec 3<>/dev/tcp/198.20.0.1/443) 2>&1";
    let plan = bench.plan(&["bash", "-c", script], |_| {});
    let said = bench.run(&plan).stdout;
    assert!(said.contains("198.18.3.4/443: Connection refused"), "{said}");
    assert!(said.contains("198.20.0.1/443: Network is unreachable"), "{said}");
}

fn new_namespaces_are_refused() {
    let mut bench = Bench::new();
    let ran = bench.shell("unshare -U true; unshare -n true; unshare -m true; true", |_| {});
    assert_eq!(ran.stderr.lines().count(), 3, "{ran:?}");
}

fn host_name_and_user_have_names() {
    let mut bench = Bench::new();
    let mut run = String::new();
    let ran =
        bench.shell("hostname; id -un; id -gn; git config --system safe.directory", |input| {
            run = input.run.as_str().replace('_', "-");
        });
    assert_eq!(ran.stdout, format!("{run}\nagent\nagent\n*\n"), "{ran:?}");
}
