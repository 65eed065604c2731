//! Makes a sandbox: prepares all that the child needs, forks, keeps the other ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atenea_cgroup::RunGroup;
use atenea_core::{Code, Refusal};
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::context::Context;
use super::process::Process;
use super::sandbox::Sandbox;
use crate::packet::sealed_memfd;
use crate::plan::SandboxPlan;
use crate::protocol::Stdin;
use crate::spawn::{self, Entrances, Launch, fork_into};

/// The ends of the streams that the run gets, and those that the supervisor gets.
pub(super) struct Streams {
    pub(super) child: [OwnedFd; 3],
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) stdin: Option<OwnedFd>,
}

impl Streams {
    /// Pipes that belong to `owner`: a program may open `/dev/stdout`, which asks for the rights to
    /// the pipe again. Only root can give them away, and only root has to.
    pub(super) fn new(
        stdin: Stdin,
        passed: Option<OwnedFd>,
        owner: Option<(u32, u32)>,
    ) -> io::Result<Self> {
        let (input, stdin) = match (stdin, passed) {
            (Stdin::Null, None) => (null()?, None),
            (Stdin::Pipe, None) => {
                let (read, write) = pipe_of(owner)?;
                (read, Some(write))
            }
            (Stdin::Passed, Some(fd)) => (fd, None),
            _ => return Err(io::Error::other("standard input and its descriptor do not agree")),
        };
        let (stdout, out) = pipe_of(owner)?;
        let (stderr, err) = pipe_of(owner)?;
        Ok(Streams { child: [input, out, err], stdout, stderr, stdin })
    }
}

fn pipe_of(owner: Option<(u32, u32)>) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::fchown(&write, Some(uid), Some(gid))?;
    }
    Ok((read, write))
}

fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, "/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Starts the launch of a plan in its group. What comes back waits for the child's reports.
pub(super) fn launch(
    context: &Context,
    group: &RunGroup,
    plan: SandboxPlan,
    stdin: Stdin,
    passed: Option<OwnedFd>,
) -> Result<Sandbox, Refusal> {
    check(context, &plan)?;
    let init = context.init()?;
    let seccomp = context.seccomp()?;
    prepare_and_fork(context, group, plan, (stdin, passed), init, seccomp)
        .map_err(|error| Refusal::new(Code::ProcessLaunchFailed, format!("step fork: {error}")))
}

/// What the helper holds to, whoever made the plan.
fn check(context: &Context, plan: &SandboxPlan) -> Result<(), Refusal> {
    let refused = |why: &str| Err(Refusal::new(Code::ProcessLaunchFailed, why));
    let ids = plan.ids;
    if ids.outside_uid == 0 || ids.outside_gid == 0 {
        return refused("step plan: an agent never gets host uid or gid 0");
    }
    if !context.root && ids.outside_uid != rustix::process::geteuid().as_raw() {
        return refused("step plan: without root a run has the supervisor's own uid");
    }
    if !plan.profile.is_enforced() || plan.namespaces != crate::plan::Namespace::ALL {
        return refused("step plan: a sandbox has every namespace and an enforced profile");
    }
    if plan.argv.is_empty() {
        return refused("step plan: there is no command");
    }
    Ok(())
}

fn prepare_and_fork(
    context: &Context,
    group: &RunGroup,
    plan: SandboxPlan,
    (stdin, passed): (Stdin, Option<OwnedFd>),
    init: &spawn::Vetted,
    seccomp: OwnedFd,
) -> io::Result<Sandbox> {
    let owner = context.root.then_some((plan.ids.outside_uid, plan.ids.outside_gid));
    let streams = Streams::new(stdin, passed, owner)?;
    let pair =
        || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (report, report_child) = pair()?;
    let (supervise, supervise_child) = pair()?;
    let encoded = rmp_serde::to_vec_named(&spawn::init_plan(&plan, &context.canary)?)
        .map_err(io::Error::other)?;
    if encoded.len() > atenea_init::wire::PLAN_BYTES_MAX {
        return Err(io::Error::other("the plan is too large for init"));
    }
    let init_plan = sealed_memfd("atenea-plan", &encoded)?;
    let child = Launch {
        plan: &plan,
        entrances: Entrances::open(group)?,
        bubblewrap: &context.bubblewrap,
        init,
        staging: &context.staging,
        root: context.root,
        helper: rustix::process::getpid(),
        report: report_child,
        streams: streams.child,
        supervise: supervise_child,
        init_plan,
        seccomp,
    };
    let process = match fork_into(group)? {
        None => spawn::run(child),
        Some((pid, pidfd)) => Process::new(pid, pidfd),
    };
    // The child's ends are closed here, so that only the child holds them.
    drop(child);
    nonblocking_read(&streams.stderr)?;
    Ok(Sandbox::new(
        plan,
        process,
        (report, supervise),
        (streams.stdout, streams.stderr, streams.stdin),
    ))
}

/// The helper looks into standard error only when a launch failed, and never waits for it.
fn nonblocking_read(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fcntl_setfl(fd.as_fd(), OFlags::NONBLOCK)?)
}
