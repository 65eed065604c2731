//! Effects on the way to a running agent, and on the agent itself: group, policy, sandbox,
//! boundary, go, signals, stdin.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use atenea_broker::{Endpoint, Question};
use atenea_core::event::{BoundaryInfo, ProcessIdentity, SelfTestResult, Step};
use atenea_core::input::Observation;
use atenea_core::manifest::{Checked, check};
use atenea_core::run::Run;
use atenea_core::{BootId, Code, Digest, Profile, Refusal, RunId};
use atenea_egress::{Boundary, Policy};
use atenea_launcher::plan::{
    FileIdentity, Grant, HostRuntime, Mount, MountKind, OsBytes, PlanInput, Rlimit, TmpfsSizes,
    WorkspaceInput, compile, default_listeners, default_rlimits,
};
use atenea_launcher::protocol::{
    CreateSandbox, Created, CreatedFds, HostPlan, Reply, Request, Stdin,
};

use super::disk::Start;
use super::host::Inner;
use super::live::Live;
use super::streams::Cut;
use super::{streams, workspace};
use crate::layout::Stream;

/// `PATH` inside: the declared runtime and our client, nothing of the host user's.
const PATH_INSIDE: &str =
    "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/atenea/bin";
/// `RLIMIT_FSIZE` of Linux on every architecture.
const RLIMIT_FSIZE: u32 = 1;
/// Where the client for use inside is.
const GUEST_PATH: &str = "/atenea/bin/atenea-guest";

/// Makes the control group and sets its limits.
pub(super) async fn make_group(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let limits = (&inner.run(run).await?.spec.limits).into();
    match inner.helper.call(Request::MakeGroup { run: run.clone(), limits }).await? {
        Reply::GroupMade { identity } => {
            let record = serde_json::to_string(&identity)
                .map_err(|e| Refusal::new(Code::ProcessLaunchFailed, e.to_string()))?;
            Ok(Observation::GroupReady { run: run.clone(), record })
        }
        other => Err(unexpected(&other)),
    }
}

/// Mints the token. It is stored hashed; the run learns it through its environment (T1).
pub(super) fn policy(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let live = inner.live(run)?;
    let token = inner
        .tokens
        .mint(run, live.sealed.generation())
        .map_err(|e| Refusal::new(Code::ProcessLaunchFailed, e.to_string()))?;
    let hash = Digest::of(token.expose().as_bytes());
    live.with(|parts| parts.token = Some(token));
    Ok(Observation::PolicyReady { run: run.clone(), token: hash })
}

/// Makes the sandbox up to the point where `atenea-init` waits for go.
pub(super) async fn create(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let live = inner.live(run)?;
    let record = inner.run(run).await?;
    let checked = check(live.sealed.manifest(), &inner.config.now().ceilings())?;
    // S3: what is launched is what was admitted.
    if checked.digest() != record.spec.manifest || live.sealed.digest() != record.spec.sealed {
        return Err(Refusal::new(Code::ApprovalMismatch, "the manifest changed after admission"));
    }
    let stdin = if live.foreground && live.tty.is_none() { Stdin::Pipe } else { Stdin::Null };
    let request = match record.spec.profile {
        Profile::TrustedHost => {
            Request::CreateUnsandboxed(host_plan(&record, &live, &checked, stdin))
        }
        _ => {
            // S2: only a probe that found this host able to enforce gives this proof.
            let proof = inner.enforceable()?;
            let mut plan = compile(plan_input(inner, &record, &live, &checked)?)?;
            add_guest(&mut plan);
            Request::Create(CreateSandbox::new(&proof, plan, stdin))
        }
    };
    let (reply, fds) = inner.helper.ask(request).await;
    let Reply::Created(created) = reply? else {
        return Err(Refusal::new(Code::ProcessLaunchFailed, "the helper answered something else"));
    };
    let seen = created_observation(inner, &record, &created);
    let split = CreatedFds::split(created.fds, fds);
    let split = split.ok_or_else(|| {
        Refusal::new(Code::ProcessLaunchFailed, "the helper passed the wrong descriptors")
    })?;
    take_over(inner, run, &live, created, split).await?;
    Ok(seen)
}

