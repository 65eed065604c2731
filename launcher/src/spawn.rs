//! The child of the helper, from the fork to the exec of bubblewrap.
//!
//! Steps, in the order of the design and of [`launch`]:
//!
//! 1. bind its life to the helper, enter the run's control groups (it was born in one), make a mount and a network
//!    namespace (inside a user namespace of its own unless started as root), everything private;
//! 2. make the whole tree that the agent will see, in a filesystem of its own, and seal it;
//! 3. loopback up, the synthetic range local, listeners; pass the listeners out;
//! 4. drop to the run's uid, put the planned descriptors in their places, everything else
//!    close-on-exec;
//! 5. execute bubblewrap, which makes the remaining namespaces and `/proc`, and becomes the parent
//!    of `atenea-init`.
//!
//! Any failure is one message to the helper, and the process ends. The agent is not started here:
//! `atenea-init` waits for *go* (S1).

mod args;
mod enter;
mod mounts;
mod net;
mod tree;

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use atenea_core::{Code, Refusal};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal};
use rustix::thread::{Gid, Uid};
use serde::{Deserialize, Serialize};

use crate::packet::Outgoing;
use crate::plan::{FileIdentity, OsBytes, SandboxPlan};
use crate::sys;

pub(crate) use enter::{Entrances, fork_into};

/// First number above the descriptors that `atenea-init` starts with.
const FIRST_FREE: i32 = 6;

/// A program of ours or of the host that was vetted once.
#[derive(Clone, Debug)]
pub(crate) struct Vetted {
    pub(crate) path: PathBuf,
    pub(crate) identity: FileIdentity,
}

/// All that the child needs; made before the fork.
pub(crate) struct Launch<'a> {
    pub(crate) plan: &'a SandboxPlan,
    pub(crate) entrances: Entrances,
    pub(crate) bubblewrap: &'a Path,
    pub(crate) init: &'a Vetted,
    /// Where the tree is made: a directory that everybody may search, seen by this child only.
    pub(crate) staging: &'a Path,
    /// Whether the helper is root.
    pub(crate) root: bool,
    pub(crate) helper: Pid,
    /// To the helper; close-on-exec, so its end means that bubblewrap was executed.
    pub(crate) report: OwnedFd,
    pub(crate) streams: [OwnedFd; 3],
    pub(crate) supervise: OwnedFd,
    pub(crate) init_plan: OwnedFd,
    pub(crate) seccomp: OwnedFd,
}

/// What the child tells the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Carries the listeners in the plan's order.
    Listeners,
    /// A step failed.
    Failed(Refusal),
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("step {step}: {what}: {source}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) step: &'static str,
    pub(crate) what: String,
    pub(crate) source: io::Error,
}

impl Failure {
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::new(self.code, self.to_string())
    }
}

/// Adds the step and the object to a system error.
pub(crate) fn failed<E: Into<io::Error>>(
    code: Code,
    step: &'static str,
    what: impl Into<String>,
) -> impl FnOnce(E) -> Failure {
    move |error| Failure { code, step, what: what.into(), source: error.into() }
}

/// Runs all steps; comes back only to end the process.
pub(crate) fn run(launch: Launch<'_>) -> ! {
    let report = rustix::io::fcntl_dupfd_cloexec(&launch.report, FIRST_FREE);
    let failure = match self::launch(launch) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    if let Ok(report) = report {
        // The helper sees the end of this process too, so a report that cannot be sent loses only
        // its text.
        let _ = send(&report, &Report::Failed(failure.refusal()), Vec::new());
    }
    sys::process::exit_now(125)
}

