//! One request: token, body, route. Every refusal has a code, a cause and a remedy; nothing of the
//! request is kept or logged (E4).

use std::convert::Infallible;
use std::sync::Arc;

use atenea_core::{Code, RunId};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::LIMITS;
use crate::denial::Denials;
use crate::stall::Stalling;
use crate::table::{TokenError, TokenTable};

/// What a guest may ask the supervisor's record of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Question {
    /// What the run was granted.
    Grants,
    /// What of its budget is held and reported.
    Budget,
}

/// Answers from the supervisor's record of the run (T2). It must not block.
pub type Record = Arc<dyn Fn(Question) -> serde_json::Value + Send + Sync>;

/// What all tasks of one run's endpoint share.
pub(crate) struct State {
    pub(crate) run: RunId,
    pub(crate) tokens: Arc<TokenTable>,
    pub(crate) record: Record,
    pub(crate) denials: Denials,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) requests: Semaphore,
}

type Answer = Response<Full<Bytes>>;

/// A refusal on its way to the guest.
struct Refused {
    status: StatusCode,
    code: Code,
    /// One of this crate's words, for the record.
    subject: &'static str,
    cause: &'static str,
    /// Close after it: something of the request is still unread, or room is wanted.
    close: bool,
}

/// What hyper may buffer of a head before it refuses by itself, without a body: more than our own
/// bounds, so that these answer with a code.
const HEAD_BUFFER: usize = 2 * LIMITS.header_bytes;
const HEAD_FIELDS: usize = 2 * LIMITS.header_fields;

/// Serves one connection to its end.
pub(crate) async fn serve_connection<S>(stream: S, state: Arc<State>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(answer(request, &state).await) }
    });
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LIMITS.header_time)
        .max_buf_size(HEAD_BUFFER)
        .max_headers(HEAD_FIELDS)
        .serve_connection(TokioIo::new(Stalling::new(stream)), service)
        .without_shutdown()
        .await;
    match ended {
        Ok(parts) => linger(parts.io.into_inner()).await,
        Err(error) if error.is_parse_too_large() => {
            state.denials.record(Code::BrokerLimit, "header");
        }
        Err(error) if error.is_parse() => {
            state.denials.record(Code::BrokerBadRequest, "request");
        }
        // A client that went away or was idle too long is nobody's offence.
        Err(_) => {}
    }
}

/// Ends the sending side, then throws away a bounded amount of what still comes: closing with
/// unread bytes would reset the connection and could take the answer away from the client.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let drain = async {
        if stream.shutdown().await.is_err() {
            return;
        }
        let mut left = LIMITS.linger_bytes;
        let mut scrap = [0; 4096];
        while left > 0 {
            match stream.read(&mut scrap).await {
                Ok(0) | Err(_) => return,
                Ok(count) => left = left.saturating_sub(count),
            }
        }
    };
    // Running out of time is an ordinary end here.
    let _ = timeout(LIMITS.linger_time, drain).await;
}

async fn answer(request: Request<Incoming>, state: &State) -> Answer {
    match judge(request, state).await {
        Ok(value) => json(StatusCode::OK, &value),
        Err(refused) => {
            state.denials.record(refused.code, refused.subject);
            refusal(&refused, &state.run)
        }
    }
}

async fn judge(request: Request<Incoming>, state: &State) -> Result<serde_json::Value, Refused> {
    let Ok(_permit) = state.requests.try_acquire() else {
        let cause = "too many requests of this run are in work";
        return Err(limit(StatusCode::SERVICE_UNAVAILABLE, "requests", cause));
    };
    check_head(&request)?;
    check_token(request.headers(), state)?;
    let (head, body) = request.into_parts();
    discard_body(body).await?;
    let question = route(&head.method, head.uri.path())?;
    Ok((state.record)(question))
}

fn check_head(request: &Request<Incoming>) -> Result<(), Refused> {
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(n, v)| n.as_str().len() + v.len()).sum();
    if bytes > LIMITS.header_bytes || headers.len() > LIMITS.header_fields {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(limit(status, "header", "the request has too many or too long headers"));
    }
    // Authority and query count too: the bound is on what was sent.
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |p| p.as_str().len())
        + uri.authority().map_or(0, |a| a.as_str().len());
    if target > LIMITS.target_bytes {
        return Err(limit(StatusCode::URI_TOO_LONG, "target", "the request target is too long"));
    }
    Ok(())
}

