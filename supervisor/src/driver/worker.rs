//! The workspace worker as a process: started with the right uid, asked once, then gone.
//!
//! A run's paths are opened and refs written by a process that has only the rights of the user they
//! belong to (S6). The worker dies with the supervisor. One that was asked is never asked for
//! another run; one that was not is kept ready, because starting it is a good part of a launch.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atenea_core::{Code, Refusal};
use atenea_workspace::Progress;
use atenea_workspace::worker::{Answer, Request, Response};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Whose rights a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct As {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The longest line a worker sends, bytes: a diff is bounded well below it.
const LINE_BYTES_MAX: usize = 64 << 20;

/// How long a worker that was ready may take to say that it is there.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// The same for one that was just started: it has to be loaded first, on a machine that may be busy,
/// and there is no other one to take instead.
const FIRST_HELLO_WAIT: Duration = Duration::from_secs(10);

/// Workers: those that are asked, and one that waits to be.
#[derive(Default)]
pub(super) struct Workers {
    spare: Mutex<Option<(Option<As>, Session)>>,
}

impl Workers {
    /// Asks a worker of its own. Dropping the future kills the worker.
    ///
    /// # Errors
    /// The worker's refusal, or `fs.io` when it could not be started or broke off.
    pub(super) async fn ask(
        &self,
        who: Option<As>,
        request: &Request,
        progress: impl FnMut(Progress),
    ) -> Result<Answer, Refusal> {
        self.session(who).await?.ask(request, progress).await
    }

    /// A worker that answers and was asked for no run yet. One that says nothing, because somebody
    /// stopped it, is killed, and another one takes its place.
    ///
    /// # Errors
    /// `fs.io`.
    pub(super) async fn session(&self, who: Option<As>) -> Result<Session, Refusal> {
        let ready = self.spare().take_if(|(has, _)| *has == who);
        if let Some((_, mut session)) = ready {
            match session.hello(HELLO_WAIT).await {
                Ok(()) => return Ok(session),
                Err(refusal) => tracing::warn!("the worker that was ready: {}", refusal.cause),
            }
        }
        let mut session = Session::start(who)?;
        session.hello(FIRST_HELLO_WAIT).await?;
        Ok(session)
    }

    /// Starts the worker that the next run of this user will ask. Must be called on a thread of the
    /// runtime (see [`Session::start`]); when it fails, the next run starts its own.
    pub(super) fn prepare(&self, who: Option<As>) {
        if self.spare().as_ref().is_some_and(|(has, _)| *has == who) {
            return;
        }
        let session = Session::start(who).inspect_err(|refusal| tracing::debug!("{refusal}"));
        *self.spare() = session.ok().map(|session| (who, session));
    }

    fn spare(&self) -> MutexGuard<'_, Option<(Option<As>, Session)>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker that is asked several things. Dropping it kills the worker and what it started.
pub(super) struct Session {
    // Before the child: the group is signalled while its leader's number is still taken.
    _group: Group,
    stdin: ChildStdin,
    answers: BufReader<ChildStdout>,
    // Killed when it is dropped.
    _child: Child,
}

fn broke(why: &str) -> Refusal {
    Refusal::new(Code::FsIo, format!("the workspace worker: {why}"))
}

impl Session {
    /// Starts a worker.
    ///
    /// # Errors
    /// `fs.io`.
    fn start(who: Option<As>) -> Result<Self, Refusal> {
        let mut command = std::process::Command::new("/proc/self/exe");
        command.arg0("atenea-sup").arg("__workspace").env_clear();
        // A group of its own, so that what it started can be ended with it.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        if let Some(who) = who {
            // What belongs to somebody else can be reached by them, our log through it.
            command.stderr(Stdio::null());
            // The standard library drops supplementary groups when it sets a uid as root.
            command.gid(who.gid).uid(who.uid);
        }
        // Started from a thread of the runtime, which lives as long as the supervisor: the worker
        // asks to be killed when its parent thread ends.
        let mut child = Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| broke(&format!("not started: {e}")))?;
        let group = Group(child.id());
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(broke("has no pipes"));
        };
        Ok(Session { _group: group, stdin, answers: BufReader::new(stdout), _child: child })
    }

    /// Asks for a sign of life, in bounded time.
    async fn hello(&mut self, wait: Duration) -> Result<(), Refusal> {
        match tokio::time::timeout(wait, self.ask(&Request::Hello, |_| {})).await {
            Ok(Ok(Answer::Hello)) => Ok(()),
            Ok(Ok(_)) => Err(broke("answered something else")),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => Err(broke("does not answer")),
        }
    }

    /// Asks one thing and waits for the answer.
    ///
    /// # Errors
    /// The worker's refusal, or `fs.io` when it broke off.
    pub(super) async fn ask(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(Progress),
    ) -> Result<Answer, Refusal> {
        let mut line = serde_json::to_vec(request).map_err(|e| broke(&e.to_string()))?;
        line.push(b'\n');
        self.stdin.write_all(&line).await.map_err(|e| broke(&e.to_string()))?;
        loop {
            let mut text = Vec::new();
            let read = self.answers.read_until(b'\n', &mut text).await;
            if read.map_err(|e| broke(&e.to_string()))? == 0 || text.len() > LINE_BYTES_MAX {
                return Err(broke("ended without an answer"));
            }
            match serde_json::from_slice(&text) {
                Ok(Response::Progress(now)) => progress(now),
                Ok(Response::Done(answer)) => return Ok(answer),
                Ok(Response::Refused(refusal)) => return Err(refusal),
                Err(error) => return Err(broke(&format!("said something unreadable: {error}"))),
            }
        }
    }
}

/// The process group of a worker: whatever is left of it ends when this is dropped, also when the
/// future that waits for the worker is.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let leader = self.0.and_then(|pid| i32::try_from(pid).ok());
        if let Some(leader) = leader.and_then(rustix::process::Pid::from_raw) {
            // Gone already is what is wanted.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}
