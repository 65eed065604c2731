//! Unsandboxed processes of profile `trusted-host`.

use std::fs::File;
use std::io::Write;

use atenea_core::RunId;
use atenea_launcher::plan::GroupLimits;
use atenea_launcher::protocol::{CreatedFds, HostPlan, Reply, Request, Stdin};

use super::Test;
use super::bench::{Bench, bytes, read_all, read_line, unique};

pub(crate) const TESTS: &[Test] = &[
    ("a_host_process_runs_as_its_user_and_reports", runs_and_reports),
    ("a_host_process_waits_for_go", waits_for_go),
    ("a_host_process_that_cannot_be_executed_says_so", cannot_be_executed),
    ("a_host_process_without_its_directory_says_so", without_its_directory),
    ("a_host_process_is_signalled_and_killed_with_its_children", signalled_and_killed),
    ("a_host_process_has_a_terminal_of_its_own_when_it_is_given_one", terminal),
];

/// An ordinary user: a test never runs a command as root on the bare machine.
const USER: u32 = 65_534;

fn plan(bench: &Bench, argv: &[&str]) -> HostPlan {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (uid, gid) = if bench.root { (USER, USER) } else { own };
    HostPlan {
        run: RunId::from_random((u64::from(std::process::id()) << 24) + unique()),
        argv: argv.iter().map(|word| bytes(word)).collect(),
        env: vec![bytes("PATH=/usr/bin:/bin"), bytes("X=1")],
        cwd: bytes("/"),
        uid,
        gid,
        groups: Vec::new(),
        stdin: Stdin::Null,
        tty: None,
    }
}

fn create(bench: &mut Bench, plan: &HostPlan) -> CreatedFds {
    let limits = GroupLimits { cpu_millis: 1000, memory_bytes: 256 << 20, pids: 64 };
    bench.ask(Request::MakeGroup { run: plan.run.clone(), limits }).unwrap();
    match bench.ask(Request::CreateUnsandboxed(plan.clone())).unwrap() {
        (Reply::Created(created), fds) => {
            assert!(created.self_test.is_empty());
            CreatedFds::split(created.fds, fds).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

fn runs_and_reports() {
    let mut bench = Bench::configured();
    let plan =
        plan(&bench, &["sh", "-c", "id -u; id -G; echo $X; ls /proc/self/fd | wc -l; exit 9"]);
    let fds = create(&mut bench, &plan);
    assert!(matches!(bench.go(&plan.run), Reply::Started));
    let (uid, gid) = (plan.uid, plan.gid);
    // `ls` has its directory open beside the three streams.
    assert_eq!(read_all(fds.stdout), format!("{uid}\n{gid}\n1\n4\n"), "{}", read_all(fds.stderr));
    let (agent, outermost) = bench.ended();
    assert_eq!(agent, Some(outermost));
    assert_eq!(libc::WEXITSTATUS(outermost), 9);
    bench.remove(&plan.run);
}

fn waits_for_go() {
    // S1
    let mut bench = Bench::configured();
    let mut plan = plan(&bench, &["cat"]);
    plan.stdin = Stdin::Pipe;
    let fds = create(&mut bench, &plan);
    File::from(fds.stdin.unwrap()).write_all(b"x").unwrap();
    assert_eq!(bench.close(), 0);
    assert_eq!(read_all(fds.stdout), "");
}

fn cannot_be_executed() {
    let mut bench = Bench::configured();
    for (command, errno) in
        [("nosuch", libc::ENOENT), ("/etc/passwd", libc::EACCES), ("/nosuch", libc::ENOENT)]
    {
        let plan = plan(&bench, &[command]);
        let _fds = create(&mut bench, &plan);
        match bench.go(&plan.run) {
            Reply::ExecFailed { errno: found } => assert_eq!(found, errno, "{command}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.ended().0, None);
        bench.remove(&plan.run);
    }
}

fn signalled_and_killed() {
    let mut bench = Bench::configured();
    let script = "trap 'echo term' TERM; (setsid sleep 1000 &); echo ready; while :; do sleep 1000 & wait $!; done";
    let plan = plan(&bench, &["sh", "-c", script]);
    let fds = create(&mut bench, &plan);
    bench.go(&plan.run);
    assert_eq!(read_line(&fds.stdout), "ready");
    bench.ask(Request::Signal { run: plan.run.clone(), signal: 15 }).unwrap();
    assert_eq!(read_line(&fds.stdout), "term");
    bench.remove(&plan.run);
    assert_eq!(read_all(fds.stdout), "");
}

fn without_its_directory() {
    let mut bench = Bench::configured();
    let mut plan = plan(&bench, &["true"]);
    plan.cwd = bytes("/nosuch");
    let _fds = create(&mut bench, &plan);
    assert_eq!(bench.ended().0, None);
    let refusal = bench.ask(Request::Go { run: plan.run.clone() }).unwrap_err();
    assert!(refusal.cause.contains("No such file"), "{refusal}");
    bench.remove(&plan.run);
}

fn terminal() {
    let mut bench = Bench::configured();
    let look = "test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty && echo x >$(tty); \
        read line; stty size; exit 5";
    let mut plan = plan(&bench, &["sh", "-c", look]);
    plan.tty = Some((33, 77));
    let fds = create(&mut bench, &plan);
    let mut pty = File::from(fds.pty.expect("the master side"));
    assert!(matches!(bench.go(&plan.run), Reply::Started));
    assert_eq!(read_from_terminal(&mut pty, "x\r\n"), "33 77\r\nx\r\n");
    let size = Request::Resize { run: plan.run.clone(), rows: 40, cols: 100 };
    assert!(matches!(bench.ask(size).unwrap().0, Reply::Done));
    pty.write_all(b"go\n").unwrap();
    assert_eq!(read_from_terminal(&mut pty, "40 100\r\n"), "go\r\n40 100\r\n");
    let (_, outermost) = bench.ended();
    assert_eq!(libc::WEXITSTATUS(outermost), 5);
    bench.remove(&plan.run);
}

/// What a terminal shows up to and with `end`.
fn read_from_terminal(pty: &mut File, end: &str) -> String {
    let mut text = String::new();
    let mut byte = [0u8; 1];
    while !text.ends_with(end) {
        // The other side is closed: the text so far is what the test shows.
        let Ok(1) = std::io::Read::read(pty, &mut byte) else { break };
        text.push(char::from(byte[0]));
    }
    text
}