/// T1: the token decides, before anything else of the request is looked at.
fn check_token(headers: &HeaderMap, state: &State) -> Result<(), Refused> {
    let verified = match presented(headers) {
        Ok(token) => state.tokens.verify(token, &state.run),
        Err(error) => Err(error),
    };
    let (subject, cause) = match verified {
        Ok(()) => return Ok(()),
        Err(TokenError::Missing) => ("token missing", "no token was presented"),
        // The guest learns nothing about which of these it was.
        Err(TokenError::Malformed) => ("token malformed", NOT_VALID),
        Err(TokenError::Foreign) => ("token of another run", NOT_VALID),
        Err(TokenError::Unknown) => ("token not valid", NOT_VALID),
    };
    let (status, code) = (StatusCode::UNAUTHORIZED, Code::BrokerBadToken);
    Err(Refused { status, code, subject, cause, close: false })
}

const NOT_VALID: &str = "the token is not valid for this run";

/// The presented token: `Authorization: Bearer`, or the API key header of a model client. When
/// several are there they must be the same; otherwise it would matter which one is read.
fn presented(headers: &HeaderMap) -> Result<&[u8], TokenError> {
    let mut found: Option<&[u8]> = None;
    for name in ["authorization", "x-api-key", "x-goog-api-key"] {
        for value in headers.get_all(name) {
            let value = value.as_bytes();
            let token = if name == "authorization" {
                value
                    .split_at_checked(7)
                    .filter(|(s, _)| s.eq_ignore_ascii_case(b"bearer "))
                    .map(|(_, token)| token)
                    .ok_or(TokenError::Malformed)?
            } else {
                value
            };
            if found.is_some_and(|earlier| earlier != token) {
                return Err(TokenError::Malformed);
            }
            found = Some(token);
        }
    }
    found.ok_or(TokenError::Missing)
}

/// Nothing answered here needs a body; it is read within its bounds and dropped, so that the
/// connection can be used again.
async fn discard_body(body: Incoming) -> Result<(), Refused> {
    let too_large =
        || limit(StatusCode::PAYLOAD_TOO_LARGE, "body", "the request body is too large");
    let bound = u64::try_from(LIMITS.body_bytes).unwrap_or(u64::MAX);
    if body.size_hint().lower() > bound {
        return Err(too_large());
    }
    match timeout(LIMITS.body_time, Limited::new(body, LIMITS.body_bytes).collect()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Refused {
            status: StatusCode::BAD_REQUEST,
            code: Code::BrokerBadRequest,
            subject: "body",
            cause: "the request body cannot be read",
            close: true,
        }),
        Err(_) => {
            let cause = "the request body took too long";
            Err(limit(StatusCode::REQUEST_TIMEOUT, "body time", cause))
        }
    }
}

fn route(method: &Method, path: &str) -> Result<Question, Refused> {
    let reads = [Method::GET, Method::HEAD].contains(method);
    match path {
        "/v1/grants" if reads => Ok(Question::Grants),
        "/v1/budget" if reads => Ok(Question::Budget),
        "/v1/grants" | "/v1/budget" => Err(Refused {
            status: StatusCode::METHOD_NOT_ALLOWED,
            code: Code::BrokerBadRequest,
            subject: "method",
            cause: "this can only be read, with GET",
            close: false,
        }),
        "/v1/usage" => Err(not_granted("/v1/usage")),
        "/v1/progress" => Err(not_granted("/v1/progress")),
        "/v1/runs" => Err(not_granted("/v1/runs")),
        path if below(path, "/mcp") => Err(not_granted("/mcp")),
        path if below(path, "/llm") => Err(not_granted("/llm")),
        _ => Err(Refused {
            status: StatusCode::NOT_FOUND,
            code: Code::BrokerBadRequest,
            subject: "path",
            cause: "the broker has no such path",
            close: false,
        }),
    }
}

fn below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|tail| tail.is_empty() || tail.starts_with('/'))
}

fn not_granted(subject: &'static str) -> Refused {
    let cause = match subject {
        "/mcp" => "no tool is granted to this run",
        "/llm" => "no model is granted to this run",
        _ => "this operation is not granted to this run",
    };
    let (status, code) = (StatusCode::FORBIDDEN, Code::BrokerNotGranted);
    Refused { status, code, subject, cause, close: false }
}

fn limit(status: StatusCode, subject: &'static str, cause: &'static str) -> Refused {
    Refused { status, code: Code::BrokerLimit, subject, cause, close: true }
}

fn refusal(refused: &Refused, run: &RunId) -> Answer {
    let code = refused.code;
    let body = serde_json::json!({
        "code": code, "cause": refused.cause, "help": code.help(), "run": run,
    });
    let mut answer = json(refused.status, &body);
    let headers = answer.headers_mut();
    headers.insert("x-atenea-code", HeaderValue::from_static(code.as_str()));
    if refused.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if refused.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if refused.close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    let mut text = value.to_string();
    text.push('\n');
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
