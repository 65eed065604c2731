//! The part of a person: asks for runs and acts on them, and notes what was acknowledged.

use std::collections::BTreeSet;
use std::future::Future;

use atenea_core::{Code, Refusal, RunId};
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};

use crate::api::types::{
    CancelRequest, ExportRequest, ExportResult, NewRun, RunAccepted, RunStatus, StopRequest,
};
use crate::cli::client::{Client, run_path};

use super::scene::{PATIENCE, Scene, git};
use super::story::{Act, Ask, Setting, Story};

/// What was acknowledged before the kill.
#[derive(Default)]
pub(super) struct Seen {
    /// Runs that were accepted.
    pub(super) runs: Vec<RunId>,
    /// Runs of which `ready` was read: what they wrote before is there.
    pub(super) ready: BTreeSet<RunId>,
    /// Commits of exports that were acknowledged, with their refs.
    pub(super) exported: Vec<(String, String)>,
    /// Workspaces whose end was acknowledged.
    pub(super) discarded: BTreeSet<RunId>,
}

/// Plays a story until it is over or nobody answers any more; the rest is for the checks.
///
/// # Errors
/// An act that did not go as written although the supervisor was there.
pub(super) async fn play(
    scene: &Scene,
    story: &Story,
    setting: Setting,
    seen: &mut Seen,
) -> Result<(), String> {
    let player = Player { client: scene.client(), scene, setting };
    for act in story.acts {
        match within(player.act(*act, seen)).await {
            Ok(()) => {}
            Err(refusal) if is_end(refusal.code) => return Ok(()),
            Err(refusal) => return Err(format!("{act:?}: {}", refusal.cause)),
        }
    }
    stop(&player.client).await
}

/// Asks a supervisor to stop now. One that is gone meanwhile is no failure.
///
/// # Errors
/// Its refusal.
pub(super) async fn stop(client: &Client) -> Result<(), String> {
    let body = StopRequest { now: true };
    match within(client.give::<_, ()>(Method::POST, "/v1/stop", &body, None)).await {
        Err(refusal) if !is_end(refusal.code) => Err(format!("stop: {}", refusal.cause)),
        _ => Ok(()),
    }
}

/// What a client hears when supervisor or helper die.
fn is_end(code: Code) -> bool {
    matches!(
        code,
        Code::HostNoSupervisor
            | Code::ProcessHelperDied
            | Code::ProcessStopping
            | Code::RecoveryLost
    )
}

async fn within<T>(work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let late = |_| {
        let cause = format!("no answer came in {} s", PATIENCE.as_secs());
        Err(Refusal::new(Code::ProcessBusy, cause))
    };
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(late)
}

struct Player<'a> {
    client: Client,
    scene: &'a Scene,
    setting: Setting,
}

