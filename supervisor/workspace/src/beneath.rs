//! Files read beneath one directory: never through a symbolic link, never onto another filesystem.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use atenea_core::Refusal;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::fail::{at, at_path};
use crate::path::{join, split};

/// Nothing outside the directory can be named.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The longest path below a workspace; the kernel's own bound for one call.
pub(crate) const PATH_MAX: usize = 4_095;
/// The deepest directory that is walked: one descriptor is open per level.
pub(crate) const DEPTH_MAX: usize = 200;

/// The most names of one directory: they are sorted in memory.
const NAMES_MAX: usize = 4_000_000;

/// A directory that is held open.
pub(crate) struct Tree {
    root: OwnedFd,
    parent: Vec<u8>,
    parent_fd: Option<OwnedFd>,
}

/// What a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Link,
    Dir,
    Special,
}

pub(crate) fn kind_of(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Link,
        FileType::Directory => Kind::Dir,
        _ => Kind::Special,
    }
}

/// The size of a file; the kernel never reports a negative one.
pub(crate) fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Bytes of content that something claims to have; a sparse file claims what no disk holds.
pub(crate) fn claimed(stat: &Stat) -> u64 {
    if kind_of(stat) == Kind::File { size_of(stat) } else { 0 }
}

/// Nanoseconds since 1970 of a time stamp.
pub(crate) fn nanos(seconds: i64, nanos: impl Into<i128>) -> i128 {
    i128::from(seconds) * 1_000_000_000 + nanos.into()
}

pub(crate) fn mtime(stat: &Stat) -> i128 {
    nanos(stat.st_mtime, stat.st_mtime_nsec)
}

pub(crate) fn ctime(stat: &Stat) -> i128 {
    nanos(stat.st_ctime, stat.st_ctime_nsec)
}

/// Opens a directory that may not be a symbolic link itself.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(at_path("opening", path))
}

/// Opens a directory one level below another.
pub(crate) fn open_dir_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, name, flags, Mode::empty(), RESOLVE)
}

/// Names of a directory, in byte order.
pub(crate) fn names(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            if names.len() >= NAMES_MAX {
                return Err(Errno::OVERFLOW);
            }
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A name without following it.
pub(crate) fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

impl Tree {
    pub(crate) fn open(path: &Path) -> Result<Self, Refusal> {
        Ok(Tree { root: open_dir(path)?, parent: Vec::new(), parent_fd: None })
    }

    /// The same directory with a descriptor of its own.
    pub(crate) fn duplicate(&self) -> Result<Self, Refusal> {
        let root = self.root.try_clone().map_err(at("holding", b"."))?;
        Ok(Tree { root, parent: Vec::new(), parent_fd: None })
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The directory of a path; paths in order open each directory once.
    fn dir(&mut self, dir: &[u8]) -> Result<BorrowedFd<'_>, Errno> {
        if dir.is_empty() {
            return Ok(self.root.as_fd());
        }
        if self.parent_fd.is_none() || self.parent != dir {
            self.parent_fd = Some(open_dir_at(self.root.as_fd(), dir)?);
            self.parent = dir.to_vec();
        }
        Ok(self.parent_fd.as_ref().map_or_else(|| self.root.as_fd(), AsFd::as_fd))
    }

    /// What a path is; `None` when it does not exist or lies behind a symbolic link.
    pub(crate) fn stat(&mut self, path: &[u8]) -> Result<Option<Stat>, Refusal> {
        let (dir, name) = split(path);
        match self.dir(dir).and_then(|fd| stat_at(fd, name)) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(at("reading", path)(error)),
        }
    }

    /// Opens a regular file for reading. The caller checks what it got.
    pub(crate) fn open_file(&mut self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let (dir, name) = split(path);
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat2(self.dir(dir)?, name, flags, Mode::empty(), RESOLVE)
    }

    /// The target of a symbolic link.
    pub(crate) fn link(&mut self, path: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (dir, name) = split(path);
        self.dir(dir)
            .and_then(|fd| rustix::fs::readlinkat(fd, name, Vec::new()))
            .map(std::ffi::CString::into_bytes)
            .map_err(at("reading the link", path))
    }
}

/// One thing met on a walk.
pub(crate) struct Met<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) stat: Stat,
    pub(crate) kind: Kind,
    /// Why a directory could not be entered.
    pub(crate) closed: Option<Errno>,
}

/// What to do with a directory that was met.
#[derive(PartialEq, Eq)]
pub(crate) enum Step {
    Enter,
    Skip,
}

/// Walks everything below `dir` in byte order of the names, and never leaves its filesystem. A
/// directory is met twice when it cannot be entered: the second time with the reason.
pub(crate) fn walk(
    dir: BorrowedFd<'_>,
    prefix: &[u8],
    meet: &mut dyn FnMut(&Met<'_>) -> Result<Step, Refusal>,
) -> Result<(), Refusal> {
    descend(dir, prefix, 0, meet)
}

fn descend(
    dir: BorrowedFd<'_>,
    prefix: &[u8],
    depth: usize,
    meet: &mut dyn FnMut(&Met<'_>) -> Result<Step, Refusal>,
) -> Result<(), Refusal> {
    for name in names(dir).map_err(at("listing", prefix))? {
        let path = join(prefix, &name);
        let stat = match stat_at(dir, &name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(at("reading", &path)(error)),
        };
        let kind = kind_of(&stat);
        let met = Met { path: &path, stat, kind, closed: None };
        if meet(&met)? == Step::Skip || kind != Kind::Dir {
            continue;
        }
        let opened = if depth >= DEPTH_MAX || path.len() > PATH_MAX {
            Err(Errno::NAMETOOLONG)
        } else {
            open_dir_at(dir, &name)
        };
        match opened {
            Ok(fd) => descend(fd.as_fd(), &path, depth + 1, meet)?,
            Err(error) => {
                meet(&Met { closed: Some(error), ..met })?;
            }
        }
    }
    Ok(())
}