fn launch(mut launch: Launch<'_>) -> Result<Infallible, Failure> {
    // 1. Life, groups, namespaces.
    bind_life(launch.helper)?;
    sys::process::unblock_signals().map_err(failed(
        Code::ProcessLaunchFailed,
        "signals",
        "unblock them",
    ))?;
    launch.entrances.enter().map_err(failed(
        Code::HostNoCgroup,
        "cgroup",
        "enter the run's groups",
    ))?;
    net::own_namespaces(launch.plan.ids, launch.root)?;
    // 2. The tree.
    mounts::make_private()?;
    tree::make(launch.plan, launch.init, launch.staging)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // bubblewrap looks for its working directory inside.
    rustix::process::chdir("/").map_err(failed(
        Code::ProcessLaunchFailed,
        "directory",
        "go to /",
    ))?;
    // 3. The network.
    net::loopback()?;
    let listeners = net::listeners(&launch.plan.listeners)?;
    send(&launch.report, &Report::Listeners, listeners).map_err(failed(
        Code::ProcessLaunchFailed,
        "listeners",
        "pass them to the helper",
    ))?;
    // 4. Identity and descriptors.
    let args = args::memfd(launch.plan, launch.staging).map_err(failed(
        Code::ProcessLaunchFailed,
        "arguments",
        "write them to a memfd",
    ))?;
    let argv = args::argv(&args);
    drop_identity(&launch)?;
    place_descriptors(&mut launch, args).map_err(failed(
        Code::ProcessLaunchFailed,
        "descriptors",
        "put them in place",
    ))?;
    // A change of identity clears the parent-death signal.
    bind_life(launch.helper)?;
    // 5. bubblewrap.
    args::exec(launch.bubblewrap, &argv)
}

/// Ends with the helper: its death signal first, then a look whether it died before.
pub(crate) fn bind_life(helper: Pid) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .and_then(|()| match rustix::process::getppid() == Some(helper) {
            true => Ok(()),
            false => Err(rustix::io::Errno::SRCH),
        })
        .map_err(failed(Code::ProcessHelperDied, "life", "bind to the helper"))
}

/// Gives up root for the run's uid and gid, without any further group.
fn drop_identity(launch: &Launch<'_>) -> Result<(), Failure> {
    let ids = launch.plan.ids;
    // An agent never has host uid 0: checked when the plan was compiled, when the helper took it,
    // and here, where it would happen.
    assert!(ids.outside_uid != 0 && ids.outside_gid != 0, "a plan with host uid or gid 0");
    if !launch.root {
        return Ok(());
    }
    set_identity(ids.outside_uid, ids.outside_gid, &[]).map_err(failed(
        Code::ProcessLaunchFailed,
        "identity",
        "become the run's uid",
    ))
}

/// Sets groups, gid and uid, all of each kind. This process has one thread.
pub(crate) fn set_identity(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// S5: exactly the planned descriptors stay open across exec.
fn place_descriptors(launch: &mut Launch<'_>, args: OwnedFd) -> io::Result<()> {
    // All sources are moved above the numbers that are placed, so that none is overwritten.
    let above = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE);
    let mut sources = Vec::new();
    for stream in &launch.streams {
        sources.push(above(stream)?);
    }
    for fd in [&launch.supervise, &launch.init_plan, &launch.seccomp] {
        sources.push(above(fd)?);
    }
    let args = rustix::io::fcntl_dupfd_cloexec(&args, args::ARGS_FD + 1)?;
    sys::fd::close_on_exec_from(0)?;
    let supervised = [atenea_init::wire::FD_SUPERVISE, atenea_init::wire::FD_PLAN];
    debug_assert_eq!(supervised, [3, 4]);
    for (number, source) in (0..).zip(&sources) {
        sys::fd::place(source.as_fd(), number)?;
    }
    // bubblewrap reads and closes this one before it starts anything.
    sys::fd::place(args.as_fd(), args::ARGS_FD)
}

pub(crate) fn send(socket: &OwnedFd, report: &Report, fds: Vec<OwnedFd>) -> io::Result<()> {
    let body = rmp_serde::to_vec_named(report).map_err(io::Error::other)?;
    // The socket holds far more than these few messages.
    match Outgoing::new(body, fds)?.send_some(socket.as_fd())? {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// The plan as `atenea-init` wants it. A resource limit above the hard one of the host is that one:
/// it cannot be raised without privilege, and lower is never wider.
pub(crate) fn init_plan(
    plan: &SandboxPlan,
    canary: &Path,
) -> io::Result<atenea_init::wire::InitPlan> {
    let mut rlimits = Vec::new();
    for limit in &plan.rlimits {
        let hard = limit.hard.min(sys::process::hard_limit(limit.resource)?);
        rlimits.push((limit.resource, limit.soft.min(hard), hard));
    }
    let bytes = |list: &[OsBytes]| list.iter().map(|item| item.as_bytes().to_vec()).collect();
    Ok(atenea_init::wire::InitPlan {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: bytes(&plan.argv),
        env: bytes(&plan.env),
        cwd: plan.cwd.as_bytes().to_vec(),
        tty: plan.tty,
        rlimits,
        canary: OsBytes::from(canary).into_vec(),
    })
}
