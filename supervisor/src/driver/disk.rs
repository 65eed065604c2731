//! The accountant of a writable workspace on disk: where the host gives no hard quota to a run, its
//! growth is looked at, and a run that grew beyond its limit is killed. Receipts say `watched`.
//!
//! A run sees which of its directories was just read and can move its files behind the walk, so that
//! no look meets them. Therefore it stands still during some of the looks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atenea_core::event::Violation;
use atenea_core::input::Observation;
use atenea_core::run::Run;
use atenea_core::{Code, Refusal, RunId};
use atenea_reaper::{Frozen, RunGroup};

use super::disk_walk::{Torn, size_of};
use super::held;
use super::host::Inner;
use crate::files::free_bytes as free;

/// Pause between two looks, at least. A look that takes long makes the pause longer, so that looking
/// never takes more than a tenth of a core.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Pause between two glances at the free space of the whole disk, which cost one system call.
const GLANCE: Duration = Duration::from_millis(25);
/// Looks in a row that may fail before the run counts as over its limit. The agent can spoil each of
/// them, with a directory that nobody may read or one that is always moving; a test suite may do the
/// same for a moment.
const TORN_MAX: u32 = 4;

/// Every how many looks the run stands still at least. The pause after a look is nine times as long
/// as it, so that a run stands still for a fortieth of its time, or a tenth when the disk fills up.
const STILL_EVERY: u32 = 4;
/// How long a run may take until it stands still: a process that waits for the disk takes longer.
const STILL_PATIENCE: Duration = Duration::from_millis(500);
/// Times in a row that a run may fail to stand still before it counts as over its limit: about a
/// minute, so that a slow disk is no reason.
const RESTLESS_MAX: u32 = 12;

/// The workspace before its agent wrote anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    bytes: u64,
    /// Free space of the whole disk, bytes.
    free: Option<u64>,
}

/// Measures a workspace that nobody writes to yet.
pub(super) async fn start(inner: &Inner, run: &RunId) -> Start {
    let dir = inner.dirs.workspace(run);
    let free = free(&dir);
    let size = tokio::task::spawn_blocking(move || size_of(&dir)).await;
    // What cannot be measured at the start counts as nothing, so that all of it is growth.
    Start { bytes: size.ok().and_then(Result::ok).unwrap_or(0), free }
}

/// Looks until it is dropped or the run is over its limit.
pub(super) async fn watch(inner: Arc<Inner>, run: RunId, limit: u64, start: Start) {
    let dir = inner.dirs.workspace(&run);
    let mut group = group_of(&inner, &run).await;
    let mut books = Books::new(start, limit);
    let mut pause = PAUSE_MIN;
    loop {
        wait(&dir, pause, limit).await;
        let began = crate::clock::now().boot_ms;
        if group.is_err() {
            group = group_of(&inner, &run).await;
        }
        let want_still = books.want_still(free(&dir));
        let Some(seen) = measure(dir.clone(), group.clone(), want_still).await else { continue };
        let took = crate::clock::now().boot_ms.saturating_sub(began);
        pause = PAUSE_MIN.max(Duration::from_millis(took.saturating_mul(9)));
        let Some(cause) = books.over(seen, want_still, free(&dir)) else { continue };
        let refusal = Refusal::new(Code::LimitDisk, cause);
        inner.observe(Observation::LimitExceeded { run, refusal }).await;
        return;
    }
}

