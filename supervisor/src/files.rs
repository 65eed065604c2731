//! Small files written whole: never half, never through a link.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use atenea_core::{Code, Refusal};

/// Free space of the disk that a path lies on, bytes; `None` when it cannot be asked.
pub fn free_bytes(on: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(on).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Replaces `path` atomically and durably with a file of mode 0600.
///
/// # Errors
/// `fs.disk_full` or `fs.io` with the path.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Refusal> {
    try_replace(path, content).map_err(|e| io_refusal(path, &e))
}

/// As [`replace`], but durable only against a crash of the process.
///
/// # Errors
/// As for [`replace`].
pub fn note(path: &Path, content: &[u8]) -> Result<(), Refusal> {
    written(path, content, false).map_err(|e| io_refusal(path, &e))
}

fn try_replace(path: &Path, content: &[u8]) -> io::Result<()> {
    written(path, content, true)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

fn written(path: &Path, content: &[u8], sync: bool) -> io::Result<()> {
    // The whole name takes part: two files of one stem must not share what they are made from.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = Path::new(&new);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new)?;
    file.write_all(content)?;
    if sync {
        file.sync_all()?;
    }
    std::fs::rename(new, path)
}

/// Writes a file that must not exist yet, with the usual mode.
///
/// # Errors
/// `fs.io` with the path.
pub fn write_new(path: &Path, content: &[u8]) -> Result<(), Refusal> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(|e| io_refusal(path, &e))
}

/// The first `most` bytes of a regular file that somebody names: one that has no end, or whose
/// other end waits, keeps nobody.
///
/// # Errors
/// Those of opening and reading, and what is no regular file.
pub fn read_regular(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// An IO error of a path as a refusal.
pub fn io_refusal(path: &Path, error: &io::Error) -> Refusal {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::FsDiskFull,
        io::ErrorKind::NotFound => Code::FsNotFound,
        io::ErrorKind::PermissionDenied => Code::FsNotYours,
        _ => Code::FsIo,
    };
    Refusal::new(code, format!("{}: {error}", path.display()))
}
