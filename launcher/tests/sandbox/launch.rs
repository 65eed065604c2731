//! From a plan to the end of its agent: statuses, streams, refusals, identity.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;

use atenea_core::Code;
use atenea_launcher::plan::{Listener, ListenerRole, Transport};
use atenea_launcher::protocol::{Event, Reply, Request, Stdin};

use super::Test;
use super::bench::{Bench, read_all, read_line};

pub(crate) const TESTS: &[Test] = &[
    ("the_exit_status_is_the_agents", the_exit_status_is_the_agents),
    ("a_missing_command_is_not_started", a_missing_command_is_not_started),
    ("the_probe_launches_a_whole_sandbox", the_probe_launches_a_whole_sandbox),
    ("the_self_test_refused_everything", the_self_test_refused_everything),
    ("standard_input_is_a_pipe_or_what_was_passed", standard_input),
    ("a_terminal_has_its_size_and_is_resized", a_terminal),
    ("three_hundred_listeners_arrive_in_order", three_hundred_listeners),
    ("a_source_that_was_exchanged_is_refused", an_exchanged_source_is_refused),
    ("a_second_sandbox_of_a_run_is_refused", a_second_sandbox_is_refused),
    ("host_uid_0_is_refused_by_the_helper", host_uid_0_is_refused),
    ("eight_sandboxes_live_side_by_side", eight_side_by_side),
    ("usage_is_reported", usage_is_reported),
    ("the_identity_names_the_outermost_process", the_identity),
    ("orders_for_unknown_runs_are_refused", unknown_runs),
];

fn the_exit_status_is_the_agents() {
    let mut bench = Bench::new();
    let ran = bench.shell("echo out; echo err >&2; exit 7", |_| {});
    assert_eq!((ran.exit(), &*ran.stdout, &*ran.stderr), (7, "out\n", "err\n"));
    let ran = bench.shell("exit 137", |_| {});
    assert_eq!(ran.exit(), 137);
    let ran = bench.shell("kill -KILL $$", |_| {});
    assert!(libc::WIFSIGNALED(ran.wait_status), "{ran:?}");
    assert_eq!(libc::WTERMSIG(ran.wait_status), 9);
}

fn a_missing_command_is_not_started() {
    let mut bench = Bench::new();
    for (command, errno) in [("nosuch", libc::ENOENT), ("/etc/passwd", libc::EACCES)] {
        let plan = bench.plan(&[command], |_| {});
        bench.created(&plan);
        match bench.go(&plan.run) {
            Reply::ExecFailed { errno: found } => assert_eq!(found, errno, "{command}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.ended().0, None);
        bench.remove(&plan.run);
    }
}

fn the_probe_launches_a_whole_sandbox() {
    let mut bench = Bench::configured();
    let support = bench.probe();
    support.enforceable().unwrap();
    let names: Vec<&str> = support.features().iter().map(|f| f.name.as_str()).collect();
    assert!(names.contains(&"sandbox") && names.contains(&"mount-point-symlink"), "{names:?}");
    assert!(!support.self_test().is_empty());
}

fn the_self_test_refused_everything() {
    // S4
    let mut bench = Bench::new();
    let plan = bench.plan(&["true"], |_| {});
    let (created, _fds) = bench.created(&plan);
    assert!(created.self_test.len() > 5, "{:?}", created.self_test);
    assert!(created.self_test.iter().all(|test| test.refused), "{:?}", created.self_test);
    bench.remove(&plan.run);
}

fn standard_input() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["cat"], |_| {});
    bench.make_group(&plan);
    let (_, fds) = bench.create_with(&plan, Stdin::Pipe, Vec::new()).unwrap();
    bench.go(&plan.run);
    let mut stdin = File::from(fds.stdin.unwrap());
    stdin.write_all(b"through the pipe").unwrap();
    drop(stdin);
    assert_eq!(read_all(fds.stdout), "through the pipe");
    bench.ended();
    bench.remove(&plan.run);

    let plan = bench.plan(&["cat"], |_| {});
    bench.make_group(&plan);
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (_, fds) = bench.create_with(&plan, Stdin::Passed, vec![read]).unwrap();
    bench.go(&plan.run);
    File::from(write).write_all(b"passed").unwrap();
    assert_eq!(read_all(fds.stdout), "passed");
    bench.ended();
    bench.remove(&plan.run);
    assert_eq!(bench.shell("cat", |_| {}).stdout, "");
}

fn a_terminal() {
    let mut bench = Bench::new();
    let script = "stty size; trap 'stty size; exit 3' WINCH; echo ready; while :; do read x; done";
    let plan = bench.plan(&["sh", "-c", script], |input| input.tty = Some((30, 90)));
    let (_, fds) = bench.created(&plan);
    let pty = fds.pty.expect("the terminal's master is missing");
    assert!(matches!(bench.go(&plan.run), Reply::Started));
    assert_eq!(read_line(&pty).trim(), "30 90");
    assert_eq!(read_line(&pty).trim(), "ready");
    bench.ask(Request::Resize { run: plan.run.clone(), rows: 40, cols: 100 }).unwrap();
    let mut rest = String::new();
    // The end of a terminal reads as EIO.
    let _ = File::from(rustix::io::dup(&pty).unwrap()).read_to_string(&mut rest);
    assert_eq!(rest.trim(), "40 100");
    assert_eq!(bench.ended().0.map(|status| libc::WEXITSTATUS(status)), Some(3));
    bench.remove(&plan.run);
}

