//! What is known of a run only while this supervisor lives: descriptors, tasks, the token. All of it
//! is void after a restart, and nothing here is needed to clean up.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use atenea_broker::{EndpointHandle, Token};
use atenea_core::RunId;
use atenea_core::manifest::Sealed;
use atenea_egress::BoundaryHandle;
use atenea_launcher::protocol::{Created, Rusage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::streams::Hub;
use crate::api::types::{Progress, TtySize};

/// One run of this generation.
pub struct Live {
    /// Its sealed manifest.
    pub sealed: Sealed,
    /// Terminal to make.
    pub tty: Option<TtySize>,
    /// `TERM` of the client.
    pub term: Option<String>,
    /// Whether a client attaches.
    pub foreground: bool,
    /// Output.
    pub hub: Arc<Hub>,
    /// Progress of the workspace.
    pub progress: watch::Sender<Option<Progress>>,
    /// Set to stop what prepares the run.
    pub abort: watch::Sender<bool>,
    /// Everything that changes hands.
    pub parts: Mutex<Parts>,
    /// Standard input of the agent, or its terminal.
    pub stdin: tokio::sync::Mutex<Option<OwnedFd>>,
    /// Set when `stdin` is what it will be: what a client sends before waits.
    pub stdin_ready: watch::Sender<bool>,
}

/// What a run holds between its steps.
#[derive(Default)]
pub struct Parts {
    /// A client attached once.
    pub attached: bool,
    /// The token, until it is in the plan.
    pub token: Option<Token>,
    /// Listeners, until egress and broker serve them.
    pub fds: Option<(Created, Vec<OwnedFd>)>,
    /// Egress.
    pub boundary: Option<BoundaryHandle>,
    /// Broker.
    pub endpoint: Option<EndpointHandle>,
    /// The accountant of the workspace.
    pub accountant: Option<JoinHandle<()>>,
    /// The workspace on disk before the agent was started.
    pub(super) disk_start: Option<super::disk::Start>,
    /// Tasks that capture output.
    pub captures: Vec<JoinHandle<()>>,
    /// When the helper had started the agent, milliseconds on the boot clock.
    pub started_ms: Option<u64>,
    /// What the agent's own end was, once reported.
    pub exited: Option<(i32, Rusage)>,
    /// Whether the end was given to the state machine.
    pub end_told: bool,
}

impl Live {
    /// A run that was just requested.
    pub fn new(sealed: Sealed, output_bytes: u64, foreground: bool) -> Self {
        Live {
            sealed,
            tty: None,
            term: None,
            foreground,
            hub: Hub::new(output_bytes),
            progress: watch::Sender::new(None),
            abort: watch::Sender::new(false),
            parts: Mutex::default(),
            stdin: tokio::sync::Mutex::new(None),
            stdin_ready: watch::Sender::new(false),
        }
    }

    /// Changes the parts.
    pub fn with<R>(&self, change: impl FnOnce(&mut Parts) -> R) -> R {
        change(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the run's preparation is to be stopped.
    pub async fn aborted(&self) {
        let mut abort = self.abort.subscribe();
        if abort.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// All runs of this generation that are not over.
#[derive(Default)]
pub struct Registry {
    runs: Mutex<HashMap<RunId, Arc<Live>>>,
}

impl Registry {
    /// Adds one.
    pub fn insert(&self, run: RunId, live: Arc<Live>) {
        self.lock().insert(run, live);
    }

    /// Finds one.
    pub fn get(&self, run: &RunId) -> Option<Arc<Live>> {
        self.lock().get(run).cloned()
    }

    /// Forgets one and with it what it still holds.
    pub fn remove(&self, run: &RunId) {
        self.lock().remove(run);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, Arc<Live>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
