//! Free space and the reserve that lets cancel and cleanup fit on a full disk (J9).

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs4::FileExt;

use crate::error::JournalError;
use crate::fsio;

const FILE: &str = "reserve";
/// What one commit may write beside its records: tree pages, allocator state, growth of the file.
const COMMIT_MARGIN_BYTES: u64 = 1 << 20;

/// The reserve file and the free space around it.
#[derive(Debug)]
pub(crate) struct Space {
    dir: PathBuf,
    reserve_bytes: u64,
    /// Whether the reserve is allocated.
    held: Mutex<bool>,
}

impl Space {
    pub(crate) fn new(dir: &Path, reserve_bytes: u64) -> Self {
        Space { dir: dir.to_owned(), reserve_bytes, held: Mutex::new(false) }
    }

    fn held(&self) -> MutexGuard<'_, bool> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes an unprivileged writer may still allocate.
    pub(crate) fn available(&self) -> Result<u64, JournalError> {
        fs4::available_space(&self.dir).map_err(JournalError::io("measure", &self.dir))
    }

    /// Before the store is opened: a disk that is full to the brim gets the reserve back, since
    /// opening may have to write.
    pub(crate) fn before_open(&self) -> Result<(), JournalError> {
        if self.available()? < COMMIT_MARGIN_BYTES {
            return self.release();
        }
        Ok(())
    }

    /// Allocates the reserve if it is not there and leaves room beside it. Returns whether it is.
    pub(crate) fn ensure(&self) -> Result<bool, JournalError> {
        let mut held = self.held();
        if self.reserve_bytes == 0 {
            return Ok(true);
        }
        // Looked at each time: somebody may have taken it away to make room.
        let path = self.dir.join(FILE);
        let kept = allocated(&path)? >= self.reserve_bytes;
        if kept && *held {
            return Ok(true);
        }
        *held = false;
        if !kept && self.available()? < self.reserve_bytes.saturating_mul(2) {
            return Ok(false);
        }
        let file = fsio::open_rw(&path, true)?;
        // A file that could not be allocated is no reserve; the caller asks again later.
        *held = FileExt::allocate(&file, self.reserve_bytes).is_ok();
        Ok(*held)
    }

    /// Frees the reserve.
    pub(crate) fn release(&self) -> Result<(), JournalError> {
        let mut held = self.held();
        fsio::remove_if_there(&self.dir.join(FILE))?;
        *held = false;
        Ok(())
    }

    /// Whether the reserve is allocated (or none was asked for).
    pub(crate) fn reserve_ok(&self) -> bool {
        self.reserve_bytes == 0 || *self.held()
    }

    /// Refuses when fewer than `min_bytes` are free.
    pub(crate) fn has_space(&self, min_bytes: u64) -> Result<(), JournalError> {
        let available = self.available()?;
        if available < min_bytes {
            return Err(JournalError::DiskFull { available, needed: min_bytes });
        }
        Ok(())
    }

    /// J9: new work needs the reserve in place and as much again free.
    pub(crate) fn admit(&self) -> Result<(), JournalError> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        self.has_reserve()?;
        self.has_space(self.reserve_bytes)
    }

    /// Refuses when the reserve is not there and cannot be made.
    pub(crate) fn has_reserve(&self) -> Result<(), JournalError> {
        if self.ensure()? {
            return Ok(());
        }
        let needed = self.reserve_bytes.saturating_mul(2);
        Err(JournalError::DiskFull { available: self.available()?, needed })
    }

    /// Gives up the reserve if a commit of `bytes` may not fit otherwise. A failure to measure or
    /// to remove is left to the commit itself to report.
    pub(crate) fn make_room(&self, bytes: usize) {
        if self.reserve_bytes == 0 || !self.reserve_ok() {
            return;
        }
        let needed = (bytes as u64).saturating_mul(2).saturating_add(COMMIT_MARGIN_BYTES);
        if self.available().is_ok_and(|free| free < needed) {
            let _ = self.release();
        }
    }
}

fn allocated(path: &Path) -> Result<u64, JournalError> {
    use std::os::unix::fs::MetadataExt;
    let Some(file) = fsio::open_read(path)? else { return Ok(0) };
    let there = file.metadata().map_err(JournalError::io("examine", path))?;
    Ok(there.blocks().saturating_mul(512))
}
