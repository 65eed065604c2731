//! The fold: everything the supervisor knows, derived from the journal and from nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::approval::Approvals;
use crate::event::Deadline;
use crate::ledger::Ledger;
use crate::run::{Phase, Run, Workspace};
use crate::{BootId, Code, Digest, Generation, IdempotencyKey, Refusal, RunId, RunName};

/// What the configuration tells the state machine. Not journalled: it bounds new decisions and
/// never changes the meaning of recorded events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Runs that may be prepared, run or cleaned at once.
    pub max_concurrent: usize,
    /// Runs that may wait; more are refused with `process.busy`.
    pub queue_max: usize,
    /// First host uid and number of uids for runs; `None`: runs use their owner's uid.
    pub uid_range: Option<(u32, u32)>,
    /// Tries of a cleanup step before settlement stops waiting (C3).
    pub cleanup_tries: u32,
    /// Whether every run needs an approval.
    pub approval_required: bool,
    /// Pause before the second try; doubles up to [`RETRY_MS_MAX`].
    pub retry_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_concurrent: 8,
            queue_max: 10_000,
            uid_range: None,
            cleanup_tries: 5,
            approval_required: false,
            retry_ms: 200,
        }
    }
}

/// Longest pause between tries of a cleanup step, milliseconds.
pub const RETRY_MS_MAX: u64 = 60_000;
/// How long a killed run may take to be seen dead before cleanup starts without its exit status.
pub const KILL_WAIT_MS: u64 = 10_000;
/// Events recorded for one run (J7). Violations stop being recorded at half of it, so that what
/// ends a run always fits.
pub const RUN_EVENTS_MAX: u64 = 4_000;

/// The fold.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// Sequence of the last applied event; 0 before the first.
    pub seq: u64,
    /// The running generation.
    pub generation: Generation,
    /// Its boot.
    pub boot: Option<BootId>,
    /// Nothing is admitted any more.
    pub stopping: bool,
    /// All runs.
    pub runs: BTreeMap<RunId, Run>,
    /// Runs that something can still happen to by itself.
    pub active: BTreeSet<RunId>,
    /// Requested runs in the order of their request, waiting for a place.
    pub queue: Vec<RunId>,
    /// The newest run of each name.
    pub names: BTreeMap<RunName, RunId>,
    /// Repeated requests, by owner and key (B4).
    pub keys: BTreeMap<(u32, IdempotencyKey), (Digest, RunId)>,
    /// Money.
    pub ledger: Ledger,
    /// What people allowed.
    #[serde(default)]
    pub approvals: Approvals,
    /// The uid given to the newest run, so that the next one gets another.
    pub last_uid: u32,
}

impl State {
    /// A run by its id.
    ///
    /// # Errors
    /// `process.no_such_run`.
    pub fn run(&self, id: &RunId) -> Result<&Run, Refusal> {
        let missing = || Refusal::new(Code::ProcessNoSuchRun, format!("there is no run {id}"));
        self.runs.get(id).ok_or_else(missing)
    }

    /// A run by id, name, or unambiguous prefix of an id, in this order.
    ///
    /// # Errors
    /// `process.no_such_run`, `process.ambiguous_run`.
    pub fn find(&self, text: &str) -> Result<&Run, Refusal> {
        if let Ok(id) = RunId::parse(text)
            && let Some(run) = self.runs.get(&id)
        {
            return Ok(run);
        }
        if let Ok(name) = RunName::parse(text)
            && let Some(id) = self.names.get(&name)
        {
            return self.run(id);
        }
        let fits = |id: &&RunId| {
            let tail = id.as_str().strip_prefix("r_").unwrap_or_default();
            !text.is_empty() && (id.as_str().starts_with(text) || tail.starts_with(text))
        };
        let mut found = self.runs.keys().filter(fits);
        match (found.next(), found.next()) {
            (Some(id), None) => self.run(id),
            (Some(a), Some(b)) => {
                let cause = format!("{text:?} fits {a}, {b} and perhaps more");
                Err(Refusal::new(Code::ProcessAmbiguousRun, cause))
            }
            (None, _) => {
                Err(Refusal::new(Code::ProcessNoSuchRun, format!("there is no run {text:?}")))
            }
        }
    }

    /// Runs that take a place now.
    pub fn places_taken(&self) -> usize {
        self.active.iter().filter(|id| self.phase(id).is_some_and(Phase::takes_a_place)).count()
    }

    /// Whether anything is under way: a run that is not over, or an export or deletion that was begun
    /// and does not hang.
    pub fn busy(&self) -> bool {
        let under_way = |run: &Run| {
            let working =
                matches!(run.workspace, Workspace::Exporting { .. } | Workspace::Discarding);
            run.phase != Phase::Ended || (working && run.stuck().is_none())
        };
        self.active.iter().filter_map(|id| self.runs.get(id)).any(under_way)
    }

    /// The earliest deadline on the boot clock, for the driver's timer.
    pub fn next_deadline(&self) -> Option<u64> {
        let deadline = |id: &RunId| self.runs.get(id).and_then(|r| r.deadline).map(|d| d.0);
        self.active.iter().filter_map(deadline).min()
    }

    /// Deadlines that have passed at `boot_ms`.
    pub(crate) fn passed(&self, boot_ms: u64) -> Vec<(RunId, Deadline)> {
        let due = |id: &RunId| {
            let (at, what) = self.runs.get(id)?.deadline?;
            (at <= boot_ms).then(|| (id.clone(), what))
        };
        self.active.iter().filter_map(due).collect()
    }

    fn phase(&self, id: &RunId) -> Option<Phase> {
        self.runs.get(id).map(|r| r.phase)
    }
}