fn created_observation(inner: &Inner, run: &Run, created: &Created) -> Observation {
    let enforced = run.spec.profile.is_enforced();
    let identity = ProcessIdentity {
        boot: BootId(created.identity.boot_id.clone()),
        pid: created.identity.pid,
        start_ticks: created.identity.start_time,
        pidfd_inode: created.identity.pidfd_inode,
    };
    let act = |t: &atenea_launcher::protocol::SelfTest| SelfTestResult {
        name: t.name.clone(),
        refused: t.refused,
    };
    let boundary = if enforced {
        inner.boundary.clone()
    } else {
        BoundaryInfo { kind: "none".to_owned(), ..BoundaryInfo::default() }
    };
    Observation::SandboxCreated {
        run: run.id.clone(),
        identity,
        boundary,
        self_test: created.self_test.iter().map(act).collect(),
    }
}

/// Starts capturing output and keeps the rest for the next step.
async fn take_over(
    inner: &Arc<Inner>,
    run: &RunId,
    live: &Arc<Live>,
    created: Created,
    fds: CreatedFds,
) -> Result<(), Refusal> {
    let CreatedFds { stdout, stderr, stdin, pty, listeners } = fds;
    let mut captures = Vec::new();
    let input = match pty {
        Some(pty) => {
            let reader = pty.try_clone().map_err(|e| {
                Refusal::new(Code::ProcessLaunchFailed, format!("the terminal: {e}"))
            })?;
            captures.push(capture(inner, run, live, Stream::Stdout, reader)?);
            Some(pty)
        }
        None => {
            captures.push(capture(inner, run, live, Stream::Stdout, stdout)?);
            captures.push(capture(inner, run, live, Stream::Stderr, stderr)?);
            stdin
        }
    };
    *live.stdin.lock().await = input;
    live.stdin_ready.send_replace(true);
    live.with(|parts| {
        parts.captures = captures;
        parts.fds = Some((created, listeners));
    });
    Ok(())
}

fn capture(
    inner: &Arc<Inner>,
    run: &RunId,
    live: &Arc<Live>,
    stream: Stream,
    pipe: OwnedFd,
) -> Result<tokio::task::JoinHandle<()>, Refusal> {
    let path = inner.dirs.stream(run, stream);
    let file = streams::create(&path).map_err(|e| crate::files::io_refusal(&path, &e))?;
    let (hub, inner, run) = (Arc::clone(&live.hub), Arc::clone(inner), run.clone());
    Ok(tokio::spawn(async move {
        let cut = {
            let (inner, run) = (Arc::clone(&inner), run.clone());
            move |cut| end_for_output(&inner, &run, stream, &cut)
        };
        if let Err(error) = streams::capture(hub, stream, pipe, file, cut.clone()).await {
            cut(Cut::Unwritable(error));
        }
    }))
}

/// Ends a run whose output is not kept any more, and no other: the state machine is told by a task
/// of its own, so that the output is read on meanwhile.
fn end_for_output(inner: &Arc<Inner>, run: &RunId, stream: Stream, cut: &Cut) {
    let refusal = match cut {
        Cut::OverLimit => Refusal::new(Code::LimitOutput, Code::LimitOutput.cause()),
        Cut::Unwritable(error) => crate::files::io_refusal(&inner.dirs.stream(run, stream), error),
    };
    tracing::warn!("output of {run}: {}", refusal.cause);
    let (inner, run) = (Arc::clone(inner), run.clone());
    tokio::spawn(async move { inner.observe(Observation::LimitExceeded { run, refusal }).await });
}

