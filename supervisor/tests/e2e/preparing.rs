//! What happens to a run whose workspace is still being made.

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::support::{Watched, World, repository};

/// Bound of each wait; nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_cancel_while_the_workspace_is_made_ends_git_too() {
    let world = World::new();
    repository(&world.work());
    // A pipe holds git where it reads ignore rules: in a directory without a file of the repository,
    // which is not looked at before.
    let rules = world.work().join("new/.gitignore");
    std::fs::create_dir(world.work().join("new")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &rules, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let run = world.detached(&["--profile", "workspace-write"], "echo never");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // Returns when somebody reads.
        drop(tell.send(std::fs::OpenOptions::new().write(true).open(rules).unwrap()));
    });
    let pipe = told.recv_timeout(PATIENCE).expect("git reads the rules");
    assert_eq!(world.status(&run)["state"], "preparing");
    world.sup(&["cancel", &run]).ends(0);
    world.sup(&["wait", &run]).ends(143);
    // Whoever read has ended: nobody holds the other end any more.
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let fd = pipe.as_fd();
    let mut ends = [PollFd::new(&fd, PollFlags::empty())];
    assert_eq!(poll(&mut ends, Some(&limit)).unwrap(), 1, "git still reads");
    let [end] = ends;
    assert!(end.revents().contains(PollFlags::ERR));
    assert_eq!(world.status(&run)["outcome"], "cancelled");
}

/// The workspace worker that a supervisor keeps ready for the next run.
fn spare(supervisor: &Watched) -> Watched {
    let is_worker = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"__workspace"))
    };
    // It is started when the run has ended, beside the answer to whoever waits.
    loop {
        let threads = std::fs::read_dir(format!("/proc/{}/task", supervisor.pid)).unwrap();
        let children = threads.flatten().map(|thread| thread.path().join("children"));
        let text: String = children.flat_map(std::fs::read_to_string).collect();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        if let Some(found) = { pids }.find(is_worker) {
            return Watched::new(found);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_worker_that_was_stopped_while_it_waited_does_not_hold_the_next_run() {
    let world = World::new();
    repository(&world.work());
    world.shell(&["--profile", "workspace-write"], "true").ends(0);
    let stopped = spare(&world.supervisor());
    stopped.signal(Signal::STOP);
    world.shell(&["--profile", "workspace-write"], "echo works").ends(0);
    // Nobody could ask it any more.
    stopped.ended();
}
