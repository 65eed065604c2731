//! The control API: HTTP/1.1 and JSON on a unix socket. Peer credentials are checked when a
//! connection is accepted; handlers translate, the state machine decides.

mod admin;
mod approvals;
mod attach;
mod events;
mod logs;
mod metrics;
pub mod openapi;
mod problem;
mod route;
mod routes;
mod runs;
pub mod types;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atenea_journal::Journal;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::config::{Config, InForce};
use crate::driver::Handle;
use crate::driver::host::Host;
use crate::layout::StateDir;

use route::Route;

pub use problem::{ApiError, status};

/// Largest request body, bytes: a manifest and its envelope.
const BODY_BYTES_MAX: usize = 2 << 20;
/// Connections served at once; more wait in the listen queue.
const CONNECTIONS_MAX: usize = 1_024;
/// Time for a request head, seconds. Clients are local; a slow one is a broken one.
const HEAD_SECONDS_MAX: u64 = 30;

/// What every handler can use.
#[derive(Clone)]
pub struct App {
    /// The driver.
    pub handle: Handle,
    /// Executes effects and keeps what is live.
    pub host: Arc<Host>,
    /// The state directory.
    pub dirs: StateDir,
    /// The configuration.
    pub config: InForce,
    /// The journal, for verification and statistics.
    pub journal: Journal,
    /// Process id of the launcher helper.
    pub helper: i32,
    /// Path of the socket.
    pub socket: String,
    /// `on-demand` or `daemon`.
    pub mode: &'static str,
    /// Told when a client asks to stop.
    pub stop: watch::Sender<bool>,
    /// Connections that are open.
    pub connections: Arc<AtomicUsize>,
}

impl App {
    /// What a supervisor that starts now would read; none when that is not good.
    pub fn config_now(&self) -> Option<Config> {
        crate::config::load(self.config.now().file.as_deref()).ok()
    }
}

/// Who is at the other end of a connection, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

fn router(app: App) -> Router {
    let serve = |router: Router<App>, route: Route| router.route(route.path, route.serve);
    routes::all()
        .into_iter()
        .fold(Router::new(), serve)
        .fallback(admin::unknown)
        .method_not_allowed_fallback(admin::unknown)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// Serves until `stop` says so; connections that are open may finish.
pub async fn serve(listener: UnixListener, app: App) {
    let router = router(app.clone());
    let own_uid = rustix::process::geteuid().as_raw();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No connection can end the loop; running out of descriptors passes.
                tracing::warn!("accept: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(peer) = checked_peer(&stream, own_uid) else { continue };
        if app.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            app.connections.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let guard = Connection(Arc::clone(&app.connections));
        let service = TowerToHyperService::new(router.clone().layer(axum::Extension(peer)));
        tokio::spawn(async move {
            let _guard = guard;
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(std::time::Duration::from_secs(HEAD_SECONDS_MAX))
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
            if let Err(error) = served {
                tracing::debug!("connection: {error}");
            }
        });
    }
}

/// S6: a supervisor serves its own user, and root.
fn checked_peer(stream: &UnixStream, own_uid: u32) -> Option<Peer> {
    let credentials = stream.peer_cred().ok()?;
    let peer = Peer { uid: credentials.uid(), gid: credentials.gid() };
    if peer.uid == own_uid || peer.uid == 0 {
        return Some(peer);
    }
    tracing::warn!("refused a connection of uid {}", peer.uid);
    None
}

/// Counts a connection for as long as it is open, attached ones included.
struct Connection(Arc<AtomicUsize>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
