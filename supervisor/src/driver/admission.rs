//! A request on its way to the state machine: parsed, checked against the configuration and the
//! host, kept on disk, then decided.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use atenea_core::event::{BudgetAsk, Owner, RunSpec};
use atenea_core::input::Command;
use atenea_core::manifest::{Checked, Sealed, check, is_within, parse_json};
use atenea_core::{Code, Digest, IdempotencyKey, Profile, Refusal, RunId, RunName, StepName};

use super::live::Live;
use crate::api::types::{NewRun, RunAccepted};
use crate::api::{App, Peer};
use crate::crash::{self, Place};
use crate::files;

/// Files of one grant that are searched for sockets; more are refused.
const GRANT_ENTRIES_MAX: u32 = 1_000_000;

/// Handles `POST /v1/runs`.
///
/// # Errors
/// Whatever makes the request no run at all: nothing is recorded then and nothing is left behind.
/// What the host or the budget refuses becomes a run that is refused, with its receipt.
pub async fn request(
    app: &App,
    peer: Peer,
    new: NewRun,
    key: Option<IdempotencyKey>,
) -> Result<RunAccepted, Refusal> {
    let request = asked(&new);
    let manifest = parse_json(&new.manifest.to_string())?;
    let checked = check(&manifest, &app.config.now().ceilings())?;
    let name = new.name.as_deref().map(RunName::parse).transpose()?;
    let step = manifest.approval.as_ref().map(|a| StepName::parse(&a.step)).transpose()?;
    check_workspace(app, &checked)?;
    check_mounts(app, &checked)?;
    let host = host_refusal(app, &checked);
    let run = RunId::from_random(
        getrandom::u64()
            .map_err(|e| Refusal::new(Code::ProcessBusy, format!("no random bytes: {e}")))?,
    );
    let generation = app.handle.read(|state| state.generation).await;
    let reservation = checked.hold().map(|_| run.to_string());
    let sealed = Sealed::new(&checked, run.clone(), None, generation, reservation);
    let mut spec = spec(&checked, &sealed, peer, &new, name, key, request);
    spec.step = step;
    keep(app, &run, &sealed)?;
    crash::moment(Place::RequestKept);
    let mut live = Live::new(sealed, spec.limits.output_bytes, new.foreground);
    live.tty = new.tty;
    live.term = new.term;
    app.host.begin(run.clone(), Arc::new(live));
    let command = Command::Request { run: run.clone(), spec: Box::new(spec), refusal: host };
    match app.handle.command(command).await {
        Ok(reply) => match reply.existing {
            None => Ok(RunAccepted { run, existing: false }),
            Some(existing) => {
                forget(app, &run);
                Ok(RunAccepted { run: existing, existing: true })
            }
        },
        Err(refusal) => {
            forget(app, &run);
            Err(refusal)
        }
    }
}

/// What a repeated request must have in common with the first (B4): what runs, and under which name.
/// Whether somebody watches it, and on which terminal, is no part of that.
fn asked(new: &NewRun) -> Digest {
    let what = serde_json::json!({ "manifest": new.manifest, "name": new.name });
    Digest::of(atenea_core::digest::canonical_json(&what).as_bytes())
}

fn spec(
    checked: &Checked,
    sealed: &Sealed,
    peer: Peer,
    new: &NewRun,
    name: Option<RunName>,
    idempotency: Option<IdempotencyKey>,
    request: Digest,
) -> RunSpec {
    RunSpec {
        name,
        profile: checked.profile(),
        manifest: checked.digest(),
        sealed: sealed.digest(),
        program: checked.program().chars().take(64).collect(),
        owner: Owner { uid: peer.uid, gid: peer.gid },
        budget: checked
            .hold()
            .map(|(account, amount)| BudgetAsk { account: account.clone(), amount: *amount }),
        priced: checked.is_priced(),
        limits: checked.limits().clone(),
        tty: new.tty.is_some(),
        foreground: new.foreground,
        idempotency,
        request,
        writable_workspace: checked.profile() == Profile::WorkspaceWrite,
        step: None,
    }
}

/// What the worker would refuse a moment later is refused before anything is made.
fn check_workspace(app: &App, checked: &Checked) -> Result<(), Refusal> {
    let path = Path::new(&checked.manifest().workspace.path);
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|e| files::io_refusal(path, &e))?;
    if !meta.is_dir() {
        let cause = format!("the workspace {shown} is no directory");
        return Err(
            Refusal::new(Code::FsBadWorkspace, cause).with_help("name the directory of a project")
        );
    }
    let real = std::fs::canonicalize(path).map_err(|e| files::io_refusal(path, &e))?;
    if real == Path::new("/") {
        return Err(Refusal::new(Code::FsBadWorkspace, "the workspace is /")
            .with_help("choose the directory of a project: go there, or use --workspace"));
    }
    let state = std::fs::canonicalize(app.dirs.root()).unwrap_or_else(|_| app.dirs.root().into());
    let contains = |outer: &Path, inner: &Path| match (outer.to_str(), inner.to_str()) {
        (Some(outer), Some(inner)) => is_within(inner, outer),
        _ => inner.starts_with(outer),
    };
    if contains(&real, &state) || contains(&state, &real) {
        let cause = format!("the workspace is {shown}, the state directory {}", state.display());
        return Err(Refusal::new(Code::FsStateInWorkspace, cause));
    }
    Ok(())
}

