//! File steps: what is opened is a plain file of ours, and what is written reaches the disk.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::JournalError;
use crate::verify::{Damage, DamageKind};

/// Makes the directory's entries durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), JournalError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(dir, flags, Mode::empty())
        .map_err(|e| JournalError::io("open", dir)(e.into()))?;
    File::from(open).sync_all().map_err(JournalError::io("sync", dir))
}

/// Creates `dir` for its owner alone, if it does not exist. Its parent must exist.
pub(crate) fn ensure_dir(dir: &Path) -> Result<(), JournalError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => match std::fs::metadata(dir) {
            Ok(there) if !there.is_dir() => Err(not_ours(dir, kind_of(&there))),
            // A link that leads nowhere is there and cannot be examined.
            Err(e) => Err(JournalError::io("examine", dir)(e)),
            Ok(_) => Ok(()),
        },
        Err(e) => Err(JournalError::io("create", dir)(e)),
        Ok(()) => Ok(()),
    }
}

/// Opens a file for reading and writing, creating it for its owner alone. Never truncates.
///
/// # Errors
/// `Damaged` for anything but a plain file of ours, see [`open_plain`].
pub(crate) fn open_rw(path: &Path, create: bool) -> Result<File, JournalError> {
    let flags = if create { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDWR };
    open_plain(path, flags).map_err(|e| e.of("open", path))
}

/// Opens a file for reading; `None` when there is nothing under the name.
///
/// # Errors
/// `Damaged` for anything but a plain file of ours, see [`open_plain`].
pub(crate) fn open_read(path: &Path) -> Result<Option<File>, JournalError> {
    match open_plain(path, OFlags::RDONLY) {
        Ok(file) => Ok(Some(file)),
        Err(OpenError::System(Errno::NOENT)) => Ok(None),
        Err(e) => Err(e.of("open", path)),
    }
}

enum OpenError {
    System(Errno),
    NotOurs(&'static str),
}

impl OpenError {
    fn of(self, what: &'static str, path: &Path) -> JournalError {
        match self {
            OpenError::System(errno) => JournalError::io(what, path)(errno.into()),
            OpenError::NotOurs(found) => not_ours(path, found),
        }
    }
}

/// The one place where files of the journal are opened. A pipe must not make us wait for its other
/// end, a link must not lead us to another file, a device must not be touched at all, and nobody
/// else may own (and so later change) what we trust.
fn open_plain(path: &Path, flags: OFlags) -> Result<File, OpenError> {
    // Before the open, since opening a device may already do something; `NOENT` is for the open.
    if let Ok(there) = path.symlink_metadata()
        && !there.is_file()
    {
        return Err(OpenError::NotOurs(kind_of(&there)));
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)) {
        Ok(fd) => File::from(fd),
        // It was replaced since we looked.
        Err(Errno::LOOP) => return Err(OpenError::NotOurs("a symbolic link")),
        Err(Errno::ISDIR) => return Err(OpenError::NotOurs("a directory")),
        Err(Errno::NXIO) => return Err(OpenError::NotOurs("a socket")),
        Err(errno) => return Err(OpenError::System(errno)),
    };
    let held = rustix::fs::fstat(&file).map_err(OpenError::System)?;
    let is_file =
        rustix::fs::FileType::from_raw_mode(held.st_mode) == rustix::fs::FileType::RegularFile;
    if !is_file {
        return Err(OpenError::NotOurs("a special file"));
    }
    if !owned_by_us(path, held.st_uid) {
        return Err(OpenError::NotOurs("a file of another user"));
    }
    Ok(file)
}

/// Ours, or the journal's owner's when root looks at the journal of somebody else.
fn owned_by_us(path: &Path, owner: u32) -> bool {
    let us = rustix::process::geteuid();
    let dirs = || path.parent().and_then(|dir| dir.metadata().ok()).map(|dir| dir.uid());
    owner == us.as_raw() || us.is_root() && dirs() == Some(owner)
}

fn kind_of(there: &std::fs::Metadata) -> &'static str {
    let kind = there.file_type();
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_file() {
        "a file"
    } else {
        "a device"
    }
}

fn not_ours(path: &Path, found: &'static str) -> JournalError {
    let kind = DamageKind::NotOurFile { path: path.to_owned(), found };
    JournalError::Damaged(Damage { seq: None, kind })
}

/// Replaces `path` by `bytes`: after a crash the old or the new content is there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut tmp = path.as_os_str().to_owned();
    tmp.push(".tmp");
    let tmp = Path::new(&tmp);
    // Whatever a crash or somebody else left there is not written to.
    remove_if_there(tmp)?;
    let mut file = open_plain(tmp, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
        .map_err(|e| e.of("make", tmp))?;
    let mut write = || -> std::io::Result<()> {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(tmp, path)
    };
    write().map_err(JournalError::io("replace", path))?;
    sync_dir(dir)
}

/// Whether the file exists and how long it is.
///
/// # Errors
/// `Damaged` for anything but a plain file.
pub(crate) fn len_of(path: &Path) -> Result<Option<u64>, JournalError> {
    match path.symlink_metadata() {
        Ok(m) if m.is_file() => Ok(Some(m.len())),
        Ok(m) => Err(not_ours(path, kind_of(&m))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(JournalError::io("examine", path)(e)),
    }
}

/// Removes a file that may be gone already.
pub(crate) fn remove_if_there(path: &Path) -> Result<(), JournalError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
            Err(not_ours(path, "a directory"))
        }
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(JournalError::io("remove", path)(e))
        }
        _ => Ok(()),
    }
}
