//! The explicit HTTP proxy: one request per connection, judged, refused with a body that an agent
//! can read, closed. Bytes after the head are never parsed as another request.

use std::sync::Arc;

use atenea_core::Code;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::LIMITS;
use crate::accept::Shared;
use crate::head::{self, HeadError, ProxyRequest};
use crate::policy::Verdict;

/// The body of a refusal.
#[derive(Serialize)]
struct Body<'a> {
    code: Code,
    cause: &'a str,
    help: &'a str,
    host: Option<String>,
    port: Option<u16>,
}

struct Refusal {
    status: &'static str,
    code: Code,
    cause: String,
    request: Option<ProxyRequest>,
}

/// Why there is no whole head.
#[derive(Debug, PartialEq, Eq)]
enum NoHead {
    /// The client went away.
    Gone,
    TooLong,
    TooSlow,
}

/// Answers one connection.
pub(crate) async fn converse<S>(mut stream: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let refusal = match read_head(&mut stream).await {
        Ok(bytes) => judge(&bytes, &shared),
        Err(NoHead::Gone) => return,
        Err(NoHead::TooLong) => limit("431 Request Header Fields Too Large", "head bytes"),
        Err(NoHead::TooSlow) => limit("408 Request Timeout", "head time"),
    };
    record(&shared, &refusal);
    let answer = render(&refusal);
    if let Ok(Ok(())) = timeout(LIMITS.write_time, stream.write_all(&answer)).await {
        linger(&mut stream).await;
    }
}

fn judge(bytes: &[u8], shared: &Shared) -> Refusal {
    let request = match head::parse(bytes) {
        Ok(request) => request,
        Err(error @ HeadError::TooManyFields) => {
            let status = "431 Request Header Fields Too Large";
            return Refusal { cause: error.to_string(), ..limit(status, "head fields") };
        }
        Err(error) => {
            let (status, code) = ("400 Bad Request", Code::EgressBadRequest);
            return Refusal { status, code, cause: error.to_string(), request: None };
        }
    };
    match shared.policy.judge(&request.authority) {
        Verdict::NotGranted => Refusal {
            status: "403 Forbidden",
            code: Code::EgressNotGranted,
            cause: format!("{} is not granted to this run", request.authority),
            request: Some(request),
        },
    }
}

fn limit(status: &'static str, what: &str) -> Refusal {
    let cause = format!("the bound on {what} of a proxy request was reached");
    Refusal { status, code: Code::EgressLimit, cause, request: None }
}

/// A malformed request is counted under one fixed word: what it says is not to be believed, and is
/// not worth an entry of the table.
fn record(shared: &Shared, refusal: &Refusal) {
    let subject = match &refusal.request {
        Some(request) => request.authority.to_string(),
        None => "proxy".to_owned(),
    };
    shared.denials.record(refusal.code, subject.as_bytes());
}

/// Reads up to the end of the head; what follows it stays unread or is dropped here.
async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, NoHead> {
    let read = async {
        let mut bytes = Vec::with_capacity(1024);
        loop {
            if let Some(end) = head::end_of(&bytes) {
                bytes.truncate(end);
                return Ok(bytes);
            }
            let room = LIMITS.head_bytes - bytes.len();
            if room == 0 {
                return Err(NoHead::TooLong);
            }
            let limit = u64::try_from(room).unwrap_or(0);
            match (&mut *stream).take(limit).read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return Err(NoHead::Gone),
                Ok(_) => {}
            }
        }
    };
    timeout(LIMITS.head_time, read).await.unwrap_or(Err(NoHead::TooSlow))
}

fn render(refusal: &Refusal) -> Vec<u8> {
    let authority = refusal.request.as_ref().map(|request| &request.authority);
    let body = Body {
        code: refusal.code,
        cause: &refusal.cause,
        help: refusal.code.help(),
        host: authority.map(|a| a.host.to_string()),
        port: authority.map(|a| a.port),
    };
    // Serialising strings and numbers into memory cannot fail; an empty body would still be a 4xx.
    let mut body = serde_json::to_vec(&body).unwrap_or_default();
    body.push(b'\n');
    let head = format!(
        "HTTP/1.1 {}\r\nX-Atenea-Code: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        refusal.status,
        refusal.code,
        body.len()
    );
    let mut answer = head.into_bytes();
    if !refusal.request.as_ref().is_some_and(|request| request.is_head) {
        answer.append(&mut body);
    }
    answer
}

/// Ends the sending side, then throws away a bounded amount of what still comes: closing with
/// unread bytes would reset the connection and could take the answer away from the client.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
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

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
