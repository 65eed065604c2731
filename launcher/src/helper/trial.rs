//! The probe's part that needs the helper: features tried one by one, then a whole sandbox.

mod features;

use atenea_core::{Code, Limits, Profile, Refusal, RunId};
use rustix::event::{PollFd, Timespec};

use super::clock;
use super::context::Context;
use super::dispatch::make_group;
use super::launch;
use super::removal::Removal;
use super::run::{Agent, Run, Source};
use super::sandbox::Outcome;
use crate::plan::{
    HostRuntime, Mount, MountKind, PlanInput, SandboxPlan, TmpfsSizes, compile, default_listeners,
    default_rlimits,
};
use crate::probe::{Feature, HostSupport, NO_LINK, TRIAL};
use crate::protocol::{SelfTest, Stdin};

/// How long the trial may take; it takes milliseconds.
const TRIAL_MS_MAX: u64 = 30_000;
/// An ordinary user for the trial of a helper that is root: a probe belongs to no run.
const TRIAL_UID: u32 = 65_534;

/// Tries everything.
pub(super) fn probe(context: &Context) -> HostSupport {
    let mut features = features::all(context);
    let mut self_test = Vec::new();
    let possible = features.iter().all(|f| !f.required || f.refusal.is_none());
    if !possible {
        features.extend([Feature::not_tried(NO_LINK), Feature::not_tried(TRIAL)]);
    } else {
        let symlink = refuses_symlinks(context).map(|()| "refused".to_owned());
        features.push(Feature::required(NO_LINK, symlink));
        let trial = whole(context).map(|tests| {
            self_test = tests;
            format!("a whole sandbox of {COMMAND} ran")
        });
        features.push(Feature::required(TRIAL, trial));
    }
    HostSupport::new(features, self_test)
}

const COMMAND: &str = "/usr/bin/true";

/// Launches a whole sandbox and lets it run to its end.
fn whole(context: &Context) -> Result<Vec<SelfTest>, Refusal> {
    let mut trial = Trial::new(context, plan(context)?)?;
    let result = trial.run();
    let removed = trial.remove();
    result.and_then(|tests| removed.map(|()| tests))
}

/// A mount point below a link must be refused: that shows that every parent of ours is looked at,
/// and none is followed, before bubblewrap sees the tree (CVE-2026-87766).
fn refuses_symlinks(context: &Context) -> Result<(), Refusal> {
    let mut plan = plan(context)?;
    let link = Mount { target: "/trial".into(), what: MountKind::Symlink { to: "/".into() } };
    let below = Mount { target: "/trial/below".into(), what: MountKind::Dir };
    plan.mounts.splice(1..1, [link, below]);
    let mut trial = Trial::new(context, plan)?;
    let result = trial.until_created();
    let removed = trial.remove();
    match result {
        Err(refusal) if refusal.cause.contains("step mount: /trial/below") => removed,
        Err(other) => Err(other),
        Ok(_) => Err(Refusal::new(
            Code::HostBubblewrapUnusable,
            "a mount point below a symbolic link was followed",
        )),
    }
}

fn plan(context: &Context) -> Result<SandboxPlan, Refusal> {
    let limits = Limits { pids: 32, memory_bytes: 256 << 20, ..Limits::default() };
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (outside_uid, outside_gid) = if context.root { (TRIAL_UID, TRIAL_UID) } else { own };
    compile(PlanInput {
        run: RunId::from_random(0),
        profile: Profile::Read,
        argv: vec![COMMAND.into()],
        env: Vec::new(),
        cwd: None,
        workspace: None,
        grants: Vec::new(),
        runtime: HostRuntime::discover(&[])?,
        outside_uid,
        outside_gid,
        tmpfs: TmpfsSizes::for_limits(&limits),
        limits,
        listeners: default_listeners(),
        rlimits: default_rlimits(),
        tty: None,
    })
}

/// A run outside the event loop, driven to its end here: a probe is asked for when nothing runs, or
/// by `doctor`, and takes a few milliseconds.
struct Trial {
    run: Run,
    deadline_ms: u64,
    /// Keeps the streams open, so that nothing dies of a closed pipe.
    fds: Option<crate::protocol::CreatedFds>,
}

