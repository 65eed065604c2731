//! Directories that are being filled, and the removal of those that never were.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use atenea_core::Refusal;
use rustix::fs::{AtFlags, FlockOperation, Mode as Permissions};
use rustix::io::Errno;

use crate::beneath::{Kind, kind_of, names, open_dir, open_dir_at, stat_at};
use crate::fail::at_path;
use crate::ids::random_name;

/// A directory that is locked while it is being filled, and removed when it was not published.
pub(crate) struct Staging {
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
    pub(crate) moved: bool,
}

/// Tries before giving up to find a free name: a sweep may take a directory between its making and
/// its lock.
const NAME_TRIES: usize = 8;

impl Staging {
    pub(crate) fn new(cache: &Path) -> Result<Self, Refusal> {
        for _ in 0..NAME_TRIES {
            let path = cache.join("staging").join(random_name("s-")?);
            std::fs::create_dir(&path).map_err(at_path("making", &path))?;
            let Ok(fd) = open_dir(&path) else { continue };
            let locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
            let there = rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_nlink > 0);
            if locked && there {
                return Ok(Staging { path, fd, moved: false });
            }
        }
        Err(crate::fail::io("no staging directory could be kept"))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.moved {
            // What cannot be removed now is found by the next sweep.
            let _ = remove_tree(&self.path);
        }
    }
}

/// Removes trees that were never finished: those whose maker holds no lock any more. Gives their
/// number. It may run beside workers; recovery, which runs beside none, removes whatever lies there.
///
/// # Errors
/// `fs.io` and the like when the staging directory cannot be read.
pub fn sweep_staging(cache: &Path) -> Result<u64, Refusal> {
    let dir = cache.join("staging");
    if !dir.exists() {
        return Ok(0);
    }
    let mut removed = 0;
    let staging = open_dir(&dir)?;
    for name in names(staging.as_fd()).map_err(at_path("listing", &dir))? {
        let Ok(fd) = open_dir_at(staging.as_fd(), &name) else { continue };
        if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_tree(&dir.join(crate::path::os(&name)))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes a tree of ours, also when its directories are read-only.
pub(crate) fn remove_tree(path: &Path) -> Result<(), Refusal> {
    use std::os::unix::ffi::OsStrExt;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(crate::fail::io("the root directory is not removed"));
    };
    let parent = open_dir(parent)?;
    remove_at(parent.as_fd(), name.as_bytes()).map_err(at_path("removing", path))
}

/// Levels that are held open at once; what lies deeper is moved up first.
const OPEN_MAX: usize = 32;

fn remove_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if kind_of(&stat_at(parent, name)?) != Kind::Dir {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty());
    }
    let top = open_to_empty(parent, name)?;
    let mut emptying = Emptying { top: top.as_fd(), moved: 0 };
    loop {
        let before = emptying.moved;
        emptying.empty(top.as_fd(), 1)?;
        if emptying.moved == before {
            return rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
    }
}

/// Opens a directory of ours that may be read-only.
fn open_to_empty(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = open_dir_at(dir, name)?;
    rustix::fs::fchmod(&fd, Permissions::from_raw_mode(0o700))?;
    Ok(fd)
}

/// A tree that is being removed. A path of a repository has up to two thousand levels, more than
/// there are descriptors: deep directories come to the top, which is listed again.
struct Emptying<'a> {
    top: BorrowedFd<'a>,
    /// How many came to the top.
    moved: u64,
}

impl Emptying<'_> {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        for name in names(dir)? {
            if kind_of(&stat_at(dir, &name)?) != Kind::Dir {
                rustix::fs::unlinkat(dir, name.as_slice(), AtFlags::empty())?;
                continue;
            }
            let below = open_to_empty(dir, &name)?;
            if depth < OPEN_MAX {
                self.empty(below.as_fd(), depth + 1)?;
                rustix::fs::unlinkat(dir, name.as_slice(), AtFlags::REMOVEDIR)?;
            } else {
                self.move_up(dir, &name)?;
            }
        }
        Ok(())
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            let to = format!("atenea-{}", self.moved);
            match rustix::fs::renameat(dir, name, self.top, to) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
                done => return done,
            }
        }
    }
}

/// Makes a private directory and its parents.
pub(crate) fn make_dirs(path: &Path) -> Result<(), Refusal> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(at_path("making", path))
}
