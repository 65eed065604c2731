//! Handlers for approvals.

use atenea_core::approval::{Approval, EXPIRES_MS_MAX};
use atenea_core::input::Command;
use atenea_core::manifest::parse_json;
use atenea_core::{Code, Refusal, State as Fold, StepName};
use axum::extract::State;
use axum::{Extension, Json};

use super::types::{ApprovalView, Approve};
use super::{ApiError, App, Peer, runs};
use crate::clock;

type Answer<T> = Result<T, ApiError>;
/// How long an approval lives unless it says otherwise: a day, milliseconds.
const EXPIRES_MS: u64 = 86_400_000;

/// `GET /v1/approvals`: those that live.
pub(super) async fn list(State(app): State<App>) -> Json<Vec<ApprovalView>> {
    let rows = |state: &Fold| {
        let living = state.approvals.steps.iter().filter(|(_, a)| lives(state, a));
        living.map(|(step, approval)| view(step, approval)).collect()
    };
    Json(app.handle.read(rows).await)
}

/// `POST /v1/approvals`
pub(super) async fn approve(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    body: Result<Json<Approve>, axum::extract::rejection::JsonRejection>,
) -> Answer<Json<ApprovalView>> {
    let Json(asked) = body.map_err(runs::bad_body)?;
    let manifest = parse_json(&asked.manifest.to_string())?;
    let step = step_of(manifest.approval.as_ref().map(|a| a.step.as_str()), asked.step.as_deref())?;
    let expires_ms = asked.expires_ms.unwrap_or(EXPIRES_MS);
    if !(1..=EXPIRES_MS_MAX).contains(&expires_ms) {
        let cause = "an approval lives between a moment and 366 days";
        return Err(Refusal::new(Code::ManifestBadLimit, cause)
            .with_help("for example: --expires 8h")
            .into());
    }
    let uses = asked.uses.unwrap_or(1);
    if uses == 0 {
        let cause = "an approval for no run allows nothing";
        return Err(Refusal::new(Code::ManifestBadLimit, cause)
            .with_help("--uses 1 or more")
            .into());
    }
    let (manifest, by) = (manifest.digest(), peer.uid);
    let command = Command::Approve { step: step.clone(), manifest, by, expires_ms, uses };
    app.handle.command(command).await?;
    let given = app
        .handle
        .read(|s| s.approvals.steps.get(&step).map(|approval| view(&step, approval)))
        .await;
    let replaced = || Refusal::new(Code::ApprovalMismatch, "another approval has replaced it");
    Ok(Json(given.ok_or_else(replaced)?))
}

/// The step that the manifest itself names; an option may only repeat it, or the approval would be of a
/// manifest that no run can claim.
fn step_of(named: Option<&str>, asked: Option<&str>) -> Result<StepName, Refusal> {
    let Some(named) = named else {
        let cause = "the manifest names no step: no run of it could claim the approval";
        return Err(Refusal::new(Code::ApprovalRequired, cause)
            .with_help("write [approval] with step = \"…\" into the manifest"));
    };
    if let Some(asked) = asked
        && asked != named
    {
        let cause = format!("the manifest is of step {named:?}, not of {asked:?}");
        return Err(Refusal::new(Code::ApprovalMismatch, cause)
            .with_help("leave --step out, or correct the manifest"));
    }
    StepName::parse(named)
}

fn lives(state: &Fold, approval: &Approval) -> bool {
    state.approvals.lives(approval, state.boot.as_ref(), clock::now())
}

fn view(step: &StepName, approval: &Approval) -> ApprovalView {
    ApprovalView {
        step: step.to_string(),
        manifest: approval.manifest,
        by: approval.by,
        expires: clock::rfc3339(approval.ends_wall_ms()),
        uses: approval.uses,
        used: approval.used,
        seq: approval.seq,
    }
}