impl Trial {
    fn new(context: &Context, plan: SandboxPlan) -> Result<Self, Refusal> {
        let name = format!("probe-{}", rustix::process::getpid().as_raw_nonzero());
        let group = make_group(context, &name, plan.limits)?;
        let oom = group.watch_oom().map_err(|e| super::context::group_refusal(&e));
        let oom = oom.inspect_err(|_| drop(group.remove()))?;
        let mut run = Run::new(group, oom);
        match launch::launch(context, &run.group, plan, Stdin::Null, None) {
            Ok(sandbox) => run.agent = Some(Agent::Sandbox(Box::new(sandbox))),
            Err(refusal) => {
                let _ = run.group.remove();
                return Err(refusal);
            }
        }
        Ok(Trial { run, deadline_ms: clock::now_ms() + TRIAL_MS_MAX, fds: None })
    }

    fn until_created(&mut self) -> Result<Vec<SelfTest>, Refusal> {
        loop {
            for outcome in self.next()? {
                match outcome {
                    Outcome::Created { self_test, fds } => {
                        self.fds = Some(fds);
                        return Ok(self_test);
                    }
                    Outcome::LaunchFailed(refusal) => return Err(refusal),
                    _ => {}
                }
            }
        }
    }

    fn run(&mut self) -> Result<Vec<SelfTest>, Refusal> {
        let failed = |why: String| Refusal::new(Code::HostBubblewrapUnusable, why);
        let self_test = self.until_created()?;
        if let Some(agent) = &mut self.run.agent {
            agent.go()?;
        }
        let mut status = None;
        loop {
            for outcome in self.next()? {
                match outcome {
                    Outcome::Exited { wait_status, .. } => status = Some(wait_status),
                    Outcome::ExecFailed { errno } => {
                        return Err(failed(format!("{COMMAND} was not executed: errno {errno}")));
                    }
                    Outcome::LaunchFailed(refusal) => return Err(refusal),
                    Outcome::Gone { .. } if status == Some(0) => return Ok(self_test),
                    Outcome::Gone { .. } => {
                        return Err(failed(format!("{COMMAND} ended with {status:?}")));
                    }
                    Outcome::Created { .. } | Outcome::Started => {}
                }
            }
        }
    }

    /// Waits for the next thing that happens, at most until the deadline.
    fn next(&mut self) -> Result<Vec<Outcome>, Refusal> {
        let late = || Refusal::new(Code::HostBubblewrapUnusable, "the trial took too long");
        let wait_ms = self.deadline_ms.saturating_sub(clock::now_ms());
        if wait_ms == 0 {
            return Err(late());
        }
        let sources = self.run.sources();
        let names: Vec<Source> = sources.iter().map(|(source, _, _)| *source).collect();
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let timeout =
            Timespec { tv_sec: i64::try_from(wait_ms / 1000).unwrap_or(1) + 1, tv_nsec: 0 };
        if rustix::event::poll(&mut fds, Some(&timeout)).is_err() {
            return Ok(Vec::new());
        }
        let ready: Vec<Source> = fds
            .iter()
            .zip(&names)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, source)| *source)
            .collect();
        let Some(agent) = &mut self.run.agent else { return Err(late()) };
        Ok(ready.into_iter().flat_map(|source| agent.ready(source)).collect())
    }

    fn remove(mut self) -> Result<(), Refusal> {
        self.fds = None;
        self.run.group.kill().map_err(|e| super::context::group_refusal(&e))?;
        self.run.removal = Some(Removal::new(0));
        loop {
            if let Some(agent) = &mut self.run.agent {
                let _ = agent.ready(Source::Process);
            }
            if let Some(result) = self.run.try_remove() {
                return result;
            }
            let pause = Timespec { tv_sec: 0, tv_nsec: 500_000 };
            let _ = rustix::event::poll(&mut [], Some(&pause));
        }
    }
}