impl Player<'_> {
    async fn act(&self, act: Act, seen: &mut Seen) -> Result<(), Refusal> {
        let last = || {
            let nothing = || Refusal::new(Code::ProcessNoSuchRun, "the story has no run yet");
            seen.runs.last().cloned().ok_or_else(nothing)
        };
        match act {
            Act::Run(ask) => seen.runs.push(self.run(ask).await?),
            Act::Ready => {
                let run = last()?;
                self.ready(&run).await?;
                seen.ready.insert(run);
            }
            Act::Wait => {
                for run in &seen.runs {
                    wait(&self.client, run).await?;
                }
            }
            Act::Cancel(grace) => {
                let body = CancelRequest { reason: None, grace_ms: Some(grace), kill: grace == 0 };
                self.give::<_, RunStatus>(&last()?, "/cancel", &body).await?;
            }
            Act::Export => {
                let result = self.export(&last()?, false).await?;
                seen.exported.extend(result.reference.zip(result.commit));
            }
            Act::Patch => drop(self.export(&last()?, true).await?),
            Act::ExportRefused => self.export_refused(&last()?).await?,
            Act::Discard => {
                let run = last()?;
                self.give::<_, RunStatus>(&run, "/discard", &()).await?;
                seen.discarded.insert(run);
            }
            Act::Gone => {
                let run = last()?;
                self.gone(&run).await?;
                seen.discarded.insert(run);
            }
        }
        Ok(())
    }

    async fn give<B: serde::Serialize, T: serde::de::DeserializeOwned>(
        &self,
        run: &RunId,
        what: &str,
        body: &B,
    ) -> Result<T, Refusal> {
        self.client.give(Method::POST, &run_path(run.as_str(), what)?, body, None).await
    }

    async fn run(&self, ask: &Ask) -> Result<RunId, Refusal> {
        let work = self.scene.work();
        let manifest = ask.manifest(self.setting, &work.to_string_lossy());
        request(&self.client, manifest).await
    }

    /// Reads the output until it has the word.
    async fn ready(&self, run: &RunId) -> Result<(), Refusal> {
        let path = run_path(run.as_str(), "/logs?stream=stdout&follow=true")?;
        let response = self.client.send(Method::GET, &path, None, None, false).await?;
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let broken = |e: hyper::Error| Refusal::new(Code::HostNoSupervisor, e.to_string());
            text.extend_from_slice(frame.map_err(broken)?.data_ref().map_or(&[][..], |d| d));
            if text.windows(6).any(|word| word == b"ready\n") {
                return Ok(());
            }
        }
        // The output ends with the run; a run ends early when its helper died.
        Err(Refusal::new(Code::RecoveryLost, "the run has ended without a word"))
    }

    async fn export(&self, run: &RunId, patch: bool) -> Result<ExportResult, Refusal> {
        let body = ExportRequest { reference: None, patch };
        self.give(run, "/export", &body).await
    }

    /// A ref `refs/atenea` leaves no room for one below it.
    async fn export_refused(&self, run: &RunId) -> Result<(), Refusal> {
        git(&self.scene.work(), &["update-ref", "refs/atenea", "HEAD"])?;
        match self.export(run, false).await {
            Err(refusal) if !is_end(refusal.code) => Ok(()),
            Err(refusal) => Err(refusal),
            Ok(_) => Err(Refusal::new(Code::ExportRefExists, "nothing stood in the way")),
        }
    }

    /// The deletion follows the end of the run by itself; a discard that comes too late is refused.
    async fn gone(&self, run: &RunId) -> Result<(), Refusal> {
        loop {
            let path = run_path(run.as_str(), "")?;
            let status: RunStatus = self.client.get(&path).await?;
            if status.workspace == "discarded" {
                return Ok(());
            }
            tokio::time::sleep(super::look::PAUSE).await;
        }
    }
}

/// Asks for a detached run.
///
/// # Errors
/// The supervisor's refusal.
pub(super) async fn request(client: &Client, manifest: Value) -> Result<RunId, Refusal> {
    let body = NewRun { manifest, name: None, foreground: false, tty: None, term: None };
    let accepted: RunAccepted = client.give(Method::POST, "/v1/runs", &body, None).await?;
    Ok(accepted.run)
}

/// Waits until a run has its receipt.
///
/// # Errors
/// The supervisor's refusal.
pub(super) async fn wait(client: &Client, run: &RunId) -> Result<RunStatus, Refusal> {
    within(client.get(&run_path(run.as_str(), "/wait")?)).await
}

/// A run after a recovery: it shows that work is admitted again.
///
/// # Errors
/// In words, when it does not end as it should.
pub(super) async fn works_again(client: &Client, scene: &Scene) -> Result<RunId, String> {
    let manifest = json!({
        "version": 1,
        "profile": "read",
        "command": { "argv": ["true"] },
        "workspace": { "path": scene.work() },
    });
    let failed = |refusal: Refusal| format!("no new run after the recovery: {}", refusal.cause);
    let run = within(request(client, manifest)).await.map_err(failed)?;
    let status = wait(client, &run).await.map_err(failed)?;
    match status.client_status {
        Some(0) => Ok(run),
        other => Err(format!("a new run after the recovery gave {other:?}: {:?}", status.cause)),
    }
}
