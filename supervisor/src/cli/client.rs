//! The client of the control API: one connection a request on a unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use atenea_core::{Code, Refusal};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::api::types::Problem;

/// How long a supervisor may take to say that it is there. The kernel accepts connections also for
/// one that is stopped.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// A supervisor that answered.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// Header and value of an idempotency key.
pub type Key<'a> = Option<&'a str>;

impl Client {
    /// A client of the socket; does not connect.
    pub fn new(socket: PathBuf) -> Self {
        Client { socket }
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether somebody answers. A supervisor that was just killed may still accept for a moment.
    ///
    /// # Errors
    /// `journal.locked` when somebody listens and says nothing: it is stopped, or hangs.
    /// `host.state_dir`, `fs.not_yours` when this user may not go there.
    pub async fn answers(&self) -> Result<bool, Refusal> {
        let ask = self.send(Method::GET, "/v1/health", None, None, false);
        match tokio::time::timeout(ANSWER_WAIT, ask).await {
            Ok(Ok(response)) => Ok(response.status().is_success()),
            Ok(Err(refusal)) if refusal.code == Code::HostNoSupervisor => Ok(false),
            // Somebody may be there, and this user does not get to them.
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => {
                let cause = format!("who listens on {} does not answer", self.socket.display());
                Err(Refusal::new(Code::JournalLocked, cause)
                    .with_help("see whether its process is stopped; when it is killed, the next command recovers"))
            }
        }
    }

    /// Sends one request and gives the response, whatever it is.
    ///
    /// # Errors
    /// `host.no_supervisor` when nobody answers.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        key: Key<'_>,
        upgrade: bool,
    ) -> Result<Response<Incoming>, Refusal> {
        let stream = self.connect().await?;
        let shown = format!("{method} {path}");
        tracing::trace!(
            "{shown}: {} bytes to {}",
            body.as_ref().map_or(0, Vec::len),
            self.socket.display()
        );
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
                .await
                .map_err(|e| self.gone(&e))?;
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        let mut request = Request::builder().method(method).uri(path).header("host", "atenea");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if upgrade {
            request = request.header("connection", "upgrade").header("upgrade", "atenea-stdio");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|e| Refusal::new(Code::ApiBadRequest, e.to_string()))?;
        let response = sender.send_request(request).await.map_err(|e| self.gone(&e))?;
        tracing::debug!("{shown}: {}", response.status());
        Ok(response)
    }

    /// Connects to a supervisor of this user or of root, and to nobody else: a manifest holds
    /// arguments and variables.
    async fn connect(&self) -> Result<UnixStream, Refusal> {
        crate::config::check_socket_dir(&self.socket)?;
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => self.not_yours(&e.to_string()),
            _ => self.gone(&e),
        })?;
        let peer = stream.peer_cred().map_err(|e| self.gone(&e))?.uid();
        if peer == 0 || peer == rustix::process::geteuid().as_raw() {
            return Ok(stream);
        }
        Err(self.not_yours(&format!("uid {peer} listens there")))
    }

    fn not_yours(&self, why: &str) -> Refusal {
        Refusal::new(Code::FsNotYours, format!("{}: {why}", self.socket.display()))
            .with_help("that is not your supervisor; choose another --socket or --state-dir")
    }

    fn gone(&self, error: &dyn std::error::Error) -> Refusal {
        let cause = format!("nobody answers on {}: {error}", self.socket.display());
        Refusal::new(Code::HostNoSupervisor, cause)
    }

    /// `GET` of JSON.
    ///
    /// # Errors
    /// The supervisor's refusal.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refusal> {
        let response = self.send(Method::GET, path, None, None, false).await?;
        parse(whole(response).await?)
    }

    /// `GET` of a whole body.
    ///
    /// # Errors
    /// The supervisor's refusal.
    pub async fn get_bytes(&self, path: &str) -> Result<Vec<u8>, Refusal> {
        whole(self.send(Method::GET, path, None, None, false).await?).await
    }

    /// `POST` or `PUT` of JSON with a JSON answer.
    ///
    /// # Errors
    /// The supervisor's refusal.
    pub async fn give<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
        key: Key<'_>,
    ) -> Result<T, Refusal> {
        let body = serde_json::to_vec(body)
            .map_err(|e| Refusal::new(Code::ApiBadRequest, e.to_string()))?;
        let response = self.send(method, path, Some(body), key, false).await?;
        parse(whole(response).await?)
    }
}

/// The body of a success, or the refusal that came instead.
///
/// # Errors
/// The supervisor's refusal.
pub async fn whole(response: Response<Incoming>) -> Result<Vec<u8>, Refusal> {
    let status = response.status();
    let body =
        response.into_body().collect().await.map_err(|e| {
            Refusal::new(Code::HostNoSupervisor, format!("the answer broke off: {e}"))
        })?;
    let bytes = body.to_bytes().to_vec();
    if status.is_success() {
        return Ok(bytes);
    }
    Err(problem(status, &bytes))
}

fn problem(status: StatusCode, bytes: &[u8]) -> Refusal {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => Refusal {
            code: Code::parse(&problem.code).unwrap_or(Code::ApiBadRequest),
            cause: problem.cause,
            help: problem.help,
        },
        Err(_) => Refusal::new(Code::ApiBadRequest, format!("the supervisor answered {status}")),
    }
}

fn parse<T: DeserializeOwned>(bytes: Vec<u8>) -> Result<T, Refusal> {
    // 202 and 204 have no body; `()` reads from null.
    let bytes = if bytes.is_empty() { b"null".to_vec() } else { bytes };
    tracing::trace!("{} bytes came", bytes.len());
    serde_json::from_slice(&bytes).map_err(|e| {
        let cause = format!("the supervisor's answer cannot be read: {e}");
        Refusal::new(Code::ApiBadRequest, cause)
            .with_help("client and supervisor may be of different versions; see atenea-sup info")
    })
}

/// The path of a run and what is behind it.
///
/// # Errors
/// `process.no_such_run` for no name at all.
pub fn run_path(run: &str, rest: &str) -> Result<String, Refusal> {
    if run.is_empty() {
        return Err(Refusal::new(Code::ProcessNoSuchRun, "the name of the run is empty"));
    }
    Ok(format!("/v1/runs/{}{rest}", encode(run)))
}

/// Encodes one path segment or query value.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
