//! Remembers which blob a file was, so that an unchanged file is not read again.
//!
//! An entry counts only when size, inode, modification and change time are all the same and both
//! times are older than the moment the entry was made: a file written in that very moment could be
//! written again without another time stamp ("racy git").

use std::collections::HashMap;
use std::path::Path;

use atenea_core::Refusal;
use gix_hash::ObjectId;
use rustix::fs::Stat;

use crate::beneath::{ctime, mtime, size_of};
use crate::tree::{Leaf, Mode};

const MAGIC: &[u8; 8] = b"atstat01";
/// Time stamps of some filesystems are whole pairs of seconds.
pub(crate) const MARGIN_NANOS: i128 = 2_000_000_000;
/// A larger file is no cache of ours.
const FILE_MAX: u64 = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    size: u64,
    ino: u64,
    mtime: i128,
    ctime: i128,
    leaf: Leaf,
}

/// What is known about the files of one source.
#[derive(Default)]
pub(crate) struct StatCache {
    entries: HashMap<Vec<u8>, Known>,
}

impl StatCache {
    /// Reads a cache. One that is missing, cut or damaged is empty: it only costs time.
    pub(crate) fn load(path: &Path) -> Self {
        let small = std::fs::metadata(path).is_ok_and(|meta| meta.len() <= FILE_MAX);
        let bytes = if small { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
        parse(&bytes).map_or_else(StatCache::default, |entries| StatCache { entries })
    }

    pub(crate) fn get(&self, path: &[u8], stat: &Stat) -> Option<Leaf> {
        let known = self.entries.get(path)?;
        let now = Known { leaf: known.leaf, ..known_of(stat, known.leaf) };
        (*known == now).then_some(known.leaf)
    }

    /// Adds what was read, unless the file is too young compared with `started`, the moment before
    /// anything was read.
    pub(crate) fn put(&mut self, path: &[u8], stat: &Stat, leaf: Leaf, started: i128) {
        let newest = mtime(stat).max(ctime(stat));
        if newest.saturating_add(MARGIN_NANOS) < started {
            self.entries.insert(path.to_vec(), known_of(stat, leaf));
        }
    }

    /// Writes the cache by renaming a complete file over the old one.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Refusal> {
        let mut out = MAGIC.to_vec();
        for (name, known) in &self.entries {
            out.extend_from_slice(&(name.len() as u64).to_le_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(&known.size.to_le_bytes());
            out.extend_from_slice(&known.ino.to_le_bytes());
            out.extend_from_slice(&known.mtime.to_le_bytes());
            out.extend_from_slice(&known.ctime.to_le_bytes());
            out.push(match known.leaf.mode {
                Mode::Executable => b'x',
                Mode::Link => b'l',
                Mode::File | Mode::Gitlink | Mode::EmptyDir => b'f',
            });
            out.extend_from_slice(known.leaf.id.as_slice());
        }
        let digest = *blake3::hash(&out).as_bytes();
        out.extend_from_slice(&digest);
        crate::store::write_file(path, &out)
    }
}

fn known_of(stat: &Stat, leaf: Leaf) -> Known {
    Known { size: size_of(stat), ino: stat.st_ino, mtime: mtime(stat), ctime: ctime(stat), leaf }
}

fn parse(bytes: &[u8]) -> Option<HashMap<Vec<u8>, Known>> {
    let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    if blake3::hash(body).as_bytes() != digest {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut entries = HashMap::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(take(&mut rest)?);
        let (name, tail) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        rest = tail;
        let size = u64::from_le_bytes(take(&mut rest)?);
        let ino = u64::from_le_bytes(take(&mut rest)?);
        let mtime = i128::from_le_bytes(take(&mut rest)?);
        let ctime = i128::from_le_bytes(take(&mut rest)?);
        let mode = match take::<1>(&mut rest)? {
            [b'x'] => Mode::Executable,
            [b'l'] => Mode::Link,
            [b'f'] => Mode::File,
            _ => return None,
        };
        let id = ObjectId::try_from(take::<20>(&mut rest)?.as_slice()).ok()?;
        entries.insert(name.to_vec(), Known { size, ino, mtime, ctime, leaf: Leaf { mode, id } });
    }
    Some(entries)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(dir: &Path) -> (Stat, Leaf) {
        let file = dir.join("f");
        std::fs::write(&file, b"x").unwrap();
        let stat = rustix::fs::stat(&file).unwrap();
        let id = crate::ids::id_of(gix_object::Kind::Blob, b"x").unwrap();
        (stat, Leaf { mode: Mode::File, id })
    }

    #[test]
    fn a_file_that_is_as_young_as_the_cache_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (stat, leaf) = sample(dir.path());
        let born = ctime(&stat).max(mtime(&stat));
        let mut cache = StatCache::default();
        cache.put(b"f", &stat, leaf, born + MARGIN_NANOS);
        assert_eq!(cache.get(b"f", &stat), None);
        cache.put(b"f", &stat, leaf, born + MARGIN_NANOS + 1);
        assert_eq!(cache.get(b"f", &stat), Some(leaf));
        let mut other = stat;
        other.st_ino += 1;
        assert_eq!(cache.get(b"f", &other), None);
    }

    #[test]
    fn a_damaged_cache_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let (stat, leaf) = sample(dir.path());
        let mut cache = StatCache::default();
        cache.put(b"caf\xe9", &stat, leaf, i128::MAX);
        let path = dir.path().join("cache");
        cache.save(&path).unwrap();
        assert_eq!(StatCache::load(&path).get(b"caf\xe9", &stat), Some(leaf));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(StatCache::load(&path).get(b"caf\xe9", &stat), None);
        std::fs::write(&path, &bytes[..10]).unwrap();
        assert!(StatCache::load(&path).entries.is_empty());
    }
}
