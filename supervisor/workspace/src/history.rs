//! The agent's own commits, branches and tags, which no export carries: so that nobody misses them.
//!
//! Refs are read as plain files through descriptors and within bounds. No git looks at the agent's
//! repository (S7), so what stands behind a ref is not known here, only that it is another one than
//! at the start.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use atenea_core::Refusal;
use serde::{Deserialize, Serialize};

use crate::beneath::{Kind, Step, Tree, kind_of, open_dir_at, walk};
use crate::clone_files::workspace;
use crate::fail::{at, io};
use crate::path::RawPath;

/// The most bytes of `packed-refs`.
const PACKED_BYTES_MAX: u64 = 4 << 20;
/// The most bytes of one ref's file.
const LOOSE_BYTES_MAX: u64 = 8 << 10;
/// The most refs.
const REFS_MAX: usize = 20_000;
/// Refs that are named; the count is always complete.
const NAMED_MAX: usize = 20;

/// What of the agent's own history no export carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Refs of the clone that are new or name another commit, at most twenty. `HEAD` stands for
    /// commits that no branch names.
    pub refs: Vec<RawPath>,
    /// How many there are.
    pub total: u64,
    /// The clone's refs cannot be read: there may be more.
    pub unreadable: bool,
}

/// Refs of a repository by name: what their files say.
pub(crate) type Refs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The refs of the workspace's own repository; none when it has no repository.
pub(crate) fn refs_of(ws: &Path) -> Result<Refs, Refusal> {
    let mut tree = workspace(ws)?;
    let mut refs = Refs::new();
    match tree.stat(b".git")?.map(|stat| kind_of(&stat)) {
        None => return Ok(refs),
        Some(Kind::Dir) => {}
        Some(_) => return Err(io("the workspace's .git is no directory")),
    }
    if tree.stat(b".git/reftable")?.is_some() {
        return Err(io("the refs are in a form that is not read here"));
    }
    if let Some(packed) = read(&mut tree, b".git/packed-refs", PACKED_BYTES_MAX)? {
        for line in packed.split(|byte| *byte == b'\n') {
            let space = line.iter().position(|byte| *byte == b' ');
            match (line.first(), space) {
                (None | Some(b'#' | b'^'), _) | (_, None) => {}
                (_, Some(at)) => put(&mut refs, &line[at + 1..], &line[..at])?,
            }
        }
    }
    for path in loose(&tree)? {
        let value = read(&mut tree, &path, LOOSE_BYTES_MAX)?.unwrap_or_default();
        put(&mut refs, path.get(5..).unwrap_or(b""), &value)?;
    }
    match read(&mut tree, b".git/HEAD", LOOSE_BYTES_MAX)? {
        Some(head) if !head.starts_with(b"ref: ") => put(&mut refs, b"HEAD", &head)?,
        _ => {}
    }
    Ok(refs)
}

fn put(refs: &mut Refs, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
    if refs.len() >= REFS_MAX {
        return Err(io(format!("the clone has more than {REFS_MAX} refs")));
    }
    refs.insert(name.to_vec(), value.trim_ascii().to_vec());
    Ok(())
}

/// Paths of the files below `.git/refs`.
fn loose(tree: &Tree) -> Result<Vec<Vec<u8>>, Refusal> {
    let top = b".git/refs";
    let fd = match open_dir_at(tree.root(), top) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
        Err(error) => return Err(at("opening", top)(error)),
    };
    let mut paths = Vec::new();
    walk(std::os::fd::AsFd::as_fd(&fd), top, &mut |met| {
        if met.closed.is_some() || paths.len() > REFS_MAX {
            return Err(io("the clone's refs cannot be read"));
        }
        match met.kind {
            Kind::Dir => return Ok(Step::Enter),
            Kind::File if !met.path.ends_with(b".lock") => paths.push(met.path.to_vec()),
            Kind::File => {}
            _ => return Err(io("a ref of the clone is no file")),
        }
        Ok(Step::Skip)
    })?;
    Ok(paths)
}

/// A small file; none when it does not exist.
fn read(tree: &mut Tree, path: &[u8], max: u64) -> Result<Option<Vec<u8>>, Refusal> {
    let Some(stat) = tree.stat(path)? else { return Ok(None) };
    if kind_of(&stat) != Kind::File {
        return Err(io(format!("{} is no file", crate::path::shown(path))));
    }
    let file = tree.open_file(path).map_err(at("opening", path))?;
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(file).take(max + 1);
    file.read_to_end(&mut bytes).map_err(at("reading", path))?;
    if bytes.len() as u64 > max {
        return Err(io(format!("{} has more than {max} bytes", crate::path::shown(path))));
    }
    Ok(Some(bytes))
}

/// What is there now and was not at the start. What cannot be read is said to be so: that the agent
/// spoilt its own repository stands against nothing else.
pub(crate) fn history(ws: &Path, before: &[(RawPath, RawPath)]) -> History {
    let Ok(now) = refs_of(ws) else {
        return History { unreadable: true, ..History::default() };
    };
    let before: BTreeMap<&[u8], &[u8]> =
        before.iter().map(|(name, value)| (name.0.as_slice(), value.0.as_slice())).collect();
    let other: Vec<Vec<u8>> = now
        .into_iter()
        .filter(|(name, value)| before.get(name.as_slice()) != Some(&value.as_slice()))
        .map(|(name, _)| name)
        .collect();
    History {
        total: other.len() as u64,
        refs: other.into_iter().take(NAMED_MAX).map(RawPath).collect(),
        unreadable: false,
    }
}
