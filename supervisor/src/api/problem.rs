//! Refusals as `application/problem+json`.

use atenea_core::{Code, Refusal, RunId};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::types::Problem;

/// What a handler returns when it refuses.
#[derive(Debug)]
pub struct ApiError {
    refusal: Refusal,
    run: Option<RunId>,
}

impl ApiError {
    /// A refusal that belongs to a run.
    pub fn of_run(mut refusal: Refusal, run: RunId) -> Self {
        // A remedy can be pasted.
        refusal.help = refusal.help.replace(" RUN", &format!(" {run}"));
        ApiError { refusal, run: Some(run) }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        ApiError { refusal, run: None }
    }
}

/// HTTP status of a code: what a client may do about it.
pub fn status(code: Code) -> StatusCode {
    match code {
        Code::ProcessNoSuchRun | Code::FsNotFound => StatusCode::NOT_FOUND,
        Code::ProcessAmbiguousRun
        | Code::ProcessNameTaken
        | Code::ProcessIdempotencyMismatch
        | Code::ExportRefExists
        | Code::ExportNotEnded
        | Code::ExportNothing
        | Code::JournalLocked => StatusCode::CONFLICT,
        Code::FsNotYours => StatusCode::FORBIDDEN,
        Code::ProcessBusy | Code::ProcessStopping | Code::FsDiskFull => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::ApiBadRequest => StatusCode::BAD_REQUEST,
        Code::FsIo | Code::JournalIo | Code::JournalDamaged => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// The parameters of a query; one that is wrong is refused as everything else is.
pub(super) struct Asked<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let bad = |e: QueryRejection| Refusal::new(Code::ApiBadRequest, e.body_text());
        let Query(asked) = Query::from_request_parts(parts, state).await.map_err(bad)?;
        Ok(Asked(asked))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Refusal { code, cause, help } = self.refusal;
        let problem = Problem { code: code.to_string(), cause, help, run: self.run };
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (status(code), kind, Json(problem)).into_response()
    }
}
