//! Deletes a tree that an agent may have written: any names, any modes, any depth, any width.
//!
//! Every step is relative to a directory that is held open and was entered without following a link
//! and without crossing a mount. Work is linear in entries, and descriptors and memory are bounded:
//! each level is listed by one stream that stays open, and a directory that lies deeper than
//! [`OPEN_MAX`] levels is moved into a heap of ours at the top of the tree, which comes last. So every
//! directory is entered once and moved at most once, no directory is listed twice, and `..`, which
//! another process could make to lead elsewhere, is never followed.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::state::{DIR_FLAGS, RESOLVE, file_type};
use crate::{Error, Result};

/// Levels that are held open at once; each has a descriptor of its own and one of its listing.
const OPEN_MAX: usize = 32;
/// How often in one walk a directory may turn out not to be empty after all. Only a live process or
/// a file system that loses its place in a listing can cause it; neither goes on for ever.
const AGAIN_MAX: u32 = 64;

/// What a removal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Entries removed; 0 means that nothing was there.
    pub entries: u64,
}

struct Level {
    name: OsString,
    fd: OwnedFd,
    entries: Dir,
}

/// Removes an entry with everything below it.
///
/// # Errors
/// [`Error::MountBelow`] and [`Error::Changed`], where what was not reached is untouched, although it
/// may lie nearer to the top of the tree now.
pub(crate) fn remove(parent: BorrowedFd<'_>, path: &Path, name: &OsStr) -> Result<Removed> {
    let mut walk = Walk::new(parent, path);
    walk.run(name)?;
    Ok(Removed { entries: walk.removed.saturating_sub(walk.heaps) })
}

struct Walk<'a> {
    parent: BorrowedFd<'a>,
    path: &'a Path,
    levels: Vec<Level>,
    again: u32,
    removed: u64,
    /// Directories that were entered and names that were listed: what a tree costs.
    entered: u64,
    listed: u64,
    /// Heaps that were made; they are not counted as removed.
    heaps: u64,
    /// Number of the next name of ours.
    next: u64,
    /// Where deep directories are moved to: a directory at the top of the tree.
    heap: Option<(String, OwnedFd)>,
}

impl<'a> Walk<'a> {
    fn new(parent: BorrowedFd<'a>, path: &'a Path) -> Self {
        Walk {
            parent,
            path,
            levels: Vec::new(),
            again: 0,
            removed: 0,
            entered: 0,
            listed: 0,
            heaps: 0,
            next: 0,
            heap: None,
        }
    }

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
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next() {
                None => self.ascend()?,
                Some(Err(e)) => return Err(Error::io("list", self.shown(OsStr::new("")), e)),
                Some(Ok(entry)) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if name != "." && name != ".." {
                        self.listed += 1;
                        self.entry(name, entry.file_type())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &OsStr, listed: FileType) -> Result<()> {
        let known = match listed {
            FileType::Unknown => file_type(self.here(), name, &self.shown(OsStr::new("")))?,
            known => Some(known),
        };
        match known {
            None => Ok(()),
            Some(FileType::Directory) if self.levels.len() >= OPEN_MAX => self.move_up(name),
            Some(FileType::Directory) => self.descend(name),
            Some(_) => self.unlink(name),
        }
    }

    /// The innermost directory, or the one the walk started from.
    fn here(&self) -> BorrowedFd<'_> {
        self.levels.last().map_or(self.parent, |level| level.fd.as_fd())
    }

    /// Enters a sub-directory of the innermost one.
    fn descend(&mut self, name: &OsStr) -> Result<()> {
        let Some(fd) = self.enter(name)? else { return Ok(()) };
        let entries = Dir::read_from(&fd).map_err(|e| Error::io("list", self.shown(name), e))?;
        self.entered += 1;
        self.levels.push(Level { name: name.to_owned(), fd, entries });
        Ok(())
    }

