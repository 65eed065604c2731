//! File steps that must reach the disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::error::JournalError;

/// Makes the directory's entries durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), JournalError> {
    let open = File::open(dir).map_err(JournalError::io("open", dir))?;
    open.sync_all().map_err(JournalError::io("sync", dir))
}

/// Creates `dir` for its owner alone, if it does not exist. Its parent must exist.
pub(crate) fn ensure_dir(dir: &Path) -> Result<(), JournalError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(JournalError::io("create", dir)(e))
        }
        _ => Ok(()),
    }
}

/// Opens a file for reading and writing, creating it for its owner alone. Never truncates.
pub(crate) fn open_rw(path: &Path, create: bool) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path)
}

/// Replaces `path` by `bytes`: after a crash the old or the new content is there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut tmp = path.as_os_str().to_owned();
    tmp.push(".tmp");
    let tmp = Path::new(&tmp);
    let write = || -> std::io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(tmp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(tmp, path)
    };
    write().map_err(JournalError::io("replace", path))?;
    sync_dir(dir)
}

/// Whether the file exists and how long it is.
pub(crate) fn len_of(path: &Path) -> Result<Option<u64>, JournalError> {
    match std::fs::metadata(path) {
        Ok(m) => Ok(Some(m.len())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(JournalError::io("examine", path)(e)),
    }
}

/// Removes a file that may be gone already.
pub(crate) fn remove_if_there(path: &Path) -> Result<(), JournalError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(JournalError::io("remove", path)(e))
        }
        _ => Ok(()),
    }
}