fn three_hundred_listeners() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["true"], |input| {
        let base = u32::from(std::net::Ipv4Addr::new(198, 18, 0, 1));
        input.listeners.extend((0..300).map(|n| Listener {
            role: ListenerRole::Granted,
            transport: Transport::Tcp,
            address: std::net::SocketAddrV4::new((base + n).into(), 443),
        }));
    });
    let (_, fds) = bench.created(&plan);
    for (planned, made) in plan.listeners.iter().zip(&fds.listeners) {
        let made = rustix::net::getsockname(made).unwrap();
        let made = std::net::SocketAddrV4::try_from(made).unwrap();
        assert_eq!(planned.address, made);
    }
    assert_eq!(fds.listeners.len(), 305);
    bench.remove(&plan.run);
}

fn an_exchanged_source_is_refused() {
    let mut bench = Bench::new();
    let (_dir, mut workspace) = bench.workspace("/project");
    workspace.vetted.ino += 1;
    let plan = bench.plan(&["true"], |input| input.workspace = Some(workspace));
    bench.make_group(&plan);
    let refusal = bench.create(&plan).unwrap_err();
    assert_eq!(refusal.code, Code::FsChanged);
    assert!(refusal.cause.contains("step source"), "{}", refusal.cause);
    assert!(matches!(bench.event(), Event::SandboxGone { .. }));
    bench.remove(&plan.run);
}

fn a_second_sandbox_is_refused() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["true"], |_| {});
    bench.created(&plan);
    assert_eq!(bench.create(&plan).unwrap_err().code, Code::ProcessLaunchFailed);
    bench.remove(&plan.run);
}

fn host_uid_0_is_refused() {
    let mut bench = Bench::new();
    let mut plan = bench.plan(&["true"], |_| {});
    plan.ids.outside_uid = 0;
    bench.make_group(&plan);
    let refusal = bench.create(&plan).unwrap_err();
    assert!(refusal.cause.contains("uid or gid 0"), "{refusal}");
    bench.remove(&plan.run);
}

fn eight_side_by_side() {
    let mut bench = Bench::new();
    let plans: Vec<_> = (0..8)
        .map(|n| {
            let script = format!("echo {n} > /tmp/mine; read x; cat /tmp/mine; ls /tmp | wc -l");
            bench.plan(&["sh", "-c", &script], |_| {})
        })
        .collect();
    let mut streams = Vec::new();
    for plan in &plans {
        bench.make_group(plan);
        let (_, fds) = bench.create_with(plan, Stdin::Pipe, Vec::new()).unwrap();
        assert!(matches!(bench.go(&plan.run), Reply::Started));
        streams.push((fds.stdin.unwrap(), fds.stdout));
    }
    for (n, (stdin, stdout)) in streams.into_iter().enumerate() {
        drop(stdin);
        assert_eq!(read_all(stdout), format!("{n}\n1\n"));
    }
    for plan in &plans {
        bench.remove(&plan.run);
    }
}

fn usage_is_reported() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["true"], |_| {});
    bench.started(&plan);
    bench.ended();
    match bench.ask(Request::Usage { run: plan.run.clone() }).unwrap().0 {
        Reply::Usage(usage) => {
            assert!(usage.group.cpu_usec > 0 && usage.group.memory_peak_bytes > 0, "{usage:?}");
            assert_eq!(usage.oom_kills, 0);
        }
        other => panic!("{other:?}"),
    }
    bench.remove(&plan.run);
}

fn the_identity() {
    let mut bench = Bench::new();
    let plan = bench.plan(&["true"], |_| {});
    let (created, _fds) = bench.created(&plan);
    let identity = created.identity;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", identity.pid)).unwrap();
    assert!(stat.contains("(bwrap)"), "{stat}");
    assert!(stat.contains(&format!(" {} ", identity.start_time)), "{stat}");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(boot.trim(), identity.boot_id);
    // S1: it is in every group of the run, and was before it executed anything.
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", identity.pid)).unwrap();
    for place in &identity.group.places {
        let inside =
            |line: &str| line.ends_with(&format!("/{}", place.path.trim_start_matches('/')));
        assert!(groups.lines().any(inside), "{place:?} {groups}");
    }
    let members = groups.lines().filter(|line| line.ends_with(plan.run.as_str())).count();
    assert_eq!(members, identity.group.places.len(), "{groups}");
    // The agent's host uid is the run's, never 0.
    let owner = std::fs::metadata(format!("/proc/{}", identity.pid)).unwrap().uid();
    assert_eq!(owner, plan.ids.outside_uid);
    bench.remove(&plan.run);
}

fn unknown_runs() {
    let mut bench = Bench::new();
    let run = bench.plan(&["true"], |_| {}).run;
    for request in [
        Request::Go { run: run.clone() },
        Request::KillGroup { run: run.clone() },
        Request::Signal { run: run.clone(), signal: 15 },
        Request::Usage { run },
    ] {
        assert_eq!(bench.ask(request).unwrap_err().code, Code::ProcessNoSuchRun);
    }
}
