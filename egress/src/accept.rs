//! The accept loop: nothing a connection does can end it, and nothing the machine runs out of
//! either. Each connection is a task of its own; one bound holds for all listeners of a run.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use atenea_core::Code;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::LIMITS;
use crate::denial::Denials;
use crate::policy::Policy;

/// What all tasks of one run's boundary share.
pub(crate) struct Shared {
    pub(crate) policy: Policy,
    pub(crate) denials: Denials,
    pub(crate) permits: Arc<Semaphore>,
}

/// Where connections come from; a trait so that a test can run out of descriptors.
pub(crate) trait Accept: Send + 'static {
    /// One connection.
    type Stream: Reset + Send + 'static;
    /// Waits for the next connection.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A connection that can be refused without a conversation.
pub(crate) trait Reset {
    /// Closes with a reset, so that the client fails at once instead of waiting.
    fn reset(self);
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    async fn accept(&mut self) -> io::Result<TcpStream> {
        TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Reset for TcpStream {
    fn reset(self) {
        // Without the option the close is an ordinary one: still a close.
        let _ = self.set_zero_linger();
    }
}

/// Accepts until `stop` changes or its sender is gone; then ends every connection and returns.
pub(crate) async fn serve<A, H, F>(
    mut listener: A,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
    handler: H,
) where
    A: Accept,
    H: Fn(A::Stream, Arc<Shared>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
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
            Ok(stream) => {
                pause = LIMITS.accept_pause;
                let Ok(permit) = Arc::clone(&shared.permits).try_acquire_owned() else {
                    stream.reset();
                    shared.denials.record(Code::EgressLimit, b"connections");
                    continue;
                };
                let task = handler(stream, Arc::clone(&shared));
                connections.spawn(async move {
                    task.await;
                    drop(permit);
                });
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(_) => {
                if wait_or_stop(pause, &mut stop).await {
                    break;
                }
                pause = pause.saturating_mul(2).min(LIMITS.accept_pause_max);
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// True when told to stop meanwhile.
async fn wait_or_stop(pause: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        _ = stop.changed() => true,
        () = tokio::time::sleep(pause) => false,
    }
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Script(VecDeque<io::Result<Fake>>);
    struct Fake;

    impl Reset for Fake {
        fn reset(self) {}
    }

    impl Accept for Script {
        type Stream = Fake;
        async fn accept(&mut self) -> io::Result<Fake> {
            match self.0.pop_front() {
                Some(next) => next,
                None => std::future::pending().await,
            }
        }
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            policy: Policy::nothing(1),
            denials: Denials::new(Arc::new(|_| {})),
            permits: Arc::new(Semaphore::new(LIMITS.connections)),
        })
    }

    fn errno(raw: i32) -> io::Result<Fake> {
        Err(io::Error::from_raw_os_error(raw))
    }

    #[tokio::test(start_paused = true)]
    async fn running_out_of_descriptors_and_aborted_connections_do_not_end_the_loop() {
        // EMFILE, ENFILE, ENOBUFS, ENOMEM, ECONNABORTED, EINTR, EPROTO, EBADF
        let mut script: VecDeque<_> =
            [24, 23, 105, 12, 103, 4, 71, 9].into_iter().map(errno).collect();
        script.extend((0..1000).map(|_| errno(24)));
        script.push_back(Ok(Fake));
        let (stop, stopped) = watch::channel(false);
        let (seen, mut served) = tokio::sync::mpsc::channel(1);
        let loop_ = tokio::spawn(serve(Script(script), shared(), stopped, move |_, _| {
            let seen = seen.clone();
            async move { seen.send(()).await.unwrap() }
        }));
        assert_eq!(served.recv().await, Some(()));
        assert!(!loop_.is_finished());
        stop.send(true).unwrap();
        loop_.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_panics_ends_alone_and_gives_its_place_back() {
        let script = (0..3 * LIMITS.connections).map(|_| Ok(Fake)).collect();
        let shared = shared();
        let count = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = watch::channel(false);
        let seen = Arc::clone(&count);
        let loop_ =
            tokio::spawn(serve(Script(script), Arc::clone(&shared), stopped, move |_, _| {
                seen.fetch_add(1, Ordering::SeqCst);
                async { panic!("a broken handler") }
            }));
        while shared.permits.available_permits() < LIMITS.connections
            || count.load(Ordering::SeqCst) == 0
        {
            tokio::task::yield_now().await;
        }
        assert!(!loop_.is_finished());
        drop(stop);
        loop_.await.unwrap();
    }
}
