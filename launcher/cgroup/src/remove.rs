//! Removal of groups, leaf first, and of what is inside them against expectation.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::dir::{Dir, is_gone};
use crate::events::pause;
use crate::group::Member;
use crate::{Error, Result};

/// 1 + 2 + … + 512 ms: about a second in all.
const TRIES_MAX: u32 = 11;
/// A run cannot make groups; after an escape it may have made some. Above this it is for a person.
const SUBGROUPS_MAX: usize = 4096;
const SUBGROUP_DEPTH_MAX: usize = 64;
/// Descriptors held at once while processes are ended one by one.
const PIDFDS_MAX: usize = 64;

/// Removes the directories of a run in the given order reversed, so that the v2 directory, by which
/// the rest can be killed, is there until all others are gone.
pub(crate) fn remove(members: &[Member]) -> Result<()> {
    for member in members.iter().rev() {
        remove_member(member)?;
    }
    Ok(())
}

fn remove_member(member: &Member) -> Result<()> {
    for attempt in 0..TRIES_MAX {
        if try_remove(member)? {
            return Ok(());
        }
        if attempt + 1 < TRIES_MAX {
            pause(Duration::from_millis(1 << attempt));
        }
    }
    let path = member.dir.path().to_owned();
    Err(Error::Busy { path, tries: TRIES_MAX, pids: procs_of_tree(&member.dir)? })
}

/// One try; `false`: something is still busy.
fn try_remove(member: &Member) -> Result<bool> {
    let path = member.dir.path();
    let name = path.file_name().unwrap_or_default();
    match member.parent.ino_of(name)? {
        None => return Ok(true),
        Some(found) if found != member.dir.ino() => {
            let expected = member.dir.ino();
            return Err(Error::Replaced { path: path.to_owned(), expected, found });
        }
        Some(_) => {}
    }
    for sub in subgroups(&member.dir)?.iter().rev() {
        let parent = sub.parent().unwrap_or(Path::new(""));
        let name = sub.file_name().unwrap_or_default();
        let Some(parent) = member.dir.open_below(parent)? else { continue };
        if !rmdir(&parent, name)? {
            return Ok(false);
        }
    }
    rmdir(&member.parent, name)
}

fn rmdir(parent: &Dir, name: &OsStr) -> Result<bool> {
    match parent.rmdir(name) {
        Ok(()) => Ok(true),
        Err(e) if is_gone(e) => Ok(true),
        Err(Errno::BUSY | Errno::NOTEMPTY) => Ok(false),
        Err(e) => Err(Error::io("remove", parent.path().join(name), e)),
    }
}

/// Groups below a group, parents before their children; one that vanishes meanwhile is left out.
fn subgroups(dir: &Dir) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(relative) = todo.pop() {
        let Some(here) = dir.open_below(&relative)? else { continue };
        for name in here.children()? {
            let child = relative.join(name);
            let depth = child.components().count();
            if depth > SUBGROUP_DEPTH_MAX || found.len() >= SUBGROUPS_MAX {
                let bound = SUBGROUPS_MAX;
                return Err(Error::TooMany { path: dir.path().to_owned(), bound });
            }
            found.push(child.clone());
            todo.push(child);
        }
    }
    Ok(found)
}

/// Process ids in a group and its sub-groups.
pub(crate) fn procs_of_tree(dir: &Dir) -> Result<Vec<u32>> {
    let mut pids = dir.procs()?;
    for sub in subgroups(dir)? {
        if let Some(sub) = dir.open_below(&sub)? {
            pids.extend(sub.procs()?);
        }
    }
    Ok(pids)
}

/// Descriptors of processes, as many as may be held at once; those that are gone are left out.
pub(crate) fn pidfds(pids: &[u32]) -> Result<Vec<(u32, OwnedFd)>> {
    let mut open = Vec::new();
    for &pid in pids.iter().take(PIDFDS_MAX) {
        let Some(known) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        match pidfd_open(known, PidfdFlags::empty()) {
            Ok(fd) => open.push((pid, fd)),
            Err(Errno::SRCH | Errno::INVAL) => {}
            // Those that are open are a start; the caller comes again for the rest.
            Err(Errno::MFILE | Errno::NFILE) if !open.is_empty() => break,
            Err(e) => return Err(Error::io("open process", pid.to_string(), e)),
        }
    }
    Ok(open)
}

/// Ends processes that are in a v1 group, where there is no `cgroup.kill`.
///
/// A process is signalled through a descriptor that was opened before its number was seen in the
/// group a second time: if the descriptor's process lives, it is the one that is listed.
pub(crate) fn kill_strays(dir: &Dir) -> Result<()> {
    let listed = procs_of_tree(dir)?;
    if listed.is_empty() {
        return Ok(());
    }
    let open = pidfds(&listed)?;
    let still = procs_of_tree(dir)?;
    for (pid, fd) in open.iter().filter(|(pid, _)| still.contains(pid)) {
        match pidfd_send_signal(fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(Error::io("kill process", pid.to_string(), e)),
        }
    }
    Ok(())
}
