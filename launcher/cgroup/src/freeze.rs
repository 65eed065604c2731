//! Standing still: while a guard lives, no process of a run executes anything.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::dir::{Dir, is_gone, is_gone_io};
use crate::{Error, Result, events};

const FILE: &str = "cgroup.freeze";

/// Keeps the processes of a run still; dropping it lets them go on.
///
/// [`RunGroup::kill`](crate::RunGroup::kill) ends them meanwhile too. If the process that holds this
/// dies, they stay as they are until somebody kills them.
#[derive(Debug)]
#[must_use = "dropping it lets the processes go on"]
pub struct Frozen {
    /// Open from before the freeze, so that nothing can be missing for the thaw. `None`: the group
    /// is gone.
    file: Option<OwnedFd>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // The one way in which this fails is that the group is gone.
            let _ = rustix::io::pwrite(file, b"0", 0);
        }
    }
}

/// Freezes a v2 group and all below it; `None` when it does not stand still in time.
pub(crate) fn freeze(dir: &Dir, timeout: Duration) -> Result<Option<Frozen>> {
    let failed = |action, error| Error::io(action, dir.file_path(FILE), error);
    let file = match dir.open_file(FILE, OFlags::WRONLY) {
        Ok(file) => file,
        Err(e) if is_gone_io(&e) && dir.read_if_there("cgroup.events")?.is_none() => {
            return Ok(Some(Frozen { file: None }));
        }
        Err(e) => return Err(failed("open", e)),
    };
    let asked = rustix::io::pwrite(&file, b"1", 0);
    // From here on whatever happens thaws.
    let frozen = Frozen { file: Some(file) };
    match asked {
        Err(e) if !is_gone(e) => Err(failed("freeze", e.into())),
        _ => Ok(events::wait_frozen(dir, timeout)?.then_some(frozen)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(events: &str) -> (tempfile::TempDir, Dir) {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join(FILE), "0").unwrap();
        std::fs::write(place.path().join("cgroup.events"), events).unwrap();
        let dir = Dir::open_mount(place.path()).unwrap();
        (place, dir)
    }

    #[test]
    fn a_group_that_does_not_stand_still_in_time_is_let_go_on() {
        let (place, dir) = group("populated 1\nfrozen 0\n");
        assert!(freeze(&dir, Duration::from_millis(5)).unwrap().is_none());
        assert_eq!(std::fs::read_to_string(place.path().join(FILE)).unwrap(), "0");
    }

    #[test]
    fn a_failure_while_it_is_waited_for_lets_the_group_go_on() {
        let (place, dir) = group("populated 1\n");
        assert!(freeze(&dir, Duration::from_secs(30)).is_err());
        assert_eq!(std::fs::read_to_string(place.path().join(FILE)).unwrap(), "0");
    }

    #[test]
    fn a_group_that_stands_still_does_so_for_as_long_as_the_guard_lives() {
        let (place, dir) = group("populated 1\nfrozen 1\n");
        let frozen = freeze(&dir, Duration::from_secs(30)).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(place.path().join(FILE)).unwrap(), "1");
        drop(frozen);
        assert_eq!(std::fs::read_to_string(place.path().join(FILE)).unwrap(), "0");
    }
}
