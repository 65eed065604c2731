//! The state directory, held open; nothing below it is reached in any other way.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::{Error, Result};

/// Directory of all runs.
pub(crate) const RUNS: &str = "runs";

/// How every directory below the state directory is opened: not through links, not across mounts.
pub(crate) const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Flags for a directory that is listed.
pub(crate) const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A state directory.
#[derive(Debug)]
pub struct State {
    fd: OwnedFd,
    path: PathBuf,
}

/// One entry of a directory.
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) file_type: FileType,
}

impl State {
    /// Opens it. The path is resolved once, here.
    ///
    /// # Errors
    /// [`Error::Io`] when it is not there, not a directory or a link.
    pub fn open(path: &Path) -> Result<Self> {
        // Absolute and without links, because `mountinfo` names mount points like that.
        let path = std::fs::canonicalize(path).map_err(|e| Error::io("resolve", path, e))?;
        let fd = rustix::fs::open(&path, DIR_FLAGS, Mode::empty())
            .map_err(|e| Error::io("open", &path, e))?;
        Ok(State { fd, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory below. `None`: it is not there.
    pub(crate) fn open_below(&self, relative: &Path) -> Result<Option<OwnedFd>> {
        match rustix::fs::openat2(&self.fd, relative, DIR_FLAGS, Mode::empty(), RESOLVE) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => Err(Error::MountBelow { path: self.path.join(relative) }),
            Err(e) => Err(Error::io("open", self.path.join(relative), e)),
        }
    }
}

impl AsFd for State {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Everything in a directory, any bytes as names. `path` is for messages.
pub(crate) fn list(dir: BorrowedFd<'_>, path: &Path) -> Result<Vec<Entry>> {
    let failed = |e: Errno| Error::io("list", path, e);
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let file_type = match entry.file_type() {
            FileType::Unknown => match file_type(dir, name, path)? {
                Some(known) => known,
                None => continue,
            },
            known => known,
        };
        entries.push(Entry { name: name.to_owned(), file_type });
    }
    Ok(entries)
}

/// Type of an entry, not following links. `None`: it is gone.
pub(crate) fn file_type(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
) -> Result<Option<FileType>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(Error::io("stat", path.join(name), e)),
    }
}
