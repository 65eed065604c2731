//! Small files written whole: never half, never through a link.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use atenea_core::{Code, Refusal};

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
