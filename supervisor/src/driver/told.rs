//! What the launcher helper says by itself: an agent ended, a sandbox is gone, memory ran out, or
//! the helper died.

use std::sync::Arc;

use atenea_core::event::{Exit, Usage, Violation};
use atenea_core::input::Observation;
use atenea_core::{Code, Refusal, RunId};
use atenea_launcher::protocol::{Event, Reply, Request, Rusage};
use tokio::sync::mpsc;

use super::helper::Told;
use super::host::Inner;

/// Passes on what the helper says, in its order, until it is dead. Returns why it ended.
pub async fn listen(inner: Arc<Inner>, mut told: mpsc::UnboundedReceiver<Told>) -> String {
    while let Some(said) = told.recv().await {
        match said {
            Told::Event(event) => heard(&inner, event).await,
            Told::Dead(cause) => return cause,
        }
    }
    "its connection ended".to_owned()
}

async fn heard(inner: &Arc<Inner>, event: Event) {
    match event {
        Event::Oom { run } => out_of_memory(inner, run).await,
        Event::AgentExited { run, wait_status, rusage } => {
            if let Some(live) = inner.live.get(&run) {
                live.with(|parts| parts.exited = Some((wait_status, rusage)));
            }
            spawn_end(inner, run, Some(wait_status), Some(rusage));
        }
        Event::SandboxGone { run, wait_status } => {
            let exited = inner.live.get(&run).and_then(|live| live.with(|p| p.exited));
            if exited.is_none() {
                // Only the outermost process was seen to end. For a sandbox its status says nothing
                // about the agent; for a process on the host it is the agent's.
                let sandboxed = inner.run(&run).await.is_ok_and(|r| r.spec.profile.is_enforced());
                spawn_end(inner, run, (!sandboxed).then_some(wait_status), None);
            }
        }
    }
}

async fn out_of_memory(inner: &Arc<Inner>, run: RunId) {
    let refusal = Refusal::new(Code::LimitMemory, Code::LimitMemory.cause());
    inner.observe(Observation::LimitExceeded { run, refusal }).await;
}

/// Reports the end of an agent with what it used. The numbers are asked of the helper, which must
/// not make other runs' events wait.
fn spawn_end(inner: &Arc<Inner>, run: RunId, wait_status: Option<i32>, rusage: Option<Rusage>) {
    let Some(live) = inner.live.get(&run) else { return };
    if live.with(|parts| std::mem::replace(&mut parts.end_told, true)) {
        return;
    }
    let inner = Arc::clone(inner);
    let now = crate::clock::now().boot_ms;
    tokio::spawn(async move {
        let exit = wait_status.map_or(Exit::Unknown, exit_of);
        let asked = inner.helper.call(Request::Usage { run: run.clone() }).await;
        let used = match asked {
            Ok(Reply::Usage(used)) => Some(used),
            _ => None,
        };
        // The kernel's own kill may be seen before the notice of it.
        if used.is_some_and(|u| u.oom_kills > 0) && exit == Exit::Signal(9) {
            out_of_memory(&inner, run.clone()).await;
        }
        if let Some(count) = used.map(|u| u.group.pids_refused).filter(|count| *count > 0) {
            inner.observe(too_many_tasks(&run, count)).await;
        }
        // An agent can end before the word that it was started is here.
        let started = live.with(|parts| parts.started_ms).unwrap_or(now);
        let from_children = rusage.map(|r| r.user_us.saturating_add(r.system_us));
        let usage = Usage {
            cpu_us: used.map(|u| u.group.cpu_usec).or(from_children),
            memory_peak_bytes: used.map(|u| u.group.memory_peak_bytes),
            pids_peak: used.map(|u| u.group.pids_peak),
            output_bytes: Some(live.hub.total()),
            wall_ms: Some(now.saturating_sub(started)),
        };
        inner.observe(Observation::Exited { run, exit, usage }).await;
    });
}

/// Forks that the limit refused: the run goes on, and its receipt says so.
fn too_many_tasks(run: &RunId, count: u64) -> Observation {
    let violation = Violation {
        phase: "cap".to_owned(),
        code: Code::LimitPids,
        subject: "processes and threads".to_owned(),
        count,
        killed_run: false,
    };
    Observation::Violation { run: run.clone(), violation }
}

/// A wait status as the agent's end.
fn exit_of(wait_status: i32) -> Exit {
    use std::os::unix::process::ExitStatusExt;
    let status = std::process::ExitStatus::from_raw(wait_status);
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_137_is_not_a_death_by_signal_9() {
        assert_eq!(exit_of(137 << 8), Exit::Status(137));
        assert_eq!(exit_of(9), Exit::Signal(9));
    }
}
