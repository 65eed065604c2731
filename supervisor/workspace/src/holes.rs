//! Writes files without their blocks of zeros: what was a hole stays one.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// The block of most filesystems; a shorter run of zeros is written.
const BLOCK: usize = 4 << 10;
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Writes one piece of a new file to its place; gives how many bytes were written. The length of the
/// file has to be set in the end: it may end in a hole.
pub(crate) fn write_at(out: impl AsFd, at: u64, bytes: &[u8]) -> Result<u64, Errno> {
    let mut written = 0;
    let (mut from, mut to) = (0, 0);
    for block in bytes.chunks(BLOCK) {
        if ZEROS.starts_with(block) {
            written += write_all(&out, at + from as u64, &bytes[from..to])?;
            from = to + block.len();
        }
        to += block.len();
    }
    written += write_all(&out, at + from as u64, &bytes[from..to])?;
    Ok(written)
}

fn write_all(out: impl AsFd, mut at: u64, mut bytes: &[u8]) -> Result<u64, Errno> {
    let all = bytes.len() as u64;
    while !bytes.is_empty() {
        let count = rustix::io::pwrite(&out, bytes, at)?;
        at += count as u64;
        bytes = &bytes[count..];
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_the_content_and_zeros_are_not_written() {
        let (block, odd) = (BLOCK, BLOCK / 2 + 1);
        let cases: [(&[(u8, usize)], usize); 7] = [
            (&[], 0),
            (&[(1, odd)], odd),
            (&[(0, odd)], 0),
            (&[(0, block), (1, odd)], odd),
            (&[(1, 2 * block), (0, 3 * block), (2, block), (0, odd)], 3 * block),
            (&[(0, block), (1, block), (0, block), (1, block)], 2 * block),
            (&[(1, odd), (0, block)], block),
        ];
        for (parts, written) in cases {
            let content: Vec<u8> =
                parts.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
            for at in [0, 3 * BLOCK as u64] {
                let file = tempfile::NamedTempFile::new().unwrap();
                assert_eq!(write_at(file.as_file(), at, &content), Ok(written as u64), "{parts:?}");
                file.as_file().set_len(at + content.len() as u64).unwrap();
                let read = std::fs::read(file.path()).unwrap();
                assert!(read.iter().take(3 * BLOCK).all(|byte| at == 0 || *byte == 0));
                assert!(read.ends_with(&content), "{parts:?}");
            }
        }
    }
}