fn plan_input(
    inner: &Inner,
    run: &Run,
    live: &Live,
    checked: &Checked,
) -> Result<PlanInput, Refusal> {
    let prepared = workspace::prepared_path(inner, &run.id)?;
    let source = prepared.as_path();
    check_start(source, checked)?;
    let workspace = WorkspaceInput {
        source: source.into(),
        vetted: vetted(source)?.0,
        target: checked.manifest().workspace.target().into(),
    };
    let grants = checked.manifest().mounts.iter().map(|mount| {
        let source = Path::new(&mount.source);
        let (vetted, directory) = vetted(source)?;
        Ok(Grant { source: source.into(), vetted, directory, target: mount.target().into() })
    });
    let grants: Result<Vec<Grant>, Refusal> = grants.collect();
    let uid = run.run_uid.unwrap_or(run.spec.owner.uid);
    let own = rustix::process::geteuid().as_raw();
    let gid = if own == 0 { uid } else { run.spec.owner.gid };
    Ok(PlanInput {
        run: run.id.clone(),
        profile: run.spec.profile,
        argv: checked.argv().iter().map(|word| word.as_str().into()).collect(),
        env: environment(run, live, checked),
        cwd: Some(checked.cwd().into()),
        workspace: Some(workspace),
        grants: grants?,
        runtime: runtime(inner, checked)?,
        outside_uid: uid,
        outside_gid: gid,
        limits: run.spec.limits.clone(),
        tmpfs: TmpfsSizes::for_limits(&run.spec.limits),
        listeners: default_listeners(),
        rlimits: rlimits(run),
        tty: live.tty.map(|size| (size.rows, size.cols)),
    })
}

/// The directory the command starts in has to be among what the agent sees: one that is ignored or
/// empty is not. What a link makes of it is judged inside.
fn check_start(workspace: &Path, checked: &Checked) -> Result<(), Refusal> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    let (target, start) = (Path::new(checked.manifest().workspace.target()), checked.cwd());
    let Ok(inside) = Path::new(&start).strip_prefix(target) else { return Ok(()) };
    if inside.as_os_str().is_empty() {
        return Ok(());
    }
    let root =
        std::fs::File::open(workspace).map_err(|e| crate::files::io_refusal(workspace, &e))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat2(&root, inside, flags, Mode::empty(), ResolveFlags::BENEATH) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
            let cause = format!("{} is not among the files that the run sees", inside.display());
            Err(Refusal::new(Code::FsBadWorkspace, cause).with_help(
                "start in a directory with tracked files, name the one to start in with cwd, \
                 or make it visible with workspace.include_ignored",
            ))
        }
        _ => Ok(()),
    }
}

/// The declared runtime: the host's, and what the manifest declares besides. Looked at for each run:
/// an update of the host replaces files of it while we live.
fn runtime(inner: &Inner, checked: &Checked) -> Result<HostRuntime, Refusal> {
    let more = &checked.manifest().runtime.mounts;
    let config = inner.config.now();
    let own = config.runtime_mounts.iter().map(std::path::PathBuf::as_path);
    let all: Vec<&Path> = own.chain(more.iter().map(Path::new)).collect();
    HostRuntime::discover(&all)
}

/// Puts the client for use inside into the sandbox, when it was installed with us.
fn add_guest(plan: &mut atenea_launcher::plan::SandboxPlan) {
    let Ok(own) = std::env::current_exe() else { return };
    let path = own.with_file_name("atenea-guest");
    let Ok((vetted, false)) = vetted(&path) else { return };
    let what = MountKind::Bind {
        source: path.as_path().into(),
        vetted,
        directory: false,
        read_only: true,
    };
    // Before the last entry, which seals the tree.
    let seal = plan.mounts.len().saturating_sub(1);
    plan.mounts.insert(seal, Mount { target: GUEST_PATH.into(), what });
}

/// The usual limits of a process, and no single file beyond the disk limit: the kernel refuses what
/// the accountant would see too late.
fn rlimits(run: &Run) -> Vec<Rlimit> {
    let mut limits = default_rlimits();
    let bytes = run.spec.limits.disk_bytes;
    limits.push(Rlimit { resource: RLIMIT_FSIZE, soft: bytes, hard: bytes });
    limits
}

/// What a path names now; compared again after it is mounted. A link is refused: what was granted
/// is what was looked at.
fn vetted(path: &Path) -> Result<(FileIdentity, bool), Refusal> {
    let meta = std::fs::symlink_metadata(path).map_err(|e| crate::files::io_refusal(path, &e))?;
    if !meta.is_dir() && !meta.is_file() {
        let cause = format!("{} is neither a file nor a directory", path.display());
        return Err(Refusal::new(Code::FsNotFound, cause)
            .with_help("grant the real path of a file or directory"));
    }
    Ok((FileIdentity { dev: meta.dev(), ino: meta.ino() }, meta.is_dir()))
}

