//! A store backend that never changes its file: what redb writes while it opens and repairs goes
//! to memory. `verify` and `recover` look at evidence; they must not be what destroys it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::error::JournalError;
use crate::fsio;

const BLOCK: u64 = 4096;
const BLOCK_LEN: usize = 4096;

#[derive(Debug)]
struct Layer {
    len: u64,
    blocks: HashMap<u64, Box<[u8; BLOCK_LEN]>>,
}

/// Reads fall through to the file where nothing was written. Memory is bounded by what opening and
/// checking write: headers and the allocator state.
#[derive(Debug)]
pub(crate) struct Overlay {
    file: File,
    file_len: u64,
    layer: Mutex<Layer>,
}

impl Overlay {
    pub(crate) fn open(path: &Path) -> Result<Self, JournalError> {
        let file = fsio::open_read(path)?
            .ok_or_else(|| JournalError::io("open", path)(io::ErrorKind::NotFound.into()))?;
        let file_len = file.metadata().map_err(JournalError::io("examine", path))?.len();
        let layer = Layer { len: file_len, blocks: HashMap::new() };
        Ok(Overlay { file, file_len, layer: Mutex::new(layer) })
    }

    fn layer(&self) -> MutexGuard<'_, Layer> {
        self.layer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block from the file, zeros behind its end.
    fn base_block(&self, index: u64) -> io::Result<Box<[u8; BLOCK_LEN]>> {
        let mut block = Box::new([0; BLOCK_LEN]);
        let start = index * BLOCK;
        let there = self.file_len.saturating_sub(start).min(BLOCK);
        let there = usize::try_from(there).unwrap_or(BLOCK_LEN);
        self.file.read_exact_at(&mut block[..there], start)?;
        Ok(block)
    }
}

/// The parts of `offset..offset + len` per block: block index, range in the block, range in the
/// buffer.
fn pieces(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let within = usize::try_from(at % BLOCK).unwrap_or(0);
        let take = (BLOCK_LEN - within).min(len - done);
        let piece = (at / BLOCK, within..within + take, done..done + take);
        done += take;
        Some(piece)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.layer().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let layer = self.layer();
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > layer.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (index, within, buffer) in pieces(offset, out.len()) {
            match layer.blocks.get(&index) {
                Some(block) => out[buffer].copy_from_slice(&block[within]),
                None => out[buffer].copy_from_slice(&self.base_block(index)?[within]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut layer = self.layer();
        if len < layer.len {
            // What is cut must read as zeros if the file grows again.
            let first = len / BLOCK;
            let keep = usize::try_from(len % BLOCK).unwrap_or(0);
            let mut block = match layer.blocks.remove(&first) {
                Some(block) => block,
                None => self.base_block(first)?,
            };
            block[keep..].fill(0);
            let last = layer.len.div_ceil(BLOCK);
            layer.blocks.insert(first, block);
            for index in first + 1..last {
                layer.blocks.insert(index, Box::new([0; BLOCK_LEN]));
            }
        }
        layer.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut layer = self.layer();
        for (index, within, buffer) in pieces(offset, data.len()) {
            let block = match layer.blocks.entry(index) {
                std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::hash_map::Entry::Vacant(e) => e.insert(self.base_block(index)?),
            };
            block[within].copy_from_slice(&data[buffer]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_seen_through_the_overlay_and_never_reach_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let base: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[0]).collect();
        std::fs::write(&path, &base).unwrap();
        let overlay = Overlay::open(&path).unwrap();
        overlay.write(4000, &[7; 200]).unwrap();
        let mut expect = base.clone();
        expect[4000..4200].fill(7);
        let mut got = vec![0; 10_000];
        overlay.read(0, &mut got).unwrap();
        assert_eq!(got, expect);
        overlay.set_len(5000).unwrap();
        overlay.set_len(12_000).unwrap();
        expect.truncate(5000);
        expect.resize(12_000, 0);
        let mut got = vec![1; 12_000];
        overlay.read(0, &mut got).unwrap();
        assert_eq!(got, expect);
        assert!(overlay.read(11_999, &mut [0; 2]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), base);
    }
}
