//! The endpoint of one run: its two listeners from inside the sandbox, and what serves them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use atenea_core::RunId;
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::LIMITS;
use crate::accept::serve;
use crate::denial::{DenialSink, Denials};
use crate::listener::Listener;
use crate::service::{Record, State};
use crate::table::TokenTable;

/// Listeners that the launcher and `atenea-init` made inside the run.
#[derive(Debug)]
pub struct Listeners {
    /// `127.0.0.1:7411`, listening.
    pub tcp: OwnedFd,
    /// `/atenea/run/broker.sock`, listening; made a step later than the other.
    pub unix: Option<OwnedFd>,
}

/// A descriptor is not the socket it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Swapped, not listening, or no socket at all.
    #[error("the {role} descriptor of the broker is no listening {role} socket")]
    WrongKind {
        /// Which listener.
        role: &'static str,
    },
    /// Not a loopback address: it would be reachable from elsewhere.
    #[error("the tcp listener of the broker is not bound to loopback")]
    NotLoopback,
    /// The runtime does not take it.
    #[error("the {role} listener of the broker cannot be served")]
    Io {
        /// Which listener.
        role: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// Entry point of the broker's channel.
#[derive(Debug)]
pub struct Endpoint;

impl Endpoint {
    /// Serves the listeners of `run` until the handle is closed or dropped. Must be called inside a
    /// tokio runtime. `tokens` says which token is the run's, `record` what the run may know.
    ///
    /// # Errors
    /// A descriptor is not what its role needs; nothing is served then, and all are closed.
    pub fn bind(
        run: RunId,
        listeners: Listeners,
        tokens: Arc<TokenTable>,
        record: Record,
        sink: DenialSink,
    ) -> Result<EndpointHandle, BindError> {
        let mut sockets = vec![tcp(listeners.tcp)?];
        if let Some(fd) = listeners.unix {
            sockets.push(unix(fd)?);
        }
        let state = Arc::new(State {
            run,
            tokens,
            record,
            denials: Denials::new(sink),
            connections: Arc::new(Semaphore::new(LIMITS.connections)),
            requests: Semaphore::new(LIMITS.requests),
        });
        let (stop, stopped) = watch::channel(false);
        let loops = sockets
            .into_iter()
            .map(|socket| tokio::spawn(serve(socket, Arc::clone(&state), stopped.clone())))
            .collect();
        let flusher = {
            let state = Arc::clone(&state);
            tokio::spawn(async move { state.denials.flush_at_intervals().await })
        };
        Ok(EndpointHandle { stop, stopped, loops, flusher, state })
    }
}

/// The served endpoint of one run. Dropping it closes everything too, without waiting.
pub struct EndpointHandle {
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    loops: Vec<JoinHandle<()>>,
    flusher: JoinHandle<()>,
    state: Arc<State>,
}

impl EndpointHandle {
    /// Whose endpoint it is.
    pub fn run(&self) -> &RunId {
        &self.state.run
    }

    /// Serves the unix listener as well: `atenea-init` makes it after the other one is served.
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The descriptor is no listening unix socket.
    pub fn add_unix(&mut self, fd: OwnedFd) -> Result<(), BindError> {
        let served = serve(unix(fd)?, Arc::clone(&self.state), self.stopped.clone());
        self.loops.push(tokio::spawn(served));
        Ok(())
    }

    /// Closes listeners and connections, waits until all are closed, then reports what was refused
    /// and not reported yet. The token is revoked before, by its table (C2).
    pub async fn close(mut self) {
        self.stop.send_replace(true);
        for served in std::mem::take(&mut self.loops) {
            // A loop that panicked has closed its sockets while it unwound.
            let _ = served.await;
        }
    }
}

impl std::fmt::Debug for EndpointHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndpointHandle({}, {} listeners)", self.state.run, self.loops.len())
    }
}

impl Drop for EndpointHandle {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.flusher.abort();
        for served in &self.loops {
            served.abort();
        }
        // E6: what was only counted so far is reported once, at the end.
        self.state.denials.flush();
    }
}

fn tcp(fd: OwnedFd) -> Result<Listener, BindError> {
    let role = "tcp";
    if !is_listening(&fd, &[AddressFamily::INET, AddressFamily::INET6]) {
        return Err(BindError::WrongKind { role });
    }
    let io = |source| BindError::Io { role, source };
    let listener = std::net::TcpListener::from(fd);
    if !listener.local_addr().map_err(io)?.ip().is_loopback() {
        return Err(BindError::NotLoopback);
    }
    listener.set_nonblocking(true).map_err(io)?;
    TcpListener::from_std(listener).map(Listener::Tcp).map_err(io)
}

fn unix(fd: OwnedFd) -> Result<Listener, BindError> {
    let role = "unix";
    if !is_listening(&fd, &[AddressFamily::UNIX]) {
        return Err(BindError::WrongKind { role });
    }
    let io = |source| BindError::Io { role, source };
    let listener = std::os::unix::net::UnixListener::from(fd);
    listener.set_nonblocking(true).map_err(io)?;
    UnixListener::from_std(listener).map(Listener::Unix).map_err(io)
}

fn is_listening(fd: &OwnedFd, families: &[AddressFamily]) -> bool {
    sockopt::socket_acceptconn(fd).unwrap_or(false)
        && sockopt::socket_type(fd).ok() == Some(SocketType::STREAM)
        && sockopt::socket_domain(fd).is_ok_and(|family| families.contains(&family))
}