fn check_mounts(app: &App, checked: &Checked) -> Result<(), Refusal> {
    let state = std::fs::canonicalize(app.dirs.root()).unwrap_or_else(|_| app.dirs.root().into());
    for mount in &checked.manifest().mounts {
        let path = Path::new(&mount.source);
        std::fs::metadata(path).map_err(|e| files::io_refusal(path, &e))?;
        let real = std::fs::canonicalize(path).map_err(|e| files::io_refusal(path, &e))?;
        if real.starts_with(&state) || state.starts_with(&real) {
            let cause = format!("{} and the state directory overlap", path.display());
            return Err(Refusal::new(Code::FsStateInWorkspace, cause));
        }
        check_sockets(path)?;
    }
    Ok(())
}

/// A read-only mount does not keep anybody from connecting to a socket in it. What is there now is
/// refused; a grant of a place where the host makes sockets later is the grantor's to avoid.
fn check_sockets(path: &Path) -> Result<(), Refusal> {
    use std::os::unix::fs::FileTypeExt;
    // The grant may be the socket itself.
    if std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        return Err(Refusal::new(Code::FsHoldsSocket, path.display().to_string()));
    }
    let mut pending = vec![path.to_owned()];
    let mut looked_at = 0u32;
    while let Some(next) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries.flatten() {
            looked_at += 1;
            if looked_at > GRANT_ENTRIES_MAX {
                let cause = format!("{} holds more than {GRANT_ENTRIES_MAX} files", path.display());
                return Err(Refusal::new(Code::FsTooLarge, cause)
                    .with_help("grant a smaller directory: it is searched for sockets"));
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_socket() {
                return Err(Refusal::new(Code::FsHoldsSocket, entry.path().display().to_string()));
            }
            if kind.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(())
}

/// What this host or its configuration cannot do (S2): the run is recorded and refused.
fn host_refusal(app: &App, checked: &Checked) -> Option<Refusal> {
    let config = app.config.now();
    let sandbox = &config.sandbox;
    if checked.profile() == Profile::TrustedHost {
        if sandbox.allow_trusted_host {
            return None;
        }
        // Said in the cause: the receipt keeps that one.
        let cause = match app.config_now() {
            Some(now) if now.sandbox.allow_trusted_host => {
                "the configuration allows trusted-host, but the supervisor that runs has read an \
                 older one"
            }
            _ => "profile trusted-host was asked for",
        };
        return Some(Refusal::new(Code::HostTrustedHostOff, cause));
    }
    if sandbox.mode == crate::config::Mode::Off {
        let cause = format!("profile {} needs the sandbox", checked.profile());
        return Some(Refusal::new(Code::HostSandboxOff, cause));
    }
    app.host.inner().enforceable().err()
}

/// Keeps the sealed manifest in the run's directory before the run is recorded: a recorded run
/// always has it. It holds arguments and variables, so it is for its owner only.
fn keep(app: &App, run: &RunId, sealed: &Sealed) -> Result<(), Refusal> {
    let dir = app.dirs.run(run);
    // Searchable, so that the owner of a repository can be given the sealed result to read; what is
    // in it is for its owner only.
    std::fs::DirBuilder::new().mode(0o711).create(&dir).map_err(|e| files::io_refusal(&dir, &e))?;
    let path = app.dirs.manifest(run);
    let text = serde_json::to_vec(sealed).map_err(|e| Refusal::new(Code::FsIo, e.to_string()))?;
    write_private(&path, &text).inspect_err(|_| forget(app, run))
}

/// Not synced: after a crash of the machine the run ends aborted or lost and needs it no more.
fn write_private(path: &Path, text: &[u8]) -> Result<(), Refusal> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| files::io_refusal(path, &e))?;
    file.write_all(text).map_err(|e| files::io_refusal(path, &e))
}

/// Removes what was kept for a request that became no run.
fn forget(app: &App, run: &RunId) {
    app.host.inner().live.remove(run);
    let _ = std::fs::remove_file(app.dirs.manifest(run));
    let _ = std::fs::remove_dir(app.dirs.run(run));
}
