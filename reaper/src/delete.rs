//! Deletes a tree that an agent may have written: any names, any modes, any depth.
//!
//! Every step is relative to a directory that is held open and was entered without following a link
//! and without crossing a mount. The walk keeps a bounded number of descriptors and of names, also
//! for a tree of ten thousand levels: levels far above the current one are let go and entered again
//! through `..`, where device and inode must be those that were seen on the way down.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::state::{DIR_FLAGS, RESOLVE, file_type};
use crate::{Error, Result};

/// Levels that are held open at once.
const OPEN_MAX: usize = 64;
/// Names of sub-directories kept per open level.
const NAMES_MAX: usize = 256;
/// How often in one walk a directory may turn out not to be empty after all. Only a live process or
/// a file system that loses its place in a listing can cause it; neither goes on for ever.
const AGAIN_MAX: u32 = 64;
/// Path of an error message: a tree of ten thousand levels has paths nobody can read.
const PATH_LEVELS_MAX: usize = 32;

/// What a removal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Entries removed; 0 means that nothing was there.
    pub entries: u64,
}

/// Identity of a directory.
type Id = (u64, u64);

struct Level {
    name: OsString,
    id: Id,
    /// `None` while it is let go.
    fd: Option<OwnedFd>,
    /// Sub-directories still to be removed; what is not here is found by the next listing.
    names: Vec<OsString>,
}

/// What a listing left in a level.
enum Listed {
    Empty,
    Subdirectories,
}

/// Removes an entry with everything below it.
///
/// # Errors
/// [`Error::MountBelow`] and [`Error::Changed`], where what was not reached is untouched.
pub(crate) fn remove(parent: BorrowedFd<'_>, path: &Path, name: &OsStr) -> Result<Removed> {
    let mut walk = Walk { parent, path, levels: VecDeque::new(), open: 0, again: 0, removed: 0 };
    walk.run(name)?;
    Ok(Removed { entries: walk.removed })
}

struct Walk<'a> {
    parent: BorrowedFd<'a>,
    path: &'a Path,
    levels: VecDeque<Level>,
    /// How many of the last levels are open.
    open: usize,
    again: u32,
    removed: u64,
}

