//! Requests to actions, outcomes to replies and events.

use std::io;
use std::os::fd::OwnedFd;

use atenea_cgroup::{Limits, RunGroup};
use atenea_core::{Code, Refusal, RunId};
use atenea_init::wire::ToInit;

use super::context::{Context, group_refusal};
use super::host_process::{HostProcess, Own};
use super::removal::Removal;
use super::run::{Agent, Run, Source};
use super::sandbox::Outcome;
use super::{Helper, launch, trial};
use crate::plan::GroupLimits;
use crate::protocol::{
    CreateSandbox, Created, CreatedFds, Event, HelperConfig, HostPlan, Numbered, Reply, Request,
    RunUsage, SelfTest,
};

/// What is known at once.
type Now = Result<Option<Reply>, Refusal>;

impl Helper {
    pub(super) fn request(&mut self, body: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
        let Numbered { id, request } =
            rmp_serde::from_slice(body).map_err(|e| io::Error::other(e.to_string()))?;
        match self.carry_out(id, request, fds) {
            Ok(None) => {}
            Ok(Some(reply)) => self.reply(id, Ok(reply), Vec::new()),
            Err(refusal) => self.reply(id, Err(refusal), Vec::new()),
        }
        Ok(())
    }

    /// `Ok(None)`: the reply comes later.
    fn carry_out(&mut self, id: u64, request: Request, fds: Vec<OwnedFd>) -> Now {
        match request {
            Request::Configure(config) => self.configure(config).map(Some),
            Request::Probe => Ok(Some(Reply::Probed(trial::probe(self.context()?)))),
            Request::MakeGroup { run, limits } => self.make_group(run, limits).map(Some),
            Request::Create(create) => self.create(id, &create, fds).map(|()| None),
            Request::CreateUnsandboxed(plan) => self.create_host(id, &plan, fds).map(|()| None),
            Request::Go { run } => self.go(id, &run).map(|()| None),
            Request::Signal { run, signal } => self.signal(&run, signal),
            Request::Resize { run, rows, cols } => self.resize(&run, rows, cols),
            Request::KillGroup { run } => {
                self.run(&run)?.kill()?;
                Ok(Some(Reply::Done))
            }
            // C1, R2: what was never made is gone.
            Request::RemoveGroup { run } if !self.runs.contains_key(&run) => {
                Ok(Some(Reply::Removed))
            }
            Request::RemoveGroup { run } => self.remove(id, &run).map(|()| None),
            Request::Usage { run } => self.usage(&run).map(Some),
        }
    }

    fn configure(&mut self, config: HelperConfig) -> Result<Reply, Refusal> {
        if let Some(context) = &self.context
            && context.config != config
        {
            return Err(Refusal::new(
                Code::ProcessLaunchFailed,
                "the helper is configured already",
            ));
        }
        let context = Context::new(config)?;
        let reply = Reply::Configured {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            boot_id: context.boot_id.clone(),
            root: context.root,
        };
        self.context = Some(context);
        Ok(reply)
    }

    fn context(&self) -> Result<&Context, Refusal> {
        self.context
            .as_ref()
            .ok_or_else(|| Refusal::new(Code::ProcessLaunchFailed, "the helper is not configured"))
    }

    fn run(&mut self, run: &RunId) -> Result<&mut Run, Refusal> {
        self.runs
            .get_mut(run)
            .ok_or_else(|| Refusal::new(Code::ProcessNoSuchRun, format!("{run} has no group")))
    }

    fn make_group(&mut self, run: RunId, limits: GroupLimits) -> Result<Reply, Refusal> {
        if self.runs.contains_key(&run) {
            return Err(Refusal::new(Code::ProcessLaunchFailed, format!("{run} has its group")));
        }
        let group = self.group_below_base(&run, limits)?;
        let oom = group.watch_oom().map_err(|e| {
            // Nothing is inside yet.
            let _ = group.remove();
            group_refusal(&e)
        })?;
        let identity = group.identity();
        self.runs.insert(run, Run::new(group, oom));
        Ok(Reply::GroupMade { identity })
    }

    /// Makes the group; once more with a base made anew when somebody removed that: an older helper
    /// that slept, or a person.
    fn group_below_base(&mut self, run: &RunId, limits: GroupLimits) -> Result<RunGroup, Refusal> {
        let first = make_group(self.context()?, run.as_str(), limits);
        let context = self.context.as_mut().ok_or_else(not_configured)?;
        if first.is_ok() || context.has_base() {
            return first;
        }
        context.renew_base();
        make_group(self.context()?, run.as_str(), limits)
    }