/// S5: the environment is what the plan lists and nothing else.
fn environment(run: &Run, live: &Live, checked: &Checked) -> Vec<(String, OsBytes)> {
    let mut env: std::collections::BTreeMap<String, OsBytes> = base_environment(run, live)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), OsBytes::from(value)))
        .collect();
    for (name, value) in checked.env() {
        env.insert(name.clone(), value.as_str().into());
    }
    env.into_iter().collect()
}

fn base_environment(run: &Run, live: &Live) -> Vec<(&'static str, String)> {
    let token = live.with(|parts| parts.token.as_ref().map(|t| t.expose().to_owned()));
    let term = live.term.clone().filter(|t| t.bytes().all(|b| b.is_ascii_graphic()));
    vec![
        ("PATH", PATH_INSIDE.to_owned()),
        ("HOME", atenea_launcher::plan::HOME.to_owned()),
        ("USER", atenea_launcher::plan::AGENT_NAME.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("TERM", term.unwrap_or_else(|| "dumb".to_owned())),
        ("ATENEA_RUN", run.id.to_string()),
        ("ATENEA_PROFILE", run.spec.profile.to_string()),
        ("ATENEA_BROKER", "http://127.0.0.1:7411".to_owned()),
        ("ATENEA_TOKEN", token.unwrap_or_default()),
    ]
}

/// A `trusted-host` run: the owner's rights and directory, only granted variables.
fn host_plan(run: &Run, live: &Live, checked: &Checked, stdin: Stdin) -> HostPlan {
    let owner = run.spec.owner;
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(owner.uid)).ok().flatten();
    let mut env: std::collections::BTreeMap<String, String> = base_environment(run, live)
        .into_iter()
        .filter(|(name, _)| !matches!(*name, "ATENEA_TOKEN" | "ATENEA_BROKER"))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    if let Some(user) = user {
        env.insert("HOME".to_owned(), user.dir.display().to_string());
        env.insert("USER".to_owned(), user.name);
    }
    env.extend(checked.env().clone());
    HostPlan {
        run: run.id.clone(),
        argv: checked.argv().iter().map(|word| word.as_str().into()).collect(),
        env: env.iter().map(|(name, value)| format!("{name}={value}").into()).collect(),
        cwd: checked.cwd().into(),
        uid: owner.uid,
        gid: owner.gid,
        groups: Vec::new(),
        stdin,
        tty: live.tty.map(|size| (size.rows, size.cols)),
    }
}

/// Gives the run's listeners to egress and broker.
pub(super) fn bind_boundary(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let live = inner.live(run)?;
    let failed = |why: String| Refusal::new(Code::ProcessLaunchFailed, why);
    let Some((_, listeners)) = live.with(|parts| parts.fds.take()) else {
        return Err(failed("the sandbox has no listeners".to_owned()));
    };
    // The order of `default_listeners`.
    let [proxy, socks, dns_udp, dns_tcp, broker] = <[OwnedFd; 5]>::try_from(listeners)
        .map_err(|fds| failed(format!("{} listeners came, 5 are needed", fds.len())))?;
    let sink = inner.violation_sink(run, "egress");
    let tell = Arc::new(move |d: atenea_egress::Denial| sink.tell(d.code, &d.subject, d.count));
    let listeners = atenea_egress::Listeners { proxy, socks, dns_udp, dns_tcp };
    let boundary = Boundary::bind(run.clone(), listeners, Policy::nothing(1), tell)
        .map_err(|e| failed(e.to_string()))?;
    let sink = inner.violation_sink(run, "broker");
    let tell = Arc::new(move |d: atenea_broker::Denial| sink.tell(d.code, d.subject, d.count));
    let listeners = atenea_broker::Listeners { tcp: broker };
    let tokens = Arc::clone(&inner.tokens);
    let endpoint = Endpoint::bind(run.clone(), listeners, tokens, record_of(&live), tell)
        .map_err(|e| failed(e.to_string()))?;
    live.with(|parts| {
        parts.boundary = Some(boundary);
        parts.endpoint = Some(endpoint);
    });
    Ok(Observation::BoundaryReady { run: run.clone() })
}

