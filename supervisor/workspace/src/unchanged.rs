//! Whether a run wrote anything at all: only then may its workspace go without being asked (C4).

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use atenea_core::Refusal;

use crate::beneath::{Kind, Step, Tree, open_dir_at, size_of, walk};
use crate::clone_files::workspace;
use crate::copy::Copier;
use crate::fail::at;
use crate::path::{RawPath, split};
use crate::progress::{Meter, NoProgress};
use crate::store::Store;

/// Larger files of a `.git` are compared by name and size: they are packs, named by their content.
const HASHED_MAX: u64 = 1 << 20;

/// Whether files and history are exactly those of the base. Ignored files, commits and branches of
/// the agent count as work; a refreshed index does not. What cannot be read counts as work.
///
/// # Errors
/// `fs.*` when the workspace or its store cannot be read at all.
pub fn is_unchanged(ws: &Path, store: &Path) -> Result<bool, Refusal> {
    let (store, meta) = Store::open(store)?;
    let opaque: Vec<Vec<u8>> = meta.opaque.iter().map(|path| path.0.clone()).collect();
    if git_state(ws, &opaque)? != meta.git_state {
        return Ok(false);
    }
    let base = store.files_of(&meta.raw_tree)?;
    let tree = workspace(ws)?;
    let mut seen: BTreeMap<Vec<u8>, ()> = BTreeMap::new();
    let mut other = false;
    walk(tree.root(), b"", &mut |met| {
        if met.closed.is_some() {
            other = true;
        }
        if other || met.path == b".git" || is_opaque(&meta.opaque, met.path) {
            return Ok(Step::Skip);
        }
        match met.kind {
            Kind::Dir => return Ok(Step::Enter),
            Kind::Special => other = true,
            Kind::File | Kind::Link => {
                other |= !base.contains_key(met.path) || met.stat.st_mode & 0o6000 != 0;
                seen.insert(met.path.to_vec(), ());
            }
        }
        Ok(Step::Skip)
    })?;
    if other || seen.len() != base.len() {
        return Ok(false);
    }
    let mut nobody = NoProgress;
    let mut copier = Copier::new(tree, Meter::new(&mut nobody, 0));
    for (path, leaf) in &base {
        let Some(read) = copier.read(path, None)? else { return Ok(false) };
        if read.leaf != *leaf {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_opaque(opaque: &[RawPath], path: &[u8]) -> bool {
    opaque.iter().any(|dir| dir.0 == path)
}

/// A digest of the workspace's own git directories, without the index; `None` when there is none.
pub(crate) fn git_state<'a>(
    ws: &Path,
    opaque: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Result<Option<String>, Refusal> {
    let mut tree = workspace(ws)?;
    let mut hasher = blake3::Hasher::new();
    let mut any = false;
    for dir in std::iter::once(&b".git"[..]).chain(opaque.into_iter().map(Vec::as_slice)) {
        let Some(stat) = tree.stat(dir)? else { continue };
        any = true;
        match crate::beneath::kind_of(&stat) {
            Kind::Dir => state_of(&mut tree, dir, &mut hasher)?,
            _ => {
                hasher.update(b"file").update(dir);
            }
        }
    }
    Ok(any.then(|| hasher.finalize().to_hex().to_string()))
}

fn state_of(tree: &mut Tree, dir: &[u8], hasher: &mut blake3::Hasher) -> Result<(), Refusal> {
    let fd = open_dir_at(tree.root(), dir).map_err(at("opening", dir))?;
    let mut small = Vec::new();
    walk(fd.as_fd(), dir, &mut |met| {
        let name = split(met.path).1;
        let inside = met.path.get(dir.len() + 1..).unwrap_or(b"");
        if inside == b"index" || met.closed.is_some() {
            return Ok(Step::Skip);
        }
        let size = if met.kind == Kind::File { size_of(&met.stat) } else { 0 };
        hasher.update(&(met.path.len() as u64).to_le_bytes()).update(met.path);
        hasher.update(&[met.kind as u8]).update(&size.to_le_bytes());
        let pack = name.ends_with(b".pack") || name.ends_with(b".idx");
        if met.kind == Kind::Link || met.kind == Kind::File && size <= HASHED_MAX && !pack {
            small.push(met.path.to_vec());
        }
        Ok(Step::Enter)
    })?;
    let mut nobody = NoProgress;
    let root = Tree::duplicate(tree)?;
    let mut copier = Copier::new(root, Meter::new(&mut nobody, 0));
    for path in small {
        if let Some(read) = copier.read(&path, None)? {
            hasher.update(read.leaf.id.as_slice());
        }
    }
    Ok(())
}