    /// Opens a sub-directory and gives it the modes that emptying it needs. `None`: it is gone.
    fn enter(&mut self, name: &OsStr) -> Result<Option<OwnedFd>> {
        let fd = match self.open(name) {
            Err(Errno::NOENT) => return Ok(None),
            // It was replaced by something else since it was listed.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.unlink(name).map(|()| None),
            Err(Errno::XDEV) => return Err(Error::MountBelow { path: self.shown(name) }),
            Err(e) => return Err(Error::io("enter", self.shown(name), e)),
            Ok(fd) => fd,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| Error::io("stat", self.shown(name), e))?;
        if !Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU) {
            // Where it is not ours, what follows fails and says so.
            let _ = rustix::fs::fchmod(&fd, Mode::RWXU);
        }
        Ok(Some(fd))
    }

    /// Opens a directory; one of ours without the modes for it is given them first.
    fn open(&self, name: &OsStr) -> rustix::io::Result<OwnedFd> {
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

    /// Moves a sub-directory of the innermost level into the heap. A rename can only replace an empty
    /// directory there, which would be to be removed as well.
    fn move_up(&mut self, name: &OsStr) -> Result<()> {
        // Its `..` changes, so it must be writable for its owner; and a mount is found here.
        if self.enter(name)?.is_none() {
            return Ok(());
        }
        loop {
            let to = self.new_name();
            self.make_heap(name)?;
            let heap = self.heap.as_ref().map_or(self.parent, |(_, fd)| fd.as_fd());
            match rustix::fs::renameat(self.here(), name, heap, &to) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // Nobody but a live process puts anything there.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR)
                    if self.again < AGAIN_MAX =>
                {
                    self.again += 1;
                }
                Err(e) => return Err(self.failed(name, e)),
            }
        }
    }

    fn new_name(&mut self) -> String {
        let name = format!("atenea-{}", self.next);
        self.next += 1;
        name
    }

    /// Makes the heap when it is not there. `name` is for messages.
    fn make_heap(&mut self, name: &OsStr) -> Result<()> {
        while self.heap.is_none() {
            let heap = self.new_name();
            let top = self.levels.first().map_or(self.parent, |level| level.fd.as_fd());
            match rustix::fs::mkdirat(top, &heap, Mode::RWXU) {
                Ok(()) => {}
                // A name of the agent's own. Each is met once, so this stays linear.
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(self.failed(name, e)),
            }
            self.heaps += 1;
            let fd = rustix::fs::openat2(top, &heap, DIR_FLAGS, Mode::empty(), RESOLVE)
                .map_err(|e| Error::io("enter", self.path.join(&heap), e))?;
            self.heap = Some((heap, fd));
        }
        Ok(())
    }

    /// Removes the innermost level, which is empty, and goes back to the one above it.
    fn ascend(&mut self) -> Result<()> {
        if self.levels.len() == 1
            && let Some((heap, _)) = self.heap.take()
        {
            // What is too deep in there goes to a new heap.
            return self.descend(OsStr::new(&heap));
        }
        let Some(done) = self.levels.pop() else { return Ok(()) };
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

    /// Path of an entry of the innermost level, as far as it was not moved.
    fn shown(&self, name: &OsStr) -> PathBuf {
        let mut path = self.path.to_owned();
        path.extend(self.levels.iter().map(|level| &level.name));
        path.push(name);
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_top(top: &Path) -> OwnedFd {
        rustix::fs::open(top, DIR_FLAGS, Mode::empty()).unwrap()
    }

    /// Adds a chain of directories below `from`, each with a file; gives the number of entries.
    fn chain(from: &OwnedFd, name: &[u8], levels: u64) -> u64 {
        let name = OsStr::from_bytes(name);
        let mut here = rustix::io::fcntl_dupfd_cloexec(from, 3).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
            here = rustix::fs::openat(&here, name, DIR_FLAGS, Mode::empty()).unwrap();
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&here, "f", flags, Mode::RUSR).unwrap();
        }
        2 * levels
    }

    /// Removes `dir/ws`; gives entries removed and directories entered.
    fn cost(dir: &Path) -> (u64, u64) {
        let parent = open_top(dir);
        let mut walk = Walk::new(parent.as_fd(), dir);
        walk.run(OsStr::new("ws")).unwrap();
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
        // A moved directory is listed where it was and in the heap.
        assert!(walk.listed <= 2 * walk.removed, "{} names listed", walk.listed);
        // Heaps hold many directories each, unless the tree is a chain.
        assert!(walk.heaps <= walk.entered / (OPEN_MAX as u64 - 2) + 1);
        (walk.removed - walk.heaps, walk.entered - walk.heaps)
    }

    fn workspace() -> (tempfile::TempDir, OwnedFd) {
        // In memory: a disk spends milliseconds on each directory, whoever removes it.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        let ws = open_top(&dir.path().join("ws"));
        (dir, ws)
    }

    #[test]
    fn every_directory_of_a_chain_is_entered_once_however_deep_it_is() {
        for levels in [OPEN_MAX as u64 - 1, OPEN_MAX as u64, 2_000, 8_000] {
            let (dir, ws) = workspace();
            let entries = chain(&ws, b"d", levels) + 1;
            assert_eq!(cost(dir.path()), (entries, levels + 1));
        }
    }

    #[test]
    fn a_hundred_levels_of_the_longest_names_are_removed() {
        let (dir, ws) = workspace();
        let entries = chain(&ws, &[b'n'; 255], 100) + 1;
        assert_eq!(cost(dir.path()), (entries, 101));
    }

    #[test]
    fn a_wide_directory_of_deep_chains_is_listed_once_and_not_once_for_each_chain() {
        // What was quadratic: going back up to a wide directory that was let go listed it again.
        let (dir, ws) = workspace();
        let (width, levels) = (600, 80);
        let mut entries = 1;
        for n in 0..width {
            let name = format!("w{n}");
            rustix::fs::mkdirat(&ws, &name, Mode::RWXU).unwrap();
            let below = rustix::fs::openat(&ws, &name, DIR_FLAGS, Mode::empty()).unwrap();
            entries += 1 + chain(&below, b"d", levels);
        }
        assert_eq!(cost(dir.path()), (entries, 1 + width * (levels + 1)));
    }

    #[test]
    fn names_of_the_agent_at_the_top_are_in_nobodys_way() {
        let (dir, ws) = workspace();
        let mut entries = chain(&ws, b"d", 200) + 1;
        for n in 0..8 {
            let name = dir.path().join("ws").join(format!("atenea-{n}"));
            match n % 4 {
                0 => std::fs::write(&name, "x").unwrap(),
                1 => std::os::unix::fs::symlink("/", &name).unwrap(),
                2 => std::fs::create_dir(&name).unwrap(),
                _ => {
                    std::fs::create_dir(&name).unwrap();
                    std::fs::write(name.join("x"), "x").unwrap();
                    entries += 1;
                }
            }
            entries += 1;
        }
        assert_eq!(cost(dir.path()).0, entries);
    }

    #[test]
    fn a_directory_without_modes_below_the_bound_is_moved_and_removed() {
        let (dir, ws) = workspace();
        chain(&ws, b"d", OPEN_MAX as u64 + 3);
        let mut deep = dir.path().join("ws");
        for _ in 0..=OPEN_MAX {
            deep.push("d");
        }
        let locked = std::os::unix::fs::PermissionsExt::from_mode(0o0);
        std::fs::set_permissions(&deep, locked).unwrap();
        cost(dir.path());
    }
}
