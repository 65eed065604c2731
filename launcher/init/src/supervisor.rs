//! The helper's end of the supervision socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use atenea_init::wire::{FromInit, MESSAGE_BYTES_MAX, SelfTest, ToInit};

use crate::failure::{Ending, Failure};
use crate::sys::fd::Event;
use crate::sys::{fd, socket, tty};

/// Talks to the helper. The end of its stream means that init must end at once.
#[derive(Debug)]
pub(crate) struct Supervisor {
    socket: OwnedFd,
}

impl AsFd for Supervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Supervisor {
    /// Takes the socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Fails unless the descriptor is a socket that keeps message boundaries.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match socket::is_seqpacket(self.as_fd()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new("descriptors", "descriptor 3 is no SOCK_SEQPACKET")),
            Err(error) => Err(Failure::at("descriptors")(error)),
        }
    }

    /// Sends a message. Waits when the socket is full: init sends five messages at most.
    pub(crate) fn tell(&self, message: &FromInit, fds: &[BorrowedFd<'_>]) -> Result<(), Ending> {
        let bytes = rmp_serde::to_vec_named(message)
            .map_err(|error| Failure::new("tell", error.to_string()))?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Failure::new("tell", format!("message of {} bytes", bytes.len())).into());
        }
        let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        socket::send(self.as_fd(), &bytes, &fds).map_err(|error| match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => Ending::SupervisorGone,
            _ => Failure::at("tell")(error).into(),
        })
    }

    /// Says that the sandbox is proven, and passes out what init made for the helper.
    pub(crate) fn ready(
        &self,
        self_test: Vec<SelfTest>,
        terminal: Option<&tty::Terminal>,
    ) -> Result<(), Ending> {
        let master = terminal.map(|terminal| terminal.master.as_fd());
        let fds: Vec<BorrowedFd<'_>> = master.into_iter().collect();
        self.tell(&FromInit::Ready { self_test }, &fds)
    }

    /// The next message, when one is there.
    pub(crate) fn next(&self) -> Result<Option<ToInit>, Ending> {
        let mut buffer = [0; 256];
        let len = match socket::receive(self.as_fd(), &mut buffer) {
            Ok(0) => return Err(Ending::SupervisorGone),
            Ok(len) => len,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                    Some(libc::ECONNRESET) => Err(Ending::SupervisorGone),
                    _ => Err(Failure::at("listen")(error).into()),
                };
            }
        };
        let Some(bytes) = buffer.get(..len) else {
            return Err(Failure::new("listen", format!("message of {len} bytes")).into());
        };
        match rmp_serde::from_slice(bytes) {
            Ok(message) => Ok(Some(message)),
            Err(error) => Err(Failure::new("listen", error.to_string()).into()),
        }
    }

    /// Waits for `Go`. S1: nothing of the agent runs before. A signal has no addressee yet: a helper
    /// that no longer wants the run closes the socket.
    pub(crate) fn wait_for_go(&self, terminal: Option<&tty::Terminal>) -> Result<(), Ending> {
        loop {
            fd::wait([Event::Readable(self.as_fd())]).map_err(Failure::at("wait_for_go"))?;
            match self.next()? {
                Some(ToInit::Go) => return Ok(()),
                Some(ToInit::Resize { rows, cols }) => {
                    resize(terminal.map(|terminal| terminal.master.as_fd()), rows, cols)?;
                }
                Some(ToInit::Signal { .. }) | None => {}
            }
        }
    }
}

/// Resizes the terminal, when there is one.
pub(crate) fn resize(master: Option<BorrowedFd<'_>>, rows: u16, cols: u16) -> Result<(), Failure> {
    let resized: io::Result<()> = master.map_or(Ok(()), |master| tty::resize(master, rows, cols));
    resized.map_err(Failure::at("resize"))
}