    fn create(
        &mut self,
        id: u64,
        create: &CreateSandbox,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let passed = fds.into_iter().next();
        let plan = create.plan().clone();
        let context = self.context.as_ref().ok_or_else(not_configured)?;
        let run = self.runs.get_mut(&plan.run).ok_or_else(|| no_group(&plan.run))?;
        check_free(run, &plan.run)?;
        let sandbox = launch::launch(context, &run.group, plan, create.stdin(), passed)?;
        run.agent = Some(Agent::Sandbox(Box::new(sandbox)));
        run.creating = Some(id);
        Ok(())
    }

    fn create_host(&mut self, id: u64, plan: &HostPlan, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let passed = fds.into_iter().next();
        let context = self.context.as_ref().ok_or_else(not_configured)?;
        let root = context.root;
        let run = self.runs.get_mut(&plan.run).ok_or_else(|| no_group(&plan.run))?;
        check_free(run, &plan.run)?;
        let own = Own { root, descriptors: self.descriptors };
        let (host, fds) = HostProcess::start(&run.group, plan, passed, own)?;
        run.agent = Some(Agent::Host(host));
        run.creating = Some(id);
        self.outcome(&plan.run, Outcome::Created { self_test: Vec::new(), fds });
        Ok(())
    }

    fn go(&mut self, id: u64, run: &RunId) -> Result<(), Refusal> {
        let known = self.run(run)?;
        let agent = known.agent.as_mut().ok_or_else(|| not_created(run))?;
        agent.go()?;
        known.going = Some(id);
        Ok(())
    }

    fn signal(&mut self, run: &RunId, signal: i32) -> Now {
        match self.run(run)?.agent.as_ref() {
            Some(Agent::Sandbox(sandbox)) => sandbox.tell(&ToInit::Signal { signal })?,
            Some(Agent::Host(host)) => host
                .process()
                .signal_group(signal)
                .map_err(|e| Refusal::new(Code::ProcessRunEnded, format!("{run}: {e}")))?,
            None => return Err(not_created(run)),
        }
        Ok(Some(Reply::Done))
    }

    fn resize(&mut self, run: &RunId, rows: u16, cols: u16) -> Now {
        match self.run(run)?.agent.as_ref() {
            Some(Agent::Sandbox(sandbox)) => sandbox.tell(&ToInit::Resize { rows, cols })?,
            Some(Agent::Host(host)) => host.resize((rows, cols))?,
            None => return Err(not_created(run)),
        }
        Ok(Some(Reply::Done))
    }

    fn remove(&mut self, id: u64, run: &RunId) -> Result<(), Refusal> {
        let run = self.run(run)?;
        run.kill()?;
        match &mut run.removal {
            Some(removal) => removal.ids.push(id),
            none => *none = Some(Removal::new(id)),
        }
        Ok(())
    }

    fn usage(&mut self, run: &RunId) -> Result<Reply, Refusal> {
        let group = &self.run(run)?.group;
        let refused = |e: atenea_cgroup::Error| group_refusal(&e);
        Ok(Reply::Usage(RunUsage {
            group: group.usage().map_err(refused)?,
            oom_kills: group.oom_kills().map_err(refused)?,
            fork_refusals: group.fork_refusals().map_err(refused)?,
        }))
    }

    /// A descriptor of a run is ready.
    pub(super) fn run_ready(&mut self, run: &RunId, source: Source) {
        let Some(known) = self.runs.get_mut(run) else { return };
        if source == Source::Oom {
            return self.oom(run);
        }
        let outcomes = known.agent.as_mut().map(|agent| agent.ready(source)).unwrap_or_default();
        for outcome in outcomes {
            self.outcome(run, outcome);
        }
    }

    /// The first process ended for want of memory ends the run: v1 has no `oom.group`, and a run that
    /// goes on without some of its processes would be neither stopped nor whole.
    fn oom(&mut self, run: &RunId) {
        let Some(known) = self.runs.get_mut(run) else { return };
        let fired = known.oom.as_mut().map(|watch| watch.fired());
        match fired {
            Some(Ok(false)) | None => return,
            // A watch that cannot be read is taken for "yes": the limit must hold.
            Some(Ok(true) | Err(_)) => known.oom = None,
        }
        let _ = known.group.kill();
        self.event(Event::Oom { run: run.clone() });
    }

