//! The accept loop: nothing a connection does can end it, and nothing the machine runs out of
//! either. Each connection is a task of its own.

use std::io;
use std::sync::Arc;

use atenea_core::Code;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::LIMITS;
use crate::service::{State, serve_connection};

/// Accepts until `stop` changes or its sender is gone; then ends every connection and returns.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut pause = LIMITS.accept_pause;
    loop {
        let accepted = tokio::select! {
            _ = stop.changed() => break,
            // Takes ended tasks out; how one ended does not matter to the others.
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                pause = LIMITS.accept_pause;
                let Ok(permit) = Arc::clone(&state.connections).try_acquire_owned() else {
                    // Without the option the close is an ordinary one: still a close.
                    let _ = stream.set_zero_linger();
                    state.denials.record(Code::BrokerLimit, "connections");
                    continue;
                };
                let state = Arc::clone(&state);
                connections.spawn(async move {
                    serve_connection(stream, state).await;
                    drop(permit);
                });
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(_) => {
                tokio::select! {
                    _ = stop.changed() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = pause.saturating_mul(2).min(LIMITS.accept_pause_max);
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// The peer went away before it was accepted: the next accept can succeed at once.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
