//! Writes git packs: the form in which sealed work enters an object store.
//!
//! A pack is checked by `git index-pack --strict` before any of its objects count, and the ids are
//! computed there from the content: a file that changed since it was hashed leaves its tree without
//! that blob, and the pack is refused.

use std::io::Write;

use atenea_core::{Code, Refusal};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use gix_hash::hasher;

use crate::fail::io;
use crate::ids::KIND;

/// An output that hashes what passes.
struct Hashing<'a> {
    to: &'a mut dyn Write,
    hash: gix_hash::Hasher,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// A pack of a number of objects that is known before.
pub(crate) struct Writer<'a> {
    out: Hashing<'a>,
    left: u32,
}

fn failed(error: std::io::Error) -> Refusal {
    let code = error
        .raw_os_error()
        .map_or(Code::FsIo, |n| crate::fail::code_of(rustix::io::Errno::from_raw_os_error(n)));
    Refusal::new(code, format!("writing a pack: {error}"))
}

impl<'a> Writer<'a> {
    pub(crate) fn new(to: &'a mut dyn Write, count: usize) -> Result<Self, Refusal> {
        let left = u32::try_from(count).map_err(|_| io("more objects than a pack can hold"))?;
        let mut out = Hashing { to, hash: hasher(KIND) };
        out.write_all(b"PACK\0\0\0\x02").map_err(failed)?;
        out.write_all(&left.to_be_bytes()).map_err(failed)?;
        Ok(Writer { out, left })
    }

    fn header(&mut self, kind: gix_object::Kind, size: u64) -> Result<(), Refusal> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io("one object too many in a pack"))?;
        let tag: u8 = match kind {
            gix_object::Kind::Commit => 1,
            gix_object::Kind::Tree => 2,
            gix_object::Kind::Blob => 3,
            gix_object::Kind::Tag => 4,
        };
        let [low, ..] = size.to_le_bytes();
        let mut byte = (tag << 4) | (low & 15);
        let mut rest = size >> 4;
        while rest != 0 {
            self.out.write_all(&[byte | 0x80]).map_err(failed)?;
            let [low, ..] = rest.to_le_bytes();
            byte = low & 0x7f;
            rest >>= 7;
        }
        self.out.write_all(&[byte]).map_err(failed)
    }

    /// Adds an object that is whole in memory.
    pub(crate) fn object(&mut self, kind: gix_object::Kind, data: &[u8]) -> Result<(), Refusal> {
        self.header(kind, data.len() as u64)?;
        let mut deflate = ZlibEncoder::new(&mut self.out, Compression::fast());
        deflate.write_all(data).map_err(failed)?;
        deflate.finish().map(drop).map_err(failed)
    }

    /// Adds a blob that `fill` writes: exactly `size` bytes.
    pub(crate) fn blob(
        &mut self,
        size: u64,
        fill: impl FnOnce(&mut dyn Write) -> Result<u64, Refusal>,
    ) -> Result<(), Refusal> {
        self.header(gix_object::Kind::Blob, size)?;
        let mut deflate = ZlibEncoder::new(&mut self.out, Compression::fast());
        let written = fill(&mut deflate)?;
        if written != size {
            let cause = format!("a file of {size} bytes had {written} bytes the second time");
            return Err(Refusal::new(Code::FsChanged, cause));
        }
        deflate.finish().map(drop).map_err(failed)
    }

    /// Writes the trailer.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        if self.left != 0 {
            return Err(io(format!("{} objects are missing in a pack", self.left)));
        }
        let Hashing { to, hash } = self.out;
        let id = hash.try_finalize().map_err(|error| io(format!("hashing a pack: {error}")))?;
        to.write_all(id.as_slice()).map_err(failed)
    }
}
