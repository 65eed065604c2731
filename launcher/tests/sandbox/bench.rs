//! A helper and what is needed to drive it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use atenea_core::{Limits, Profile, Refusal, RunId};
use atenea_launcher::client::{Helper, Receiver, Sender};
use atenea_launcher::plan::{
    FileIdentity, HostRuntime, OsBytes, PlanInput, SandboxPlan, TmpfsSizes, WorkspaceInput,
    compile, default_listeners, default_rlimits,
};
use atenea_launcher::probe::{Enforceable, HostSupport};
use atenea_launcher::protocol::{
    CreateSandbox, Created, CreatedFds, Event, FromHelper, HelperConfig, Reply, Request, Stdin,
};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number that no other test of this process has.
pub(crate) fn unique() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A uid for the runs of a helper that is root.
pub(crate) const RUN_UID: u32 = 700_001;

/// A directory that is removed when it is dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        let name = format!("atenea-launcher-test-{}-{}", std::process::id(), unique());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Bench {
    pub(crate) helper: Option<Helper>,
    /// Taken only at the end.
    tx: Option<Sender>,
    rx: Option<Receiver>,
    events: VecDeque<Event>,
    _dir: TempDir,
    pub(crate) root: bool,
    support: Option<HostSupport>,
}

/// `atenea-init`: named by the environment, or the static one of this build, or the one beside.
fn init_path() -> PathBuf {
    if let Some(path) = std::env::var_os("ATENEA_INIT") {
        return path.into();
    }
    let deps = std::env::current_exe().unwrap();
    let profile = deps.ancestors().nth(2).unwrap();
    let target = profile.parent().unwrap();
    let arch = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let with_arch = target.join(arch).join(profile.file_name().unwrap()).join("atenea-init");
    let beside = profile.join("atenea-init");
    [with_arch, beside]
        .into_iter()
        .find(|path| path.exists())
        .expect("atenea-init is not built: cargo build -p atenea-init, or name it in ATENEA_INIT")
}

impl Bench {
    /// A configured helper.
    pub(crate) fn configured() -> Self {
        let dir = TempDir::new();
        let canary = dir.path().join("canary");
        std::fs::write(&canary, "outside").unwrap();
        let helper = Helper::start(&std::env::current_exe().unwrap()).unwrap();
        let (tx, rx) = helper.split();
        let mut bench = Bench {
            helper: Some(helper),
            tx: Some(tx),
            rx: Some(rx),
            events: VecDeque::new(),
            _dir: dir,
            root: rustix::process::geteuid().is_root(),
            support: None,
        };
        let config = HelperConfig {
            instance: format!("test-{}-{}", std::process::id(), unique()),
            init: init_path().as_path().into(),
            bubblewrap: "/usr/bin/bwrap".into(),
            staging: "/tmp".into(),
            canary: canary.as_path().into(),
        };
        bench.ask(Request::Configure(config)).unwrap();
        bench
    }

    /// A helper on a host that was found able to enforce.
    pub(crate) fn new() -> Self {
        let mut bench = Bench::configured();
        bench.probe();
        bench
    }