/// A last look, when nobody writes any more. What it finds kills nobody and is said in the receipt.
pub(super) async fn last_look(inner: &Inner, run: &Run) -> Option<Observation> {
    // Once for a run that this supervisor started.
    let start = inner.live.get(&run.id)?.with(|parts| parts.disk_start.take())?;
    if run.cause.as_ref().is_some_and(|(code, _)| *code == Code::LimitDisk) {
        return None;
    }
    let dir = inner.dirs.workspace(&run.id);
    let bytes = match tokio::task::spawn_blocking(move || size_of(&dir)).await.ok()? {
        Ok(bytes) => bytes,
        Err(why) => {
            tracing::warn!("workspace of {} at its end: {}", run.id, why.as_str());
            return None;
        }
    };
    let grown = bytes.saturating_sub(start.bytes);
    let violation = Violation {
        phase: "cap".to_owned(),
        code: Code::LimitDisk,
        subject: format!("the workspace grew by {grown} bytes"),
        count: 1,
        killed_run: false,
    };
    (grown > run.spec.limits.disk_bytes)
        .then(|| Observation::Violation { run: run.id.clone(), violation })
}

/// What one look saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    /// Whether nobody could move anything meanwhile.
    still: bool,
}

/// What the looks so far add up to.
struct Books {
    start: Start,
    limit: u64,
    /// Growth that the last look saw, bytes.
    grown: u64,
    /// Growth and free space of the disk when the run last stood still.
    mark: (u64, Option<u64>),
    /// Looks since then.
    moving: u32,
    /// Failed looks in a row.
    torn: u32,
    /// Times in a row that the run did not stand still.
    restless: u32,
}

impl Books {
    fn new(start: Start, limit: u64) -> Self {
        Books { start, limit, grown: 0, mark: (0, start.free), moving: 0, torn: 0, restless: 0 }
    }

    /// Whether the run is to stand still during the next look: it is time, or the disk lost clearly
    /// more than the looks since the last such time explain.
    fn want_still(&self, free: Option<u64>) -> bool {
        let (grown, before) = self.mark;
        let explained = self.grown.saturating_sub(grown).saturating_add(self.limit / 2);
        let lost = before.zip(free).map_or(0, |(before, now)| before.saturating_sub(now));
        self.moving + 1 >= STILL_EVERY || lost > explained
    }

    /// Why the run is over its limit.
    fn over(
        &mut self,
        seen: Result<Seen, Torn>,
        want_still: bool,
        free: Option<u64>,
    ) -> Option<String> {
        let unknown = |why: Torn| format!("the workspace cannot be measured: {}", why.as_str());
        let seen = match seen {
            Ok(seen) => seen,
            Err(why) => {
                self.torn += 1;
                return (!why.may_pass() || self.torn >= TORN_MAX).then(|| unknown(why));
            }
        };
        self.torn = 0;
        self.grown = seen.bytes.saturating_sub(self.start.bytes);
        let (grown, limit) = (self.grown, self.limit);
        if grown > limit {
            return Some(format!("the workspace grew by {grown} bytes, the limit is {limit}"));
        }
        if seen.still {
            self.mark = (grown, free);
            (self.moving, self.restless) = (0, 0);
        } else {
            // It stays due until the run stood still.
            self.moving = self.moving.saturating_add(1);
            self.restless += u32::from(want_still);
        }
        (self.restless >= RESTLESS_MAX).then(|| unknown(Torn::Restless))
    }
}

/// Waits for the next look: sooner when the disk as a whole fills up faster than the run may.
async fn wait(dir: &Path, pause: Duration, limit: u64) {
    let before = free(dir);
    let mut waited = Duration::ZERO;
    while waited < pause {
        tokio::time::sleep(GLANCE).await;
        waited += GLANCE;
        if let (Some(before), Some(now)) = (before, free(dir))
            && before.saturating_sub(now) > limit / 2
        {
            return;
        }
    }
}

/// What is known of those whose files without a name count too; `None` when nobody is left.
type Group = Result<Option<Arc<RunGroup>>, Torn>;

async fn group_of(inner: &Inner, run: &RunId) -> Group {
    let Some(record) = inner.run(run).await.ok().and_then(|record| record.group) else {
        return Ok(None);
    };
    let run = run.clone();
    let found = tokio::task::spawn_blocking(move || held::group(&run, &record)).await;
    Ok(found.map_err(|_| Torn::Group)??.map(Arc::new))
}

