//! The accountant of a writable workspace on disk: where the host gives no hard quota to a run, its
//! growth is looked at, and a run that grew beyond its limit is killed. Receipts say `watched`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atenea_core::input::Observation;
use atenea_core::{Code, Refusal, RunId};
use atenea_reaper::RunGroup;

use super::disk_walk::{Torn, size_of};
use super::held;
use super::host::Inner;

/// Pause between two looks, at least. A look that takes long makes the pause longer, so that looking
/// never takes more than a tenth of a core.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Pause between two glances at the free space of the whole disk, which cost one system call.
const GLANCE: Duration = Duration::from_millis(25);
/// Looks in a row that may fail before the run counts as over its limit. The agent can spoil each of
/// them, with a directory that nobody may read or one that is always moving; a test suite may do the
/// same for a moment.
const TORN_MAX: u32 = 4;

/// Looks until it is dropped or the run is over its limit.
pub(super) async fn watch(inner: Arc<Inner>, run: RunId, limit: u64) {
    let dir = inner.dirs.workspace(&run);
    let mut group = group_of(&inner, &run).await;
    let Some(base) = measure(dir.clone(), group.clone()).await else { return };
    // What cannot be measured at the start counts as nothing, so that all of it is growth.
    let base = base.unwrap_or(0);
    let mut pause = PAUSE_MIN;
    let mut torn = 0;
    loop {
        wait(&dir, pause, limit).await;
        let began = crate::clock::now().boot_ms;
        if group.is_err() {
            group = group_of(&inner, &run).await;
        }
        let Some(now) = measure(dir.clone(), group.clone()).await else { continue };
        let took = crate::clock::now().boot_ms.saturating_sub(began);
        pause = PAUSE_MIN.max(Duration::from_millis(took.saturating_mul(9)));
        let cause = match over(now, base, limit, &mut torn) {
            Some(cause) => cause,
            None => continue,
        };
        let refusal = Refusal::new(Code::LimitDisk, cause);
        inner.observe(Observation::LimitExceeded { run, refusal }).await;
        return;
    }
}

/// Why the run is over its limit. `torn` counts the failed looks in a row.
fn over(now: Result<u64, Torn>, base: u64, limit: u64, torn: &mut u32) -> Option<String> {
    match now {
        Ok(now) => {
            *torn = 0;
            let grown = now.saturating_sub(base);
            let cause = || format!("the workspace grew by {grown} bytes, the limit is {limit}");
            (grown > limit).then(cause)
        }
        Err(why) => {
            *torn += 1;
            let cause = || format!("the workspace cannot be measured: {}", why.as_str());
            (!why.may_pass() || *torn >= TORN_MAX).then(cause)
        }
    }
}

/// Waits for the next look: sooner when the disk as a whole fills up faster than the run may.
async fn wait(dir: &Path, pause: Duration, limit: u64) {
    let free = || {
        let stat = rustix::fs::statvfs(dir).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    };
    let before = free();
    let mut waited = Duration::ZERO;
    while waited < pause {
        tokio::time::sleep(GLANCE).await;
        waited += GLANCE;
        if let (Some(before), Some(now)) = (before, free())
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

async fn measure(dir: PathBuf, group: Group) -> Option<Result<u64, Torn>> {
    let look = move || {
        let held = match group? {
            Some(group) => held::by_group(&group, &dir)?,
            None => 0,
        };
        Ok(size_of(&dir)?.saturating_add(held))
    };
    tokio::task::spawn_blocking(look).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_its_limit_when_it_grew_or_when_nobody_can_tell() {
        let mut torn = 0;
        assert_eq!(over(Ok(110), 100, 10, &mut torn), None);
        assert!(over(Ok(111), 100, 10, &mut torn).is_some_and(|why| why.contains("11 bytes")));
        for _ in 1..TORN_MAX {
            assert_eq!(over(Err(Torn::Unreadable), 100, 10, &mut torn), None);
        }
        assert!(over(Err(Torn::Moving), 100, 10, &mut torn).is_some(), "too many in a row");
        torn = 0;
        assert_eq!(over(Err(Torn::Moving), 100, 10, &mut torn), None);
        assert_eq!(over(Ok(100), 100, 10, &mut torn), None);
        assert_eq!(torn, 0, "a look that succeeds begins anew");
        assert!(over(Err(Torn::TooDeep), 100, 10, &mut torn).is_some(), "at once");
    }
}
