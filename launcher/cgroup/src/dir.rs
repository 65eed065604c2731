//! A directory of a cgroup tree that is held open: everything is done relative to it, so that a
//! directory of the same name that was made later is never touched by mistake.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::{Error, Result};

/// Largest control file that is read. `cgroup.procs` of a run is bounded by its pids limit, and
/// that of the directory the supervisor started in by the machine.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// An open directory and where it was found.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    ino: u64,
}

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Dir {
    fn from_fd(fd: OwnedFd, path: PathBuf) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(|e| Error::io("stat", &path, e))?;
        Ok(Dir { fd, path, ino: stat.st_ino })
    }

    /// Opens a mount point; the only place where a path is resolved from the root.
    pub(crate) fn open_mount(path: &Path) -> Result<Self> {
        let fd = rustix::fs::open(path, DIR_FLAGS, Mode::empty())
            .map_err(|e| Error::io("open", path, e))?;
        Dir::from_fd(fd, path.to_owned())
    }

    /// Opens what lies below, any number of levels. `None`: it is not there.
    pub(crate) fn open_below(&self, relative: &Path) -> Result<Option<Self>> {
        let path = self.path.join(relative);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.fd, relative, DIR_FLAGS, Mode::empty(), resolve) {
            Ok(fd) => Dir::from_fd(fd, path).map(Some),
            Err(e) if is_gone(e) => Ok(None),
            Err(e) => Err(Error::io("open", path, e)),
        }
    }

    /// Opens what lies below; its absence is an error.
    pub(crate) fn require_below(&self, relative: &Path) -> Result<Self> {
        self.open_below(relative)?
            .ok_or_else(|| Error::io("open", self.path.join(relative), Errno::NOENT))
    }

    /// Makes a directory. `false`: there was one.
    pub(crate) fn make(&self, name: &str) -> Result<bool> {
        let path = self.path.join(name);
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                Err(Error::NotWritable { path, source: e.into() })
            }
            Err(e) => Err(Error::io("make", path, e)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }

    pub(crate) fn file_path(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    /// Inode of an entry, `None` when there is no such entry.
    pub(crate) fn ino_of(&self, name: impl AsRef<OsStr>) -> Result<Option<u64>> {
        let name = name.as_ref();
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.st_ino)),
            Err(e) if is_gone(e) => Ok(None),
            Err(e) => Err(Error::io("stat", self.path.join(name), e)),
        }
    }

    pub(crate) fn has(&self, file: &str) -> Result<bool> {
        Ok(self.ino_of(file)?.is_some())
    }

    /// Opens a control file with exactly these flags; never creates one.
    pub(crate) fn open_file(&self, file: &str, access: OFlags) -> io::Result<OwnedFd> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, file, flags, Mode::empty())?)
    }

    /// Reads a control file that must be there.
    pub(crate) fn read(&self, file: &str) -> Result<String> {
        let read = || -> io::Result<String> {
            let fd = self.open_file(file, OFlags::RDONLY)?;
            let mut text = String::new();
            std::fs::File::from(fd).take(FILE_BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        };
        read().map_err(|e| Error::io("read", self.file_path(file), e))
    }

    /// Reads a control file, `None` when it (or the whole group) is gone.
    pub(crate) fn read_if_there(&self, file: &str) -> Result<Option<String>> {
        match self.read(file) {
            Ok(text) => Ok(Some(text)),
            Err(Error::Io { source, .. }) if is_gone_io(&source) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes a control file in one write.
    pub(crate) fn write(&self, file: &str, value: &str) -> io::Result<()> {
        let fd = self.open_file(file, OFlags::WRONLY)?;
        let written = rustix::io::write(&fd, value.as_bytes())?;
        if written == value.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Names of the sub-directories.
    pub(crate) fn children(&self) -> Result<Vec<OsString>> {
        let failed = |e: Errno| Error::io("list", &self.path, e);
        let mut names = Vec::new();
        let listing = match rustix::fs::Dir::read_from(&self.fd) {
            Err(e) if is_gone(e) => return Ok(names),
            other => other.map_err(failed)?,
        };
        for entry in listing {
            let entry = match entry {
                Err(e) if is_gone(e) => break,
                other => other.map_err(failed)?,
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || entry.file_type() != FileType::Directory {
                continue;
            }
            names.push(OsStr::from_bytes(name).to_owned());
        }
        Ok(names)
    }

    /// Removes an empty group below this one.
    pub(crate) fn rmdir(&self, name: &OsStr) -> rustix::io::Result<()> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)
    }

    /// Process ids in a `cgroup.procs`; 0 stands for one that our pid namespace cannot see.
    pub(crate) fn procs(&self) -> Result<Vec<u32>> {
        let text = self.read_if_there("cgroup.procs")?.unwrap_or_default();
        text.lines()
            .map(|line| {
                let bad = || Error::unparsable(self.file_path("cgroup.procs"), line);
                line.trim().parse().map_err(|_| bad())
            })
            .collect()
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A removed cgroup answers ENODEV where a removed directory answers ENOENT.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NODEV)
}

/// The same for `io::Error`.
pub(crate) fn is_gone_io(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(is_gone)
}

/// Reads `key value` of a flat keyed control file.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        if name == key { value.trim().parse().ok() } else { None }
    })
}