    fn outcome(&mut self, run: &RunId, outcome: Outcome) {
        if matches!(outcome, Outcome::Exited { .. } | Outcome::Gone { .. }) {
            // The kernel counts a kill for want of memory before it sends the signal. Whatever ended of it is
            // seen here after that, perhaps before the poll of the count: the reason is told first.
            self.oom(run);
        }
        match outcome {
            Outcome::Created { self_test, fds } => self.created(run, self_test, fds),
            Outcome::LaunchFailed(refusal) => self.launch_failed(run, refusal),
            Outcome::Started => self.went(run, Ok(Reply::Started)),
            Outcome::ExecFailed { errno } => self.went(run, Ok(Reply::ExecFailed { errno })),
            Outcome::Exited { wait_status, rusage } => {
                self.event(Event::AgentExited { run: run.clone(), wait_status, rusage });
            }
            Outcome::Gone { wait_status } => {
                // A go that was never answered is answered by the end.
                let ended = Refusal::new(Code::ProcessRunEnded, "it ended before it started");
                self.went(run, Err(ended));
                self.event(Event::SandboxGone { run: run.clone(), wait_status });
            }
        }
    }

    fn created(&mut self, run: &RunId, self_test: Vec<SelfTest>, fds: CreatedFds) {
        let boot_id = self.context.as_ref().map(|context| context.boot_id.clone());
        let Some(known) = self.runs.get_mut(run) else { return };
        let Some(id) = known.creating.take() else { return };
        let Some(agent) = &known.agent else { return };
        let group = known.group.identity();
        let identity = agent.process().identity(&boot_id.unwrap_or_default(), group);
        match identity {
            Ok(identity) => {
                let (layout, fds) = fds.join();
                let created = Created { run: run.clone(), identity, self_test, fds: layout };
                self.reply(id, Ok(Reply::Created(created)), fds);
            }
            Err(error) => {
                let _ = known.group.kill();
                let cause = format!("step identity: {error}");
                self.reply(id, Err(Refusal::new(Code::ProcessLaunchFailed, cause)), Vec::new());
            }
        }
    }

    /// The launch failed, or the sandbox broke its protocol later: everything in it is killed.
    fn launch_failed(&mut self, run: &RunId, refusal: Refusal) {
        let Some(known) = self.runs.get_mut(run) else { return };
        let _ = known.group.kill();
        let waiting = known.creating.take().or_else(|| known.going.take());
        if let Some(id) = waiting {
            self.reply(id, Err(refusal), Vec::new());
        }
    }

    fn went(&mut self, run: &RunId, result: Result<Reply, Refusal>) {
        if let Some(id) = self.runs.get_mut(run).and_then(|run| run.going.take()) {
            self.reply(id, result, Vec::new());
        }
    }

    /// Looks at what waits for time: launches that take too long, removals.
    pub(super) fn advance(&mut self) {
        let ids: Vec<RunId> = self.runs.keys().cloned().collect();
        for id in ids {
            let Some(run) = self.runs.get_mut(&id) else { continue };
            if let Some(Agent::Sandbox(sandbox)) = &mut run.agent
                && let Some(outcome) = sandbox.check_deadline()
            {
                self.outcome(&id, outcome);
            }
            self.advance_removal(&id);
        }
    }

    fn advance_removal(&mut self, id: &RunId) {
        let Some(run) = self.runs.get_mut(id) else { return };
        let Some(result) = run.try_remove() else { return };
        let waiting = run.removal.take().map(|removal| removal.ids).unwrap_or_default();
        if result.is_ok() {
            self.runs.remove(id);
        }
        for request in waiting {
            self.reply(request, result.clone().map(|()| Reply::Removed), Vec::new());
        }
    }
}

pub(super) fn make_group(
    context: &Context,
    name: &str,
    limits: GroupLimits,
) -> Result<RunGroup, Refusal> {
    let limits = Limits {
        cpu_millis: limits.cpu_millis,
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
    };
    RunGroup::create(context.base()?, name, &limits).map_err(|e| group_refusal(&e))
}

fn check_free(run: &Run, id: &RunId) -> Result<(), Refusal> {
    if run.agent.is_none() && run.removal.is_none() {
        Ok(())
    } else {
        Err(Refusal::new(Code::ProcessLaunchFailed, format!("{id} has its process already")))
    }
}

fn not_configured() -> Refusal {
    Refusal::new(Code::ProcessLaunchFailed, "the helper is not configured")
}

fn no_group(run: &RunId) -> Refusal {
    Refusal::new(Code::ProcessNoSuchRun, format!("{run} has no group"))
}

fn not_created(run: &RunId) -> Refusal {
    Refusal::new(Code::ProcessRunEnded, format!("{run} has no process"))
}
