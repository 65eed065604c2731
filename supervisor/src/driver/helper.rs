//! The supervisor's end of the launcher helper: requests with numbers, replies, events.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use atenea_core::{Code, Refusal};
use atenea_launcher::client::{Received, Receiver, Sender};
use atenea_launcher::packet::Outgoing;
use atenea_launcher::protocol::{Event, FromHelper, Reply, Request};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::watched::{Holder, watch};

/// A reply and the descriptors that came with it.
pub type Answer = (Result<Reply, Refusal>, Vec<OwnedFd>);

/// Every effect is answered in bounded time; the helper's own bounds are below this.
const REPLY_SECONDS_MAX: std::time::Duration = std::time::Duration::from_secs(90);

type Waiting = oneshot::Sender<Answer>;

/// Sends requests; clones share one socket.
#[derive(Clone)]
pub struct HelperClient {
    requests: mpsc::UnboundedSender<(Request, Waiting)>,
}

/// What the helper says without being asked.
#[derive(Debug)]
pub enum Told {
    /// Something happened to a run.
    Event(Event),
    /// The helper is gone. Nothing can be launched or killed through it any more.
    Dead(String),
}

impl HelperClient {
    /// Takes over the socket. Must be called inside the runtime.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn start(
        sender: Sender,
        receiver: Receiver,
    ) -> std::io::Result<(Self, mpsc::UnboundedReceiver<Told>)> {
        // A copy for the runtime to watch: sender and receiver keep their own.
        let socket = receiver.as_fd().try_clone_to_owned()?;
        let socket = watch(socket, Interest::READABLE | Interest::WRITABLE)?;
        // Unbounded on purpose: requests are bounded by effects that are out, events by live runs,
        // and waiting here would stop the only task that can make room.
        let (requests, to_send) = mpsc::unbounded_channel();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut exchange = Exchange { sender, receiver, pending: HashMap::new(), tell };
            let cause = exchange.run(&socket, to_send).await;
            exchange.pending.clear();
            let _ = exchange.tell.send(Told::Dead(cause));
        });
        Ok((HelperClient { requests }, told))
    }

    /// Asks and waits for the reply.
    pub async fn ask(&self, request: Request) -> Answer {
        let dead = || (Err(Refusal::new(Code::ProcessHelperDied, "no reply came")), Vec::new());
        let (reply, answer) = oneshot::channel();
        if self.requests.send((request, reply)).is_err() {
            return dead();
        }
        match tokio::time::timeout(REPLY_SECONDS_MAX, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| dead()),
            Err(_) => {
                let cause = format!("no reply came in {} s", REPLY_SECONDS_MAX.as_secs());
                (Err(Refusal::new(Code::ProcessHelperDied, cause)), Vec::new())
            }
        }
    }

    /// As [`HelperClient::ask`] for requests whose reply carries no descriptors.
    ///
    /// # Errors
    /// The helper's refusal.
    pub async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        self.ask(request).await.0
    }
}

struct Exchange {
    sender: Sender,
    receiver: Receiver,
    pending: HashMap<u64, Waiting>,
    tell: mpsc::UnboundedSender<Told>,
}

impl Exchange {
    /// Sends and receives until the socket ends; returns why it did.
    async fn run(
        &mut self,
        socket: &AsyncFd<Holder<OwnedFd>>,
        mut requests: mpsc::UnboundedReceiver<(Request, Waiting)>,
    ) -> String {
        let mut sending: Option<Outgoing> = None;
        loop {
            tokio::select! {
                ready = socket.readable() => {
                    let Ok(mut guard) = ready else { return "its socket cannot be read".into() };
                    match self.receiver.receive() {
                        Ok(Received::Message(message, fds)) => self.deliver(*message, fds),
                        Ok(Received::WouldBlock) => guard.clear_ready(),
                        Ok(Received::Closed) => return "it closed its socket".into(),
                        Err(error) => return error.to_string(),
                    }
                }
                request = requests.recv(), if sending.is_none() => match request {
                    Some((request, waiting)) => sending = self.encode(request, waiting),
                    None => return "nobody asks any more".into(),
                },
                ready = socket.writable(), if sending.is_some() => {
                    let Ok(mut guard) = ready else { return "its socket cannot be written".into() };
                    match sending.as_mut().map(|message| self.sender.send_some(message)) {
                        Some(Ok(false)) => guard.clear_ready(),
                        Some(Err(error)) => return error.to_string(),
                        Some(Ok(true)) | None => sending = None,
                    }
                }
            }
        }
    }

    fn encode(&mut self, request: Request, waiting: Waiting) -> Option<Outgoing> {
        match self.sender.encode(request, Vec::new()) {
            Ok((id, outgoing)) => {
                self.pending.insert(id, waiting);
                Some(outgoing)
            }
            Err(error) => {
                let cause = format!("a request cannot be sent: {error}");
                let refusal = Refusal::new(Code::ProcessLaunchFailed, cause);
                let _ = waiting.send((Err(refusal), Vec::new()));
                None
            }
        }
    }

    fn deliver(&mut self, message: FromHelper, fds: Vec<OwnedFd>) {
        match message {
            FromHelper::Reply { id, result } => {
                if let Some(waiting) = self.pending.remove(&id) {
                    let _ = waiting.send((result, fds));
                }
            }
            FromHelper::Event(event) => drop(self.tell.send(Told::Event(event))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client, and what a helper would be asked.
    fn client() -> (HelperClient, mpsc::UnboundedReceiver<(Request, Waiting)>) {
        let (requests, asked) = mpsc::unbounded_channel();
        (HelperClient { requests }, asked)
    }

    // The clock is the runtime's own and stands still while there is something to do.
    #[tokio::test(start_paused = true)]
    async fn a_helper_that_does_not_answer_is_an_error_after_a_bounded_time_and_no_hang() {
        let (client, mut asked) = client();
        let refusal = client.call(Request::Probe).await.unwrap_err();
        assert_eq!(refusal.code, Code::ProcessHelperDied);
        assert_eq!(refusal.cause, "no reply came in 90 s");
        // It was asked, and an answer that comes too late goes nowhere.
        let (request, waiting) = asked.try_recv().unwrap();
        assert!(matches!(request, Request::Probe), "{request:?}");
        assert!(waiting.send((Ok(Reply::Done), Vec::new())).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_just_before_that_counts() {
        let (client, mut asked) = client();
        tokio::spawn(async move {
            let (_, waiting) = asked.recv().await.unwrap();
            tokio::time::advance(REPLY_SECONDS_MAX - std::time::Duration::from_millis(1)).await;
            drop(waiting.send((Ok(Reply::Done), Vec::new())));
        });
        assert!(matches!(client.call(Request::Probe).await, Ok(Reply::Done)));
    }

    #[tokio::test]
    async fn a_helper_that_is_gone_is_an_error_at_once() {
        let (client, asked) = client();
        drop(asked);
        let refusal = client.call(Request::Probe).await.unwrap_err();
        assert_eq!(
            (refusal.code, refusal.cause.as_str()),
            (Code::ProcessHelperDied, "no reply came")
        );
    }
}