async fn measure(dir: PathBuf, group: Group, want_still: bool) -> Option<Result<Seen, Torn>> {
    let look = move || look(&dir, group?.as_deref(), want_still);
    tokio::task::spawn_blocking(look).await.ok()
}

fn look(dir: &Path, group: Option<&RunGroup>, want_still: bool) -> Result<Seen, Torn> {
    let Some(group) = group else {
        // Nobody is left who could move anything.
        return Ok(Seen { bytes: size_of(dir)?, still: true });
    };
    // Its end lets the run go on, however the look ends.
    let frozen = if want_still { freeze(group) } else { None };
    let held = held::by_group(group, dir)?;
    let bytes = size_of(dir)?.saturating_add(held);
    Ok(Seen { bytes, still: frozen.is_some() })
}

/// Without it the look is one like others: what lies open is seen all the same.
fn freeze(group: &RunGroup) -> Option<Frozen> {
    let frozen = group.freeze(STILL_PATIENCE).unwrap_or_else(|error| {
        tracing::warn!("{} cannot be frozen: {error}", group.name());
        None
    });
    if frozen.is_none() {
        tracing::debug!("{} does not stand still", group.name());
    }
    frozen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books() -> Books {
        Books::new(Start { bytes: 100, free: Some(1_000) }, 10)
    }

    fn saw(bytes: u64, still: bool) -> Result<Seen, Torn> {
        Ok(Seen { bytes, still })
    }

    #[test]
    fn a_run_is_over_its_limit_when_it_grew_or_when_nobody_can_tell() {
        let mut books = books();
        let mut over = |seen| books.over(seen, false, None);
        assert_eq!(over(saw(110, false)), None);
        assert!(over(saw(111, false)).is_some_and(|why| why.contains("11 bytes")));
        for _ in 1..TORN_MAX {
            assert_eq!(over(Err(Torn::Unreadable)), None);
        }
        assert!(over(Err(Torn::Moving)).is_some(), "too many in a row");
        assert_eq!(over(saw(100, false)), None);
        assert_eq!(over(Err(Torn::Moving)), None, "a look that succeeds begins anew");
        assert!(over(Err(Torn::TooDeep)).is_some(), "at once");
    }

    #[test]
    fn every_fourth_look_finds_the_run_still_and_a_failed_one_stays_due() {
        let mut books = books();
        let mut next = |still_possible: bool| {
            let want = books.want_still(Some(1_000));
            assert_eq!(books.over(saw(100, want && still_possible), want, Some(1_000)), None);
            want
        };
        let wanted: Vec<bool> = (0..8).map(|_| next(true)).collect();
        assert_eq!(wanted, [false, false, false, true, false, false, false, true]);
        let wanted: Vec<bool> = (0..5).map(|_| next(false)).collect();
        assert_eq!(wanted, [false, false, false, true, true]);
    }

    #[test]
    fn a_disk_that_lost_more_than_the_looks_explain_makes_the_run_stand_still() {
        let mut books = books();
        assert!(!books.want_still(Some(995)), "half the limit may be anybody's");
        assert!(books.want_still(Some(994)));
        // What the run is seen to have written explains it.
        assert_eq!(books.over(saw(105, false), false, Some(990)), None);
        assert!(!books.want_still(Some(990)));
        assert!(books.want_still(Some(989)));
        // Somebody else wrote it: after one still look it is no reason any more.
        assert_eq!(books.over(saw(105, true), true, Some(900)), None);
        assert!(!books.want_still(Some(895)));
        assert!(books.want_still(Some(894)));
    }

    #[test]
    fn a_run_that_never_stands_still_is_over_its_limit_in_the_end() {
        let mut books = books();
        for _ in 1..RESTLESS_MAX {
            assert_eq!(books.over(saw(100, false), true, None), None);
        }
        let why = books.over(saw(100, false), true, None);
        assert!(why.is_some_and(|why| why.contains("stand still")));
    }
}
