//! Nothing of a worker outlives its supervisor, also when git waits for something that never comes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use atenea_workspace::worker::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use support::{Bench, bench};

const ROLE: &str = "ATENEA_WORKSPACE_TEST_ROLE";
const REQUEST: &str = "ATENEA_WORKSPACE_TEST_REQUEST";
/// Far above what an end needs: only a process that stays gets there.
const STAYS_SECONDS: i64 = 30;

/// A process that is seen through a descriptor: its number may not be taken over meanwhile. Whatever
/// is left at the end of the test is ended.
struct Watched {
    name: &'static str,
    fd: OwnedFd,
}

impl Watched {
    fn new(name: &'static str, pid: i32) -> Self {
        let fd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        Watched { name, fd }
    }

    fn ends_within(&self, seconds: i64) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() == 1
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.fd, Signal::KILL);
    }
}

/// A supervisor, its worker and the git that hangs.
struct Hanging {
    supervisor: Child,
    worker: Watched,
    git: Watched,
    _pipe: File,
}

fn hanging(bench: &Bench) -> Hanging {
    // git reads a ref to its end, which never comes: the pipe stays open and empty.
    let pipe = bench.project.join(".git/refs/heads/main");
    std::fs::remove_file(&pipe).unwrap();
    rustix::fs::mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let request = Request::Inspect { path: bench.project.clone().into(), state_dir: None };
    let mut supervisor = this_program("supervisor")
        .env(REQUEST, serde_json::to_string(&request).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(supervisor.stdout.take().unwrap()).lines();
    let worker = said.find_map(|line| line.unwrap().strip_prefix("worker ")?.parse().ok());
    let worker: i32 = worker.unwrap();
    // Returns when git has opened the other end.
    let open = File::options().write(true).open(&pipe).unwrap();
    let git = Watched::new("git", only_child(worker));
    Hanging { supervisor, worker: Watched::new("worker", worker), git, _pipe: open }
}

fn this_program(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "entry", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

fn only_child(pid: i32) -> i32 {
    let tasks = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).unwrap();
    let children: Vec<String> = tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap())
        .collect();
    let children: Vec<&str> = children.iter().flat_map(|text| text.split_whitespace()).collect();
    let [child] = children[..] else { panic!("children of the worker: {children:?}") };
    child.parse().unwrap()
}

#[test]
fn a_git_that_hangs_ends_with_a_supervisor_that_is_killed() {
    let bench = bench().repository();
    let mut hanging = hanging(&bench);
    // Control: it hangs, and so does who waits for it.
    assert!(!hanging.git.ends_within(0) && !hanging.worker.ends_within(0));
    hanging.supervisor.kill().unwrap();
    hanging.supervisor.wait().unwrap();
    for left in [&hanging.worker, &hanging.git] {
        assert!(left.ends_within(STAYS_SECONDS), "the {} outlived its supervisor", left.name);
    }
}

#[test]
fn a_git_that_hangs_ends_with_a_worker_that_is_killed() {
    let bench = bench().repository();
    let mut hanging = hanging(&bench);
    assert!(!hanging.git.ends_within(0));
    pidfd_send_signal(&hanging.worker.fd, Signal::KILL).unwrap();
    assert!(hanging.git.ends_within(STAYS_SECONDS), "git outlived its worker");
    hanging.supervisor.kill().unwrap();
    hanging.supervisor.wait().unwrap();
}

/// Not a test: this program as a supervisor or as its worker.
#[test]
fn entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("supervisor") => {
            let mut worker =
                this_program("worker").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            let mut input = worker.stdin.take().unwrap();
            writeln!(input, "{}", std::env::var(REQUEST).unwrap()).unwrap();
            println!("\nworker {}", worker.id());
            // Until it is killed.
            let _ = std::io::stdin().read(&mut [0]);
            let _ = worker.kill();
            worker.wait().unwrap();
        }
        Ok("worker") => atenea_workspace::worker::main(),
        _ => {}
    }
}
