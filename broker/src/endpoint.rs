//! The endpoint of one run: its listener from inside the sandbox, and what serves it.
//!
//! The listener is TCP on the run's own loopback and nothing else. Over a unix socket a guest could
//! send descriptors, and the kernel drops what nobody takes in the thread that reads: the last close
//! of a lingering TCP socket would hold that thread for as long as the guest likes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use atenea_core::RunId;
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::LIMITS;
use crate::accept::serve;
use crate::denial::{DenialSink, Denials};
use crate::service::{Record, State};
use crate::table::TokenTable;

/// What the launcher made inside the run.
#[derive(Debug)]
pub struct Listeners {
    /// `127.0.0.1:7411`, listening.
    pub tcp: OwnedFd,
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
        let socket = tcp(listeners.tcp)?;
        let state = Arc::new(State {
            run,
            tokens,
            record,
            denials: Denials::new(sink),
            connections: Arc::new(Semaphore::new(LIMITS.connections)),
            requests: Semaphore::new(LIMITS.requests),
        });
        let (stop, stopped) = watch::channel(false);
        let served = Some(tokio::spawn(serve(socket, Arc::clone(&state), stopped)));
        let flusher = {
            let state = Arc::clone(&state);
            tokio::spawn(async move { state.denials.flush_at_intervals().await })
        };
        Ok(EndpointHandle { stop, served, flusher, state })
    }
}

/// The served endpoint of one run. Dropping it closes everything too, without waiting.
pub struct EndpointHandle {
    stop: watch::Sender<bool>,
    served: Option<JoinHandle<()>>,
    flusher: JoinHandle<()>,
    state: Arc<State>,
}

impl EndpointHandle {
    /// Whose endpoint it is.
    pub fn run(&self) -> &RunId {
        &self.state.run
    }

    /// Closes listeners and connections, waits until all are closed, then reports what was refused
    /// and not reported yet. The token is revoked before, by its table (C2).
    pub async fn close(mut self) {
        self.stop.send_replace(true);
        if let Some(served) = self.served.take() {
            // A loop that panicked has closed its sockets while it unwound.
            let _ = served.await;
        }
    }
}

impl std::fmt::Debug for EndpointHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndpointHandle({})", self.state.run)
    }
}

impl Drop for EndpointHandle {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.flusher.abort();
        if let Some(served) = &self.served {
            served.abort();
        }
        // E6: what was only counted so far is reported once, at the end.
        self.state.denials.flush();
    }
}

fn tcp(fd: OwnedFd) -> Result<TcpListener, BindError> {
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
    TcpListener::from_std(listener).map_err(io)
}

fn is_listening(fd: &OwnedFd, families: &[AddressFamily]) -> bool {
    sockopt::socket_acceptconn(fd).unwrap_or(false)
        && sockopt::socket_type(fd).ok() == Some(SocketType::STREAM)
        && sockopt::socket_domain(fd).is_ok_and(|family| families.contains(&family))
}