    pub(crate) fn probe(&mut self) -> HostSupport {
        match self.ask(Request::Probe).unwrap().0 {
            Reply::Probed(support) => {
                self.support = Some(support.clone());
                support
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn proof(&self) -> Enforceable {
        let support = self.support.as_ref().unwrap();
        support.enforceable().unwrap_or_else(|refusal| panic!("{refusal}\n{support:#?}"))
    }

    pub(crate) fn ask(&mut self, request: Request) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        self.ask_with(request, Vec::new())
    }

    pub(crate) fn ask_with(
        &mut self,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let number = self.tx.as_mut().unwrap().send(request, fds).unwrap();
        loop {
            match self.receive() {
                (FromHelper::Event(event), _) => self.events.push_back(event),
                (FromHelper::Reply { id, result }, fds) => {
                    assert_eq!(id, number);
                    return result.map(|reply| (reply, fds));
                }
            }
        }
    }

    fn receive(&mut self) -> (FromHelper, Vec<OwnedFd>) {
        let received = self.rx.as_mut().unwrap().receive_blocking().unwrap();
        received.expect("the helper has ended")
    }

    pub(crate) fn event(&mut self) -> Event {
        if let Some(event) = self.events.pop_front() {
            return event;
        }
        match self.receive() {
            (FromHelper::Event(event), _) => event,
            (other, _) => panic!("{other:?}"),
        }
    }

    /// A plan of a command, changed as the test wants.
    pub(crate) fn plan(&self, argv: &[&str], change: impl FnOnce(&mut PlanInput)) -> SandboxPlan {
        compile(self.input(argv, change)).unwrap()
    }

    pub(crate) fn input(&self, argv: &[&str], change: impl FnOnce(&mut PlanInput)) -> PlanInput {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (outside_uid, outside_gid) = if self.root { (RUN_UID, RUN_UID) } else { own };
        let limits = Limits { memory_bytes: 512 << 20, ..Limits::default() };
        let mut input = PlanInput {
            run: RunId::from_random((u64::from(std::process::id()) << 24) + unique()),
            profile: Profile::WorkspaceWrite,
            argv: argv.iter().map(|word| (*word).into()).collect(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: None,
            workspace: None,
            grants: Vec::new(),
            runtime: HostRuntime::discover(&[]).unwrap(),
            outside_uid,
            outside_gid,
            tmpfs: TmpfsSizes::for_limits(&limits),
            limits,
            listeners: default_listeners(),
            rlimits: default_rlimits(),
            tty: None,
        };
        change(&mut input);
        input
    }

    /// A workspace directory that belongs to the run, seen at `target`.
    pub(crate) fn workspace(&self, target: &str) -> (TempDir, WorkspaceInput) {
        let dir = TempDir::new();
        if self.root {
            std::os::unix::fs::chown(dir.path(), Some(RUN_UID), Some(RUN_UID)).unwrap();
        }
        let input = WorkspaceInput {
            source: dir.path().into(),
            vetted: identity(dir.path()),
            target: target.into(),
        };
        (dir, input)
    }

    pub(crate) fn make_group(&mut self, plan: &SandboxPlan) -> atenea_cgroup::Identity {
        let request = Request::MakeGroup { run: plan.run.clone(), limits: plan.limits };
        match self.ask(request).unwrap().0 {
            Reply::GroupMade { identity } => identity,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn create(&mut self, plan: &SandboxPlan) -> Result<(Created, CreatedFds), Refusal> {
        self.create_with(plan, Stdin::Null, Vec::new())
    }

    pub(crate) fn create_with(
        &mut self,
        plan: &SandboxPlan,
        stdin: Stdin,
        passed: Vec<OwnedFd>,
    ) -> Result<(Created, CreatedFds), Refusal> {
        let create = CreateSandbox::new(&self.proof(), plan.clone(), stdin);
        match self.ask_with(Request::Create(create), passed)? {
            (Reply::Created(created), fds) => {
                let fds = CreatedFds::split(created.fds, fds).expect("descriptors are missing");
                Ok((created, fds))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Group and sandbox, waiting for go.
    pub(crate) fn created(&mut self, plan: &SandboxPlan) -> (Created, CreatedFds) {
        self.make_group(plan);
        self.create(plan).unwrap()
    }

    pub(crate) fn go(&mut self, run: &RunId) -> Reply {
        self.ask(Request::Go { run: run.clone() }).unwrap().0
    }

    /// A command that runs.
    pub(crate) fn started(&mut self, plan: &SandboxPlan) -> CreatedFds {
        let (_, fds) = self.created(plan);
        assert!(matches!(self.go(&plan.run), Reply::Started));
        fds
    }

    /// Waits for the end of a run; its wait status and that of its outermost process.
    pub(crate) fn ended(&mut self) -> (Option<i32>, i32) {
        let mut agent = None;
        loop {
            match self.event() {
                Event::AgentExited { wait_status, .. } => agent = Some(wait_status),
                Event::SandboxGone { wait_status, .. } => return (agent, wait_status),
                Event::Oom { .. } => {}
            }
        }
    }

    pub(crate) fn remove(&mut self, run: &RunId) {
        let reply = self.ask(Request::RemoveGroup { run: run.clone() }).unwrap().0;
        assert!(matches!(reply, Reply::Removed), "{reply:?}");
    }

    /// Runs a plan from its group to its removal.
    pub(crate) fn run(&mut self, plan: &SandboxPlan) -> Ran {
        let fds = self.started(plan);
        let stdout = read_all(fds.stdout);
        let stderr = read_all(fds.stderr);
        let (agent, _) = self.ended();
        self.remove(&plan.run);
        Ran { wait_status: agent.expect("the agent's end was not reported"), stdout, stderr }
    }

    /// Runs a shell script inside; its output.
    pub(crate) fn shell(&mut self, script: &str, change: impl FnOnce(&mut PlanInput)) -> Ran {
        let plan = self.plan(&["sh", "-c", script], change);
        self.run(&plan)
    }

    /// Closes this side and waits for the helper's end.
    pub(crate) fn close(mut self) -> i32 {
        self.end().expect("the helper was taken")
    }

    fn end(&mut self) -> Option<i32> {
        (self.tx, self.rx) = (None, None);
        let (tx, rx, pidfd) = self.helper.take()?.into_parts();
        drop((tx, rx));
        Some(wait_for_end(&pidfd))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for the end of a child by its pidfd.
pub(crate) fn wait_for_end(pidfd: &OwnedFd) -> i32 {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use std::os::fd::AsFd;
    let status =
        rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED));
    let status = status.unwrap().unwrap();
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

/// What a run did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) wait_status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn exit(&self) -> i32 {
        assert!(libc::WIFEXITED(self.wait_status), "{self:?}");
        libc::WEXITSTATUS(self.wait_status)
    }
}

pub(crate) fn read_all(fd: OwnedFd) -> String {
    let mut bytes = Vec::new();
    File::from(fd).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn read_line(fd: &OwnedFd) -> String {
    let mut line = Vec::new();
    let mut byte = [0u8];
    while rustix::io::read(fd, &mut byte[..]).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

pub(crate) fn identity(path: &Path) -> FileIdentity {
    let meta = std::fs::metadata(path).unwrap();
    FileIdentity { dev: meta.dev(), ino: meta.ino() }
}

pub(crate) fn bytes(text: &str) -> OsBytes {
    text.into()
}
