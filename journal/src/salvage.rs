//! Finding records in a file whose tree cannot be trusted: frames lie contiguous in the pages and
//! name their predecessor by hash, so the chain puts itself together again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::anchor::Anchor;
use crate::error::JournalError;
use crate::frame::{Frame, HEADER_LEN, Head, MAGIC, RecordHash, le32, le64};
use crate::fsio;

const WINDOW: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Found {
    seq: u64,
    hash: RecordHash,
    prev: RecordHash,
    offset: u64,
    len: usize,
}

/// The longest chain from the first record that can be put together from a file.
#[derive(Debug)]
pub(crate) struct Salvage {
    file: File,
    chain: Vec<Found>,
    links: HashSet<RecordHash>,
}

impl Salvage {
    /// Scans `path`. Memory: about a hundred bytes for each frame in it, stale copies included.
    pub(crate) fn scan(
        path: &Path,
        max_record_bytes: usize,
        anchor: Option<Anchor>,
    ) -> Result<Self, JournalError> {
        let file = fsio::open_read(path)?
            .ok_or_else(|| JournalError::io("open", path)(io::ErrorKind::NotFound.into()))?;
        let found = find_frames(&file, max_record_bytes).map_err(JournalError::io("read", path))?;
        let links = found.values().map(|f| f.prev).collect();
        let mut chain = longest_chain(&found, anchor);
        trim(&mut chain, &links, anchor);
        Ok(Salvage { file, chain, links })
    }

    /// Whether some frame of the file names this hash as its predecessor. Only a successor (or the
    /// anchor) proves that a record is what was written: a link alone says nothing about the
    /// content of the record that carries it.
    pub(crate) fn vouches_for(&self, hash: RecordHash) -> bool {
        self.links.contains(&hash)
    }

    /// How many records there are, from 1 on.
    pub(crate) fn len(&self) -> u64 {
        self.chain.len() as u64
    }

    /// The stored bytes of the records, in order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> + '_ {
        self.chain.iter().map(|found| {
            let mut stored = vec![0; found.len];
            self.file.read_exact_at(&mut stored, found.offset)?;
            Ok(stored)
        })
    }
}

/// Every byte string of the file that parses as a frame, by its hash.
fn find_frames(file: &File, max_record_bytes: usize) -> io::Result<HashMap<RecordHash, Found>> {
    let mut out = HashMap::new();
    let file_len = file.metadata()?.len();
    let mut window = vec![0; WINDOW];
    let mut start = 0;
    while start < file_len {
        let len = usize::try_from(file_len - start).unwrap_or(WINDOW).min(WINDOW);
        let bytes = &mut window[..len];
        file.read_exact_at(bytes, start)?;
        for at in 0..len.saturating_sub(MAGIC.len() - 1) {
            if bytes[at] == MAGIC[0] && bytes[at..at + MAGIC.len()] == MAGIC {
                let offset = start + at as u64;
                if let Some((hash, found)) = frame_at(file, offset, file_len, max_record_bytes)? {
                    out.insert(hash, found);
                }
            }
        }
        if len < WINDOW {
            break;
        }
        // A magic on the border of two windows is seen by the second one.
        start += (WINDOW - (MAGIC.len() - 1)) as u64;
    }
    Ok(out)
}

fn frame_at(
    file: &File,
    offset: u64,
    file_len: u64,
    max_record_bytes: usize,
) -> io::Result<Option<(RecordHash, Found)>> {
    let room = file_len - offset;
    let mut header = [0; HEADER_LEN];
    if room < HEADER_LEN as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut header, offset)?;
    let payload = le32(&header, 12) as usize;
    let len = HEADER_LEN + payload.min(max_record_bytes);
    if payload > max_record_bytes || room < len as u64 {
        return Ok(None);
    }
    let mut stored = vec![0; len];
    file.read_exact_at(&mut stored, offset)?;
    let seq = le64(&header, 16);
    let Ok(frame) = Frame::parse(seq, &stored) else { return Ok(None) };
    let hash = RecordHash::of(&stored);
    Ok(Some((hash, Found { seq, hash, prev: frame.prev, offset, len })))
}

/// Drops from the end what contradicts the anchor and a last record that nothing vouches for.
fn trim(chain: &mut Vec<Found>, links: &HashSet<RecordHash>, anchor: Option<Anchor>) {
    if let Some(anchor) = anchor
        && let Some(at) = chain.iter().position(|f| f.seq == anchor.seq && f.hash != anchor.hash)
    {
        chain.truncate(at);
    }
    let proven = |f: &Found| {
        links.contains(&f.hash) || anchor.is_some_and(|a| (a.seq, a.hash) == (f.seq, f.hash))
    };
    if chain.last().is_some_and(|last| !proven(last)) {
        chain.pop();
    }
}

/// J2 read backwards: a frame is genuine if it is linked to the first record. Where chains fork (a
/// tail that was cut by an earlier recovery) the one through the anchor wins.
fn longest_chain(found: &HashMap<RecordHash, Found>, anchor: Option<Anchor>) -> Vec<Found> {
    let mut by_seq: BTreeMap<u64, Vec<RecordHash>> = BTreeMap::new();
    for (hash, frame) in found {
        by_seq.entry(frame.seq).or_default().push(*hash);
    }
    let mut layer = HashSet::from([RecordHash::GENESIS]);
    let mut tip = Head::GENESIS;
    for seq in 1.. {
        let linked = |hash: &&RecordHash| found.get(*hash).is_some_and(|f| layer.contains(&f.prev));
        let mut next: HashSet<RecordHash> =
            by_seq.get(&seq).into_iter().flatten().filter(linked).copied().collect();
        if let Some(anchor) = anchor.filter(|a| a.seq == seq && next.contains(&a.hash)) {
            next = HashSet::from([anchor.hash]);
        }
        // The smallest hash, so that the choice does not depend on the order of a map.
        let Some(hash) = next.iter().min_by_key(|h| *h.as_bytes()) else { break };
        tip = Head { seq, hash: *hash };
        layer = next;
    }
    let mut chain = Vec::new();
    let mut at = tip.hash;
    while let Some(frame) = found.get(&at) {
        chain.push(*frame);
        at = frame.prev;
    }
    chain.reverse();
    chain
}
