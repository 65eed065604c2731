//! What happens to a run whose workspace is still being made.

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{World, repository};

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
