//! The supervisor's side of the helper: start it, send requests, receive replies and events.
//!
//! Nothing here waits: the supervisor gives the socket to its own event loop, sends what the socket
//! takes and receives what is there.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atenea_core::{Code, Refusal};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags};

use crate::packet::{Assembler, Incoming, Outgoing};
use crate::protocol::{FromHelper, Numbered, Request};
use crate::sys;

/// Hidden argument with which this binary becomes the helper.
pub const HELPER_ARGUMENT: &str = "__launcher";
/// Where the helper finds its control socket.
pub const HELPER_FD: i32 = 3;

/// A helper that was started.
#[derive(Debug)]
pub struct Helper {
    socket: Arc<OwnedFd>,
    pid: Pid,
    pidfd: OwnedFd,
}

/// Sends requests.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<OwnedFd>,
    next_id: u64,
}

/// Receives replies and events.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<OwnedFd>,
    assembler: Assembler,
}

/// What was received.
#[derive(Debug)]
pub enum Received {
    /// A reply or event, with its descriptors.
    Message(Box<FromHelper>, Vec<OwnedFd>),
    /// Nothing now.
    WouldBlock,
    /// The helper has ended.
    Closed,
}

impl Helper {
    /// Starts `program` (this very binary) as the helper. Called before any thread exists, and before
    /// anything else is started.
    ///
    /// # Errors
    /// `process.helper_died` with the step that failed.
    pub fn start(program: &Path) -> Result<Self, Refusal> {
        let refused =
            |why: String| Refusal::new(Code::ProcessHelperDied, format!("not started: {why}"));
        let threads = std::fs::read_dir("/proc/self/task").map_err(|e| refused(e.to_string()))?;
        let threads = threads.count();
        if threads != 1 {
            return Err(refused(format!("{threads} threads exist already")));
        }
        Self::fork(program).map_err(|e| refused(e.to_string()))
    }

    fn fork(program: &Path) -> io::Result<Self> {
        let (socket, child) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let path = CString::new(program.as_os_str().as_bytes())?;
        let argv = [path.clone(), CString::new(HELPER_ARGUMENT)?];
        let env: Vec<CString> = helper_environment();
        let pid = match sys::process::fork()? {
            sys::process::Fork::Parent(pid) => pid,
            sys::process::Fork::Child => {
                let above = rustix::io::fcntl_dupfd_cloexec(&child, HELPER_FD + 1);
                let placed = above.map_err(io::Error::from).and_then(|above| {
                    sys::fd::close_on_exec_from(3)?;
                    sys::fd::place(above.as_fd(), HELPER_FD)
                });
                if placed.is_ok() {
                    let _ = nix::unistd::execve(&path, &argv, &env);
                }
                sys::process::exit_now(125)
            }
        };
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Helper { socket: Arc::new(socket), pid, pidfd })
    }

    /// Process id of the helper.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Readable when the helper has ended. The supervisor reaps it by [`Helper::reap`].
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Reaps the helper when it has ended; its wait status.
    ///
    /// # Errors
    /// When it was reaped already.
    pub fn reap(&self) -> io::Result<Option<i32>> {
        Ok(sys::process::reap(self.pidfd.as_fd())?.map(|ended| ended.wait_status))
    }

    /// The two directions. The helper kills everything when all of them are dropped.
    pub fn split(&self) -> (Sender, Receiver) {
        let sender = Sender { socket: Arc::clone(&self.socket), next_id: 1 };
        let receiver =
            Receiver { socket: Arc::clone(&self.socket), assembler: Assembler::default() };
        (sender, receiver)
    }

    /// The same, and this handle no longer keeps the socket open.
    pub fn into_parts(self) -> (Sender, Receiver, OwnedFd) {
        let (sender, receiver) = self.split();
        (sender, receiver, self.pidfd)
    }
}

