//! Ends and removes the control groups of a run, step by step.

use std::time::Duration;

use atenea_cgroup::{Layout, Place, RunGroup, Wait};

use crate::{Error, Result};

/// How often a group is killed before it counts as stuck. More than once, because a process may
/// enter it while it is being ended; it cannot do that again and again.
const KILLS_MAX: u32 = 3;

/// How a kill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was empty already, or gone.
    WasEmpty,
    /// There were processes; now there are none (C1).
    Killed,
}

/// Kills all processes of a group and proves that none is left. Repeating it is no error.
///
/// # Errors
/// [`Error::Stuck`] with the processes that do not end within `patience`, and what cannot be read.
pub fn kill_group(group: &RunGroup, patience: Duration) -> Result<Ended> {
    let failed = |source| Error::Group { name: group.name().to_owned(), source };
    if !group.populated().map_err(failed)? {
        return Ok(Ended::WasEmpty);
    }
    let share = patience / KILLS_MAX;
    for _ in 0..KILLS_MAX {
        group.kill().map_err(failed)?;
        let wait = group.wait_empty(share).map_err(failed)?;
        if wait == Wait::Empty && !group.populated().map_err(failed)? {
            return Ok(Ended::Killed);
        }
    }
    let pids = group.procs().map_err(failed)?;
    Err(Error::Stuck { name: group.name().to_owned(), pids })
}

/// Removes an empty group. Repeating it is no error.
///
/// # Errors
/// [`Error::Group`]; when it is busy, [`kill_group`] comes before the next try.
pub fn remove_group(group: &RunGroup) -> Result<()> {
    group.remove().map_err(|source| Error::Group { name: group.name().to_owned(), source })
}

/// Removes the instance directories of dead supervisors where no run is left below them. Those
/// that are still needed stay; `true`: all are gone.
///
/// # Errors
/// [`Error::Group`] when one cannot be removed for another reason.
pub fn remove_instances(layout: &Layout, places: &[Place]) -> Result<bool> {
    let mut gone = true;
    for place in places {
        let removed = atenea_cgroup::remove_instance(layout, place);
        gone &= removed.map_err(|source| Error::Group { name: place.path.clone(), source })?;
    }
    Ok(gone)
}
