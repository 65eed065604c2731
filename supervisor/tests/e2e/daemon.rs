//! `atenea-sup daemon`: what a service manager hears and does.

use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;

use crate::support::{Spawned, Watched, World};

/// A daemon and what it tells its service manager.
struct Service {
    told: UnixDatagram,
    child: Spawned,
    process: Watched,
}

impl Service {
    /// Started and ready. `watchdog_us` is what systemd would ask for.
    #[track_caller]
    fn start(world: &World, watchdog_us: Option<&str>) -> Service {
        let socket = world.dir().join("notify");
        let told = UnixDatagram::bind(&socket).unwrap();
        told.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let mut command = world.command();
        command.arg("daemon").env("NOTIFY_SOCKET", &socket).env_remove("WATCHDOG_PID");
        match watchdog_us {
            Some(us) => command.env("WATCHDOG_USEC", us),
            None => command.env_remove("WATCHDOG_USEC"),
        };
        let child = Spawned::new(&mut command);
        heard(&told, "READY=1");
        let process = world.supervisor();
        Service { told, child, process }
    }

    /// Waits until a message holds the line.
    #[track_caller]
    fn hears(&self, line: &str) {
        heard(&self.told, line);
    }
}

#[track_caller]
fn heard(told: &UnixDatagram, line: &str) {
    let mut seen = Vec::new();
    let mut message = [0; 4096];
    loop {
        let length = match told.recv(&mut message) {
            Ok(length) => length,
            Err(error) => panic!("{error}: no {line} in {seen:?}"),
        };
        let text = String::from_utf8_lossy(&message[..length]).into_owned();
        if text.lines().any(|found| found == line) {
            return;
        }
        seen.push(text);
    }
}

#[test]
fn a_daemon_says_that_it_is_ready_lives_and_stops() {
    let world = World::new();
    let service = Service::start(&world, Some("200000"));
    let info = world.sup(&["--json", "info"]).ends(0).object();
    assert_eq!(info["mode"], "daemon");
    world.sup(&["run", "--", "sh", "-c", "exit 7"]).ends(7);
    service.hears("WATCHDOG=1");
    service.hears("WATCHDOG=1");
    service.process.signal(Signal::TERM);
    service.hears("STOPPING=1");
    service.child.end().ends(0);
    world.nothing_is_left();
}

#[test]
fn a_daemon_that_cannot_start_says_why_and_ends() {
    let world = World::new();
    let service = Service::start(&world, None);
    let second = world.sup(&["daemon"]).ends(4);
    assert!(second.err.contains("journal.locked"), "{second:?}");
    world.sup(&["stop"]).ends(0);
    service.child.end().ends(0);
}

#[test]
fn a_daemon_does_not_end_when_it_is_idle() {
    let text = "[sandbox]\nidle_seconds = 1\n";
    let (idle, daemon) = (World::configured(text), World::configured(text));
    let service = Service::start(&daemon, None);
    // Control: one that a command started does, and began to be idle later.
    idle.sup(&["run", "--", "true"]).ends(0);
    idle.supervisor().ended();
    assert_eq!(daemon.supervisor().pid, service.process.pid);
    daemon.sup(&["stop"]).ends(0);
    service.child.end().ends(0);
}

#[test]
fn a_reload_counts_for_runs_that_wait_and_a_wrong_file_changes_nothing() {
    let world = World::configured("[sandbox]\nmax_concurrent = 1\n");
    let file = world.dir().join("atenea-sup.toml");
    let service = Service::start(&world, None);
    let first = world.ready(&[], "echo ready; sleep 1000");
    let second = world.detached(&[], "echo ready; sleep 1000");
    let reload = |text: &str| {
        std::fs::write(&file, text).unwrap();
        service.process.signal(Signal::HUP);
        service.hears("RELOADING=1");
        service.hears("READY=1");
    };
    reload("[sandbox]\nmax_concurent = 2\n");
    assert_eq!(world.status(&second)["state"], "queued");
    reload(
        "[sandbox]\nmax_concurrent = 3\n[limits.max]\nmemory = \"64MiB\"\n[budget.team]\nusd = \"3\"\n",
    );
    let mut logs = Spawned::new(world.command().args(["logs", "--follow", &second]));
    logs.until("ready");
    assert_eq!(world.account("team")["usd_limit"], "3");
    world.sup(&["run", "--memory", "65MiB", "--", "true"]).ends(125).says("manifest.above_ceiling");
    world.sup(&["run", "--memory", "64MiB", "--", "true"]).ends(0);
    // What runs was promised more before, and keeps it.
    assert_eq!(world.status(&first)["state"], "running");
    world.sup(&["stop", "--now"]).ends(0);
    service.child.end().ends(0);
}

#[test]
fn a_signal_cancels_runs_unless_the_configuration_says_wait() {
    let world = World::new();
    let service = Service::start(&world, None);
    let run = world.ready(&[], "echo ready; sleep 1000");
    service.process.signal(Signal::TERM);
    service.child.end().ends(0);
    world.sup(&["wait", &run]).ends(143);

    let world = World::configured("[daemon]\non_stop = \"wait\"\n");
    let service = Service::start(&world, None);
    let run = world.ready(&[], "echo ready; sleep 1000");
    service.process.signal(Signal::TERM);
    service.hears("STOPPING=1");
    // It answers while it waits, and admits nothing.
    assert_eq!(world.status(&run)["state"], "running");
    world.sup(&["run", "--", "true"]).ends(125).says("process.stopping");
    service.process.signal(Signal::TERM);
    service.child.end().ends(0);
    world.sup(&["wait", &run]).ends(143);
}