impl Walk<'_> {
    fn run(&mut self, name: &OsStr) -> Result<()> {
        match file_type(self.parent, name, self.path)? {
            None => return Ok(()),
            Some(FileType::Directory) => {}
            Some(_) => {
                self.unlink(name)?;
                return match file_type(self.parent, name, self.path)? {
                    None => Ok(()),
                    Some(_) => Err(Error::Changed { path: self.shown(name) }),
                };
            }
        }
        self.descend(name)?;
        while let Some(level) = self.levels.back_mut() {
            if let Some(name) = level.names.pop() {
                self.descend(&name)?;
            } else if matches!(self.list()?, Listed::Empty) {
                self.ascend()?;
            }
        }
        Ok(())
    }

    /// The innermost open directory, or the one the walk started from.
    fn here(&self) -> BorrowedFd<'_> {
        let open = self.levels.back().and_then(|level| level.fd.as_ref());
        open.map_or(self.parent, |fd| fd.as_fd())
    }

    /// Enters a sub-directory of the innermost one.
    fn descend(&mut self, name: &OsStr) -> Result<()> {
        let fd = match self.enter(name) {
            Err(Errno::NOENT) => return Ok(()),
            // It was replaced by something else since it was listed.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.unlink(name),
            Err(Errno::XDEV) => return Err(Error::MountBelow { path: self.shown(name) }),
            Err(e) => return Err(Error::io("enter", self.shown(name), e)),
            Ok(fd) => fd,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| Error::io("stat", self.shown(name), e))?;
        if !Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU) {
            // Where it is not ours, what follows fails and says so.
            let _ = rustix::fs::fchmod(&fd, Mode::RWXU);
        }
        let id = (stat.st_dev, stat.st_ino);
        let level = Level { name: name.to_owned(), id, fd: Some(fd), names: Vec::new() };
        self.levels.push_back(level);
        self.open += 1;
        self.let_go();
        Ok(())
    }

    /// Opens a directory; one of ours without the modes for it is given them first.
    fn enter(&self, name: &OsStr) -> rustix::io::Result<OwnedFd> {
        let open = |flags| rustix::fs::openat2(self.here(), name, flags, Mode::empty(), RESOLVE);
        match open(DIR_FLAGS) {
            Err(Errno::ACCESS) => {}
            other => return other,
        }
        // A descriptor that only names the directory, so that no link can be put in its place.
        let named = open(OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        let by_descriptor = format!("/proc/self/fd/{}", named.as_raw_fd());
        rustix::fs::chmod(by_descriptor, Mode::RWXU)?;
        open(DIR_FLAGS)
    }

    /// Closes the outermost open level when too many are open. The innermost stays.
    fn let_go(&mut self) {
        if self.open > OPEN_MAX {
            let outermost = self.levels.len() - self.open;
            if let Some(level) = self.levels.get_mut(outermost) {
                level.fd = None;
                level.names = Vec::new();
                self.open -= 1;
            }
        }
    }

    /// Removes all files of the innermost level and notes some of its sub-directories.
    fn list(&mut self) -> Result<Listed> {
        let failed = |walk: &Self, e| Error::io("list", walk.shown(OsStr::new("")), e);
        let listing = rustix::fs::Dir::read_from(self.here()).map_err(|e| failed(self, e))?;
        let mut names = Vec::new();
        for entry in listing {
            let entry = entry.map_err(|e| failed(self, e))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let known = match entry.file_type() {
                FileType::Unknown => file_type(self.here(), name, &self.shown(OsStr::new("")))?,
                known => Some(known),
            };
            match known {
                None => {}
                Some(FileType::Directory) if names.len() < NAMES_MAX => {
                    names.push(name.to_owned());
                }
                Some(FileType::Directory) => {}
                Some(_) => self.unlink(name)?,
            }
        }
        let listed = if names.is_empty() { Listed::Empty } else { Listed::Subdirectories };
        if let Some(level) = self.levels.back_mut() {
            level.names = names;
        }
        Ok(listed)
    }

    /// Removes the innermost level, which is empty, and goes back to the one above it.
    fn ascend(&mut self) -> Result<()> {
        let Some(done) = self.levels.pop_back() else { return Ok(()) };
        self.open = self.open.saturating_sub(1);
        if let Some(above) = self.levels.back_mut()
            && above.fd.is_none()
        {
            let again = done.fd.as_ref().map(|fd| reopen_parent(fd, above.id));
            match again {
                Some(Ok(fd)) => above.fd = Some(fd),
                _ => return Err(Error::Changed { path: self.shown(&done.name) }),
            }
            self.open = 1;
        }
        let name = done.name;
        match self.take(&name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) if self.again < AGAIN_MAX => {
                self.again += 1;
                self.descend(&name)
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Error::Changed { path: self.shown(&name) }),
            Err(e) => Err(self.failed(&name, e)),
        }
    }

    fn unlink(&mut self, name: &OsStr) -> Result<()> {
        match self.take(name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            // It was replaced by a directory: the next listing finds that.
            Err(Errno::ISDIR) => Ok(()),
            Err(e) => Err(self.failed(name, e)),
        }
    }

    /// Takes an entry out of the innermost directory; one that is gone is taken.
    fn take(&mut self, name: &OsStr, flags: AtFlags) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(self.here(), name, flags) {
            Ok(()) => {
                self.removed += 1;
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn failed(&self, name: &OsStr, errno: Errno) -> Error {
        let path = self.shown(name);
        match errno {
            Errno::BUSY | Errno::XDEV => Error::MountBelow { path },
            e => Error::io("remove", path, e),
        }
    }

    /// Path of an entry of the innermost level, shortened in the middle.
    fn shown(&self, name: &OsStr) -> PathBuf {
        let mut path = self.path.to_owned();
        let skipped = self.levels.len().saturating_sub(PATH_LEVELS_MAX);
        path.extend(self.levels.iter().take(PATH_LEVELS_MAX / 2).map(|level| &level.name));
        if skipped > 0 {
            path.push("…");
        }
        let tail = (PATH_LEVELS_MAX / 2).max(self.levels.len().saturating_sub(PATH_LEVELS_MAX / 2));
        path.extend(self.levels.iter().skip(tail).map(|level| &level.name));
        path.push(name);
        path
    }
}

fn id_of(fd: &OwnedFd) -> rustix::io::Result<Id> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Enters the directory above one that is held, if it still is the known one.
fn reopen_parent(child: &OwnedFd, known: Id) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::openat(child, "..", DIR_FLAGS, Mode::empty())?;
    if id_of(&fd)? == known { Ok(fd) } else { Err(Errno::XDEV) }
}
