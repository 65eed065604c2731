//! Room on the disk that content is written to.
//!
//! A workspace may claim more bytes than any disk has: a hole costs whoever made it nothing. Content
//! is let in only when all it claims fits, and the disk is looked at again while it is written,
//! since others write to it as well.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use atenea_core::{Code, Refusal};
use rustix::io::Errno;

use crate::fail::at;

/// What content may not take: twice the journal's reserve as it is by default, so that the next run
/// is still admitted and this one has something to write its records into.
const MARGIN_BYTES: u64 = 32 << 20;
/// Bytes that are written between two looks at the disk: a part of the margin.
const EVERY_BYTES: u64 = 8 << 20;

/// Refuses bytes that do not fit on the disk of a file or directory beside the margin.
///
/// # Errors
/// `fs.disk_full`; `fs.too_large` when they would not fit on the empty disk either.
pub(crate) fn fits(on: impl AsFd, bytes: u64) -> Result<(), Refusal> {
    let disk = rustix::fs::fstatvfs(on).map_err(at("looking at the disk of", b"the state"))?;
    let of = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    within(bytes, of(disk.f_bavail), of(disk.f_blocks))
}

fn within(bytes: u64, free: u64, total: u64) -> Result<(), Refusal> {
    if bytes.saturating_add(MARGIN_BYTES) <= free {
        return Ok(());
    }
    let code = if bytes > total { Code::FsTooLarge } else { Code::FsDiskFull };
    let cause = format!(
        "{bytes} more bytes of content and {MARGIN_BYTES} beside them do not fit on the disk of the \
         state directory, which has {free} of {total} bytes free"
    );
    let help = "free space, or leave large files out: what .gitignore lists is not copied, and \
                --workspace may name a smaller directory; a hole counts with its whole length";
    Err(Refusal::new(code, cause).with_help(help))
}

/// What was written since the last look at the disk.
#[derive(Default)]
pub(crate) struct Filling {
    unseen: u64,
}

impl Filling {
    /// Before a file of this size is written.
    pub(crate) fn begin(&mut self, on: impl AsFd, size: u64) -> Result<(), Refusal> {
        if size < EVERY_BYTES {
            return Ok(());
        }
        self.unseen = 0;
        fits(on, size)
    }

    /// After bytes were written.
    pub(crate) fn wrote(&mut self, on: impl AsFd, bytes: u64) -> Result<(), Refusal> {
        self.unseen = self.unseen.saturating_add(bytes);
        if self.unseen < EVERY_BYTES {
            return Ok(());
        }
        self.unseen = 0;
        fits(on, 0)
    }
}

/// An output whose reader writes what passes to a disk, and that ends before the disk is full.
pub(crate) struct Watched<'a> {
    to: &'a mut dyn Write,
    on: File,
    filling: Filling,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(to: &'a mut dyn Write, on: File) -> Self {
        Watched { to, on, filling: Filling::default() }
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.filling.wrote(&self.on, count as u64).map_err(|_| Errno::NOSPC)?;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_fits_when_the_margin_stays_free() {
        let total = 1 << 40;
        assert_eq!(within(100, MARGIN_BYTES + 100, total), Ok(()));
        let full = within(101, MARGIN_BYTES + 100, total).unwrap_err();
        assert_eq!(full.code, Code::FsDiskFull);
        assert!(full.cause.starts_with("101 more bytes"), "{}", full.cause);
        assert!(full.cause.contains(&format!("{} of {total}", MARGIN_BYTES + 100)));
        assert_eq!(within(0, MARGIN_BYTES - 1, total).unwrap_err().code, Code::FsDiskFull);
        for bytes in [total + 1, u64::MAX] {
            assert_eq!(within(bytes, total, total).unwrap_err().code, Code::FsTooLarge);
        }
    }

    #[test]
    fn the_disk_is_looked_at_before_a_large_file_and_after_every_few_megabytes() {
        let dir = tempfile::tempdir().unwrap();
        let on = File::open(dir.path()).unwrap();
        let mut filling = Filling::default();
        assert_eq!(filling.begin(&on, EVERY_BYTES - 1), Ok(()));
        assert_eq!(filling.begin(&on, u64::MAX).unwrap_err().code, Code::FsTooLarge);
        filling.wrote(&on, EVERY_BYTES - 1).unwrap();
        assert_eq!(filling.unseen, EVERY_BYTES - 1);
        filling.wrote(&on, 1).unwrap();
        assert_eq!(filling.unseen, 0, "it was looked at");
    }
}