/// What the run may know about itself (T2).
fn record_of(live: &Live) -> atenea_broker::Record {
    let manifest = live.sealed.manifest();
    let grants = serde_json::json!({ "grants": atenea_core::manifest::explain(manifest) });
    let held = manifest.budget.as_ref().map_or_else(|| "0".to_owned(), |b| b.usd.to_string());
    let budget = serde_json::json!({ "usd_held": held, "usd_reported": "0" });
    Arc::new(move |question| match question {
        Question::Grants => grants.clone(),
        Question::Budget => budget.clone(),
        _ => serde_json::Value::Null,
    })
}

/// Starts the agent.
pub(super) async fn go(inner: &Arc<Inner>, run: &RunId) -> Result<Observation, Refusal> {
    let record = inner.run(run).await?;
    let disk = if record.spec.writable_workspace {
        Some(super::disk::start(inner, run).await)
    } else {
        None
    };
    match inner.helper.call(Request::Go { run: run.clone() }).await? {
        Reply::Started => {
            if let Some(live) = inner.live.get(run) {
                live.with(|parts| parts.started_ms = Some(crate::clock::now().boot_ms));
                if let Some(start) = disk {
                    watch_disk(inner, &live, &record, start);
                }
            }
            Ok(Observation::AgentStarted { run: run.clone() })
        }
        Reply::ExecFailed { errno } => {
            let error = std::io::Error::from_raw_os_error(errno);
            let program = record.spec.program;
            let code = match error.kind() {
                std::io::ErrorKind::NotFound => Code::ProcessNotFound,
                _ => Code::ProcessNotExecutable,
            };
            let refusal = Refusal::new(code, format!("{program}: {error}"));
            Ok(Observation::StepFailed { run: run.clone(), step: Step::Go, refusal })
        }
        other => Err(unexpected(&other)),
    }
}

/// A workspace on disk has an accountant for as long as its agent may write.
fn watch_disk(inner: &Arc<Inner>, live: &Live, run: &Run, start: Start) {
    let limit = run.spec.limits.disk_bytes;
    let watch = super::disk::watch(Arc::clone(inner), run.id.clone(), limit, start);
    let task = tokio::spawn(watch);
    live.with(|parts| {
        parts.accountant = Some(task);
        parts.disk_start = Some(start);
    });
}

/// Asks the agent to end.
pub(super) async fn terminate(inner: &Arc<Inner>, run: &RunId) {
    let signal = rustix::process::Signal::TERM.as_raw();
    if let Err(refusal) = inner.helper.call(Request::Signal { run: run.clone(), signal }).await {
        tracing::debug!("stop of {run}: {}", refusal.cause);
    }
}

/// Writes to the agent's standard input or terminal. Waits while the pipe is full: the client's
/// connection then waits too.
pub(super) async fn write_stdin(live: &Live, piece: &[u8]) {
    if live.stdin_ready.subscribe().wait_for(|ready| *ready).await.is_err() {
        return;
    }
    let mut slot = live.stdin.lock().await;
    let Some(fd) = slot.as_ref() else { return };
    let terminal = live.tty.is_some();
    if piece.is_empty() {
        // End of file: a pipe is closed; a terminal is told by its own key.
        if !terminal {
            *slot = None;
            return;
        }
        let _ = rustix::io::write(fd, &[4]);
        return;
    }
    if write_all(fd, piece).await.is_err() {
        // The agent closed its end; the rest has no reader.
        *slot = None;
    }
}

async fn write_all(fd: &OwnedFd, mut piece: &[u8]) -> std::io::Result<()> {
    rustix::io::ioctl_fionbio(fd, true)?;
    while !piece.is_empty() {
        match rustix::io::write(fd, piece) {
            Ok(written) => piece = piece.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::AGAIN) => writable(fd).await?,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn writable(fd: &OwnedFd) -> std::io::Result<()> {
    let copy = fd.as_fd().try_clone_to_owned()?;
    let interest = tokio::io::Interest::WRITABLE;
    let watched = crate::watched::watch(copy, interest)?;
    watched.writable().await.map(drop)
}

fn unexpected(reply: &Reply) -> Refusal {
    Refusal::new(Code::ProcessLaunchFailed, format!("the helper answered {reply:?}"))
}