/// On a unified host: moves this process to a leaf of its group, so that the group may have
/// children with controllers. Called before [`Helper::start`], which then starts the helper in the
/// leaf. On a hybrid host there is nothing to do.
///
/// # Errors
/// `host.no_cgroup`; the probe says so too, so a caller may go on and refuse enforced runs.
pub fn prepare_groups(instance: &str) -> Result<(), Refusal> {
    let refused = |e: atenea_cgroup::Error| Refusal::new(Code::HostNoCgroup, e.to_string());
    let layout = atenea_cgroup::Layout::detect().map_err(refused)?;
    if layout.kind() == atenea_cgroup::Kind::Unified {
        atenea_cgroup::Base::open_or_create(&layout, instance).map_err(refused)?;
    }
    Ok(())
}

/// The helper needs nothing of the environment but where to find messages of the language runtime.
fn helper_environment() -> Vec<CString> {
    ["RUST_BACKTRACE", "LANG"]
        .into_iter()
        .filter_map(|name| {
            let mut text = OsString::from(name);
            text.push("=");
            text.push(std::env::var_os(name)?);
            CString::new(text.as_bytes()).ok()
        })
        .collect()
}

impl Sender {
    /// Numbers and encodes a request. Send the result with [`Sender::send_some`], whole, before the
    /// next one.
    ///
    /// # Errors
    /// When it is larger than its bound.
    pub fn encode(&mut self, request: Request, fds: Vec<OwnedFd>) -> io::Result<(u64, Outgoing)> {
        let id = self.next_id;
        self.next_id += 1;
        let body = rmp_serde::to_vec_named(&Numbered { id, request }).map_err(io::Error::other)?;
        Ok((id, Outgoing::new(body, fds)?))
    }

    /// Sends as much as the socket takes now; true when all is sent.
    ///
    /// # Errors
    /// `BrokenPipe` when the helper is gone.
    pub fn send_some(&self, message: &mut Outgoing) -> io::Result<bool> {
        message.send_some(self.socket.as_fd())
    }

    /// Encodes and sends a request, waiting for room in the socket when it is full. The helper always
    /// reads, so that is short.
    ///
    /// # Errors
    /// `BrokenPipe` when the helper is gone.
    pub fn send(&mut self, request: Request, fds: Vec<OwnedFd>) -> io::Result<u64> {
        let (id, mut message) = self.encode(request, fds)?;
        while !self.send_some(&mut message)? {
            wait(self.socket.as_fd(), rustix::event::PollFlags::OUT)?;
        }
        Ok(id)
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Receiver {
    /// Receives what is there, without waiting.
    ///
    /// # Errors
    /// When what came cannot be understood.
    pub fn receive(&mut self) -> io::Result<Received> {
        match self.assembler.receive(self.socket.as_fd())? {
            Incoming::WouldBlock => Ok(Received::WouldBlock),
            Incoming::Closed => Ok(Received::Closed),
            Incoming::Message(body, fds) => {
                let message = rmp_serde::from_slice(&body).map_err(io::Error::other)?;
                Ok(Received::Message(Box::new(message), fds))
            }
        }
    }

    /// Waits until something is there and receives it; `None` when the helper has ended.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn receive_blocking(&mut self) -> io::Result<Option<(FromHelper, Vec<OwnedFd>)>> {
        loop {
            match self.receive()? {
                Received::Message(message, fds) => return Ok(Some((*message, fds))),
                Received::Closed => return Ok(None),
                Received::WouldBlock => {
                    wait(self.socket.as_fd(), rustix::event::PollFlags::IN)?;
                }
            }
        }
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn wait(fd: BorrowedFd<'_>, flags: rustix::event::PollFlags) -> io::Result<()> {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, flags)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
    Ok(())
}

/// Where `atenea-init` is: beside this program. A debug build may name another place in
/// `ATENEA_INIT`; a release build may not, or whoever sets the environment chooses what guards the
/// agent.
///
/// # Errors
/// `host.no_init` when this program's own path is unknown.
pub fn default_init_path() -> Result<PathBuf, Refusal> {
    #[cfg(debug_assertions)]
    if let Some(path) = std::env::var_os("ATENEA_INIT") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe()
        .map_err(|e| Refusal::new(Code::HostNoInit, format!("own path is unknown: {e}")))?;
    Ok(own.with_file_name("atenea-init"))
}
