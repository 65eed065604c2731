//! Removal of a run: kill, prove empty, remove; bounded, and never in the way of other runs.

use atenea_core::{Code, Refusal};

use super::clock;
use super::context::group_refusal;
use super::run::Run;

/// After this long a run that is still populated is stuck: something is in uninterruptible sleep.
const REMOVAL_MS_MAX: u64 = 10_000;
/// The longest pause between two looks.
const LOOK_MS_MAX: u64 = 16;

/// A removal that was asked for.
pub(super) struct Removal {
    /// Requests that wait for it.
    pub(super) ids: Vec<u64>,
    deadline_ms: u64,
    next_look_ms: u64,
    pause_ms: u64,
}

impl Removal {
    pub(super) fn new(id: u64) -> Self {
        let now = clock::now_ms();
        Removal { ids: vec![id], deadline_ms: now + REMOVAL_MS_MAX, next_look_ms: now, pause_ms: 1 }
    }

    pub(super) fn next_look_ms(&self) -> u64 {
        self.next_look_ms
    }
}

impl Run {
    /// Looks whether the run can be removed now. `None`: not yet. An error says why it is stuck;
    /// the groups stay, and the request may be repeated.
    pub(super) fn try_remove(&mut self) -> Option<Result<(), Refusal>> {
        let now = clock::now_ms();
        let removal = self.removal.as_mut().filter(|removal| removal.next_look_ms <= now)?;
        let late = removal.deadline_ms <= now;
        removal.next_look_ms = now + removal.pause_ms;
        removal.pause_ms = (removal.pause_ms * 2).min(LOOK_MS_MAX);
        match self.remove_if_empty() {
            Ok(true) => Some(Ok(())),
            Ok(false) if late => {
                let pids = self.group.procs().unwrap_or_default();
                Some(Err(Refusal::new(
                    Code::ProcessCleanupStuck,
                    format!("processes {pids:?} do not end"),
                )))
            }
            Ok(false) => None,
            Err(refusal) if late => Some(Err(refusal)),
            // Busy for a moment, for example by a fork in flight: kill again and look again.
            Err(_) => None,
        }
    }

    /// C1: "empty" is the kernel's word, not the end of one process.
    fn remove_if_empty(&mut self) -> Result<bool, Refusal> {
        if self.group.populated().map_err(|e| group_refusal(&e))? {
            self.kill()?;
            return Ok(false);
        }
        if self.has_process() {
            self.kill()?;
            return Ok(false);
        }
        // The watch must not see the removal as an event of the run.
        self.oom = None;
        self.group.remove().map_err(|e| group_refusal(&e))?;
        Ok(true)
    }
}
