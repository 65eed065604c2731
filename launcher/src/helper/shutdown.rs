//! The end of the helper: nothing of ours stays.

use super::clock;
use super::run::Source;
use super::{Helper, Run};

/// How long the end may take. What is left then is found by its groups at the next start.
const SHUTDOWN_MS_MAX: u64 = 10_000;

impl Helper {
    /// Kills every run, waits a bounded time, removes the groups.
    pub(super) fn shut_down(&mut self) {
        for run in self.runs.values_mut() {
            // A group that cannot be killed cannot be helped here; the others still can.
            let _ = run.kill();
            run.removal = Some(super::removal::Removal::new(0));
        }
        let deadline = clock::now_ms() + SHUTDOWN_MS_MAX;
        while !self.runs.is_empty() && clock::now_ms() < deadline {
            self.runs.retain(|_, run| !is_removed(run));
            let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            if !self.runs.is_empty() {
                let _ = rustix::event::poll(&mut [], Some(&pause));
            }
        }
        if let Some(Ok(base)) = self.context.as_ref().map(|context| &context.base) {
            let _ = base.remove_if_empty();
        }
    }
}

fn is_removed(run: &mut Run) -> bool {
    if let Some(agent) = &mut run.agent {
        let _ = agent.ready(Source::Process);
    }
    matches!(run.try_remove(), Some(Ok(())))
}
