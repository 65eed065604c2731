//! The boundary of one run: four listeners from inside its network namespace, and what serves them.

use std::net::{SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use atenea_core::RunId;
use rustix::net::SocketType;
use rustix::net::sockopt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::accept::{Shared, serve};
use crate::denial::{DenialSink, Denials};
use crate::policy::Policy;
use crate::{LIMITS, dns_server, proxy, socks};

/// Listeners that the launcher made inside the run's network namespace.
#[derive(Debug)]
pub struct Listeners {
    /// Explicit HTTP proxy, `127.0.0.1:3128`, listening.
    pub proxy: OwnedFd,
    /// SOCKS5, `127.0.0.1:1080`, listening.
    pub socks: OwnedFd,
    /// DNS, UDP `127.0.0.1:53`, bound.
    pub dns_udp: OwnedFd,
    /// DNS, TCP `127.0.0.1:53`, listening.
    pub dns_tcp: OwnedFd,
}

/// A descriptor is not the socket it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Swapped, not listening, or no socket at all.
    #[error("the {role} descriptor is no {wanted} socket")]
    WrongKind {
        /// Which listener.
        role: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// Not a loopback address: it would be reachable from elsewhere.
    #[error("the {role} listener is bound to {address}, not to loopback")]
    NotLoopback {
        /// Which listener.
        role: &'static str,
        /// Where it is.
        address: SocketAddr,
    },
    /// The runtime does not take it.
    #[error("the {role} listener cannot be served")]
    Io {
        /// Which listener.
        role: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// Entry point of this crate.
#[derive(Debug)]
pub struct Boundary;

impl Boundary {
    /// Serves the listeners of `run` until the handle is closed or dropped. Must be called inside a
    /// tokio runtime.
    ///
    /// # Errors
    /// A descriptor is not what its role needs; nothing is served then, and all are closed.
    pub fn bind(
        run: RunId,
        listeners: Listeners,
        policy: Policy,
        sink: DenialSink,
    ) -> Result<BoundaryHandle, BindError> {
        let proxy = tcp("proxy", listeners.proxy)?;
        let socks = tcp("socks", listeners.socks)?;
        let dns_udp = udp("dns udp", listeners.dns_udp)?;
        let dns_tcp = tcp("dns tcp", listeners.dns_tcp)?;
        let generation = policy.generation();
        let shared = Arc::new(Shared {
            policy,
            denials: Denials::new(sink),
            permits: Arc::new(Semaphore::new(LIMITS.connections)),
        });
        let (stop, stopped) = watch::channel(false);
        let to = || (Arc::clone(&shared), stopped.clone());
        let (a, b, c, d) = (to(), to(), to(), to());
        let loops = vec![
            tokio::spawn(serve(proxy, a.0, a.1, proxy::converse)),
            tokio::spawn(serve(socks, b.0, b.1, socks::converse)),
            tokio::spawn(serve(dns_tcp, c.0, c.1, dns_server::converse)),
            tokio::spawn(dns_server::serve_udp(dns_udp, d.0, d.1)),
        ];
        let flusher = {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move { shared.denials.flush_at_intervals().await })
        };
        Ok(BoundaryHandle { run, generation, stop, loops, flusher, shared })
    }
}

/// The served boundary of one run. Dropping it closes everything too, without waiting.
pub struct BoundaryHandle {
    run: RunId,
    generation: u64,
    stop: watch::Sender<bool>,
    loops: Vec<JoinHandle<()>>,
    flusher: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl BoundaryHandle {
    /// Whose boundary it is.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The generation of the policy in force.
    pub fn policy_generation(&self) -> u64 {
        self.generation
    }

    /// Closes listeners and connections, waits until all are closed, then reports what was refused
    /// and not reported yet. After it no descriptor of the run's namespace is held here.
    pub async fn close(mut self) {
        self.stop.send_replace(true);
        for served in std::mem::take(&mut self.loops) {
            // A loop that panicked has closed its sockets while it unwound.
            let _ = served.await;
        }
    }
}

impl std::fmt::Debug for BoundaryHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (run, generation) = (&self.run, self.generation);
        write!(f, "BoundaryHandle({run}, policy generation {generation})")
    }
}

impl Drop for BoundaryHandle {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.flusher.abort();
        for served in &self.loops {
            served.abort();
        }
        // E6: what was only counted so far is reported once, at the end.
        self.shared.denials.flush();
    }
}

fn tcp(role: &'static str, fd: OwnedFd) -> Result<TcpListener, BindError> {
    let wrong = || BindError::WrongKind { role, wanted: "listening TCP" };
    let listening = sockopt::socket_acceptconn(&fd).unwrap_or(false);
    if !listening || sockopt::socket_type(&fd).ok() != Some(SocketType::STREAM) {
        return Err(wrong());
    }
    let listener = StdTcpListener::from(fd);
    check_loopback(role, listener.local_addr().map_err(|_| wrong())?)?;
    let io = |source| BindError::Io { role, source };
    listener.set_nonblocking(true).map_err(io)?;
    TcpListener::from_std(listener).map_err(io)
}

fn udp(role: &'static str, fd: OwnedFd) -> Result<UdpSocket, BindError> {
    let wrong = || BindError::WrongKind { role, wanted: "UDP" };
    if sockopt::socket_type(&fd).ok() != Some(SocketType::DGRAM) {
        return Err(wrong());
    }
    let socket = StdUdpSocket::from(fd);
    check_loopback(role, socket.local_addr().map_err(|_| wrong())?)?;
    let io = |source| BindError::Io { role, source };
    socket.set_nonblocking(true).map_err(io)?;
    UdpSocket::from_std(socket).map_err(io)
}

fn check_loopback(role: &'static str, address: SocketAddr) -> Result<(), BindError> {
    if address.ip().is_loopback() { Ok(()) } else { Err(BindError::NotLoopback { role, address }) }
}
