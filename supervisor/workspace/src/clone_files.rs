//! The files of a private clone, and the objects that describe them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use atenea_core::{Code, Refusal};
use gix_hash::ObjectId;

use crate::beneath::{Kind, Tree, claimed, kind_of, open_dir, size_of};
use crate::clone::Cloning;
use crate::copy::{Copier, Permit, Target};
use crate::fail::{at, io};
use crate::git::nul_parts;
use crate::ids::parse;
use crate::list::{Listing, Wanted};
use crate::progress::{Meter, Report};
use crate::room::fits;
use crate::snapshot::{Limits, Skips};
use crate::store::Store;
use crate::tree::{Leaf, Mode};

/// What lies in the workspace now.
pub(crate) struct Copied {
    pub(crate) leaves: BTreeMap<Vec<u8>, Leaf>,
    pub(crate) submodules: BTreeSet<Vec<u8>>,
    pub(crate) opaque: BTreeSet<Vec<u8>>,
    pub(crate) bytes: u64,
    pub(crate) skips: Skips,
}

/// Permissions in a workspace: its owner writes.
fn writable(mode: Mode) -> u32 {
    if mode == Mode::Executable { 0o755 } else { 0o644 }
}

/// Copies the files as they are on disk, with their times: the index stays true.
pub(crate) fn copy_working_state(
    cloning: &Cloning<'_>,
    index: Option<&Path>,
    progress: &mut dyn Report,
) -> Result<Copied, Refusal> {
    let mut skips = Skips::default();
    let listing = Wanted {
        source: cloning.source,
        filter: &cloning.filter,
        limits: &cloning.options.limits,
        index,
        excludes: cloning.options.identity.excludes.as_ref(),
    }
    .list(&mut skips)?;
    let mut target = Target::new(open_dir(cloning.dest)?, true);
    let mut from = Tree::open(cloning.source.root.as_path())?;
    room_for(&listing, &mut from, &cloning.options.limits, &target)?;
    let meter = Meter::new(progress, listing.files.len());
    let mut copied = read_listed(cloning, listing, Copier::new(from, meter), Some(&mut target))?;
    copied.skips.total += skips.total;
    copied.skips.named.append(&mut skips.named);
    Ok(copied)
}

fn read_listed(
    cloning: &Cloning<'_>,
    listing: Listing,
    mut copier: Copier<'_>,
    mut target: Option<&mut Target>,
) -> Result<Copied, Refusal> {
    let mut copied = Copied {
        leaves: BTreeMap::new(),
        submodules: listing.submodules,
        opaque: BTreeSet::new(),
        bytes: 0,
        skips: Skips::default(),
    };
    for path in listing.files {
        let to = target.as_deref_mut().map(|target| (target, writable as Permit));
        match copier.read(&path, to)? {
            Some(read) => {
                copied.bytes += if read.leaf.mode == Mode::Link { 0 } else { size_of(&read.stat) };
                cloning.options.limits.check_bytes(copied.bytes)?;
                // A plain directory can hold repositories; what is in their `.git` is copied, but
                // belongs to no tree.
                match crate::gitname::through_dot_git(&path) {
                    Some(dir) => {
                        copied.opaque.insert(dir.to_vec());
                    }
                    None => {
                        copied.leaves.insert(path, read.leaf);
                    }
                }
            }
            None => {
                if let Some(stat) = copier.from.stat(&path)?
                    && kind_of(&stat) == Kind::Special
                {
                    copied.skips.add(&path, "special-file");
                }
            }
        }
    }
    if let Some(target) = target {
        for dir in &listing.empty_dirs {
            target.make_dir(dir)?;
        }
        // A submodule that was never filled is an empty directory; without it git calls it deleted.
        for dir in &copied.submodules {
            let there = copier.from.stat(dir)?.map(|stat| kind_of(&stat));
            if there == Some(Kind::Dir) && cloning.filter.shows(dir) {
                target.make_dir(dir)?;
            }
        }
    }
    copier.meter.finish();
    Ok(copied)
}

/// Refuses, before anything is read, what is too large or does not fit on the disk.
fn room_for(
    listing: &Listing,
    from: &mut Tree,
    limits: &Limits,
    target: &Target,
) -> Result<(), Refusal> {
    let mut bytes = 0u64;
    for path in &listing.files {
        bytes = bytes.saturating_add(from.stat(path)?.map_or(0, |stat| claimed(&stat)));
        limits.check_bytes(bytes)?;
    }
    fits(target.fd(), bytes)
}

/// Checks out a commit with a repository of ours: no filter is configured there.
pub(crate) fn copy_commit(
    cloning: &Cloning<'_>,
    progress: &mut dyn Report,
) -> Result<Copied, Refusal> {
    let commit = cloning.commit.ok_or_else(|| io("a commit was expected"))?.to_string();
    let git = |name: &str| cloning.store.git(name).with_attributes().work_tree(cloning.dest);
    git("read-tree").arg(&commit).run()?;
    let mut listing = Listing::default();
    let mut blobs = Vec::new();
    for line in nul_parts(&git("ls-files").args(["-z", "--stage"]).run()?) {
        let tab = line.iter().position(|byte| *byte == b'\t');
        let path = tab.map_or(&b""[..], |tab| &line[tab + 1..]);
        if line.starts_with(b"160000") {
            listing.submodules.insert(path.to_vec());
        } else if cloning.filter.shows(path) {
            listing.files.insert(path.to_vec());
            blobs.push(parse(line.get(7..47).unwrap_or_default())?);
        }
    }
    cloning.options.limits.check_count(listing.files.len())?;
    // A few kilobytes of a pack can be any number of bytes in files.
    let bytes = size_of_blobs(&cloning.store, &blobs)?;
    cloning.options.limits.check_bytes(bytes)?;
    let mut target = Target::new(open_dir(cloning.dest)?, false);
    fits(target.fd(), bytes)?;
    git("checkout-index")
        .args(["-q", "-u", "-z", "--stdin"])
        .run_with(|out| {
            for path in &listing.files {
                out.write_all(path)
                    .and_then(|()| out.write_all(b"\0"))
                    .map_err(|error| io(format!("writing: {error}")))?;
            }
            Ok(())
        })?
        .must()?;
    for dir in listing.submodules.iter().filter(|dir| cloning.filter.shows(dir)) {
        target.make_dir(dir)?;
    }
    let meter = Meter::new(progress, listing.files.len());
    let from = workspace(cloning.dest)?;
    read_listed(cloning, listing, Copier::new(from, meter), None)
}

/// Bytes of all these blobs together, as often as they are named. A missing one counts nothing here:
/// git says which one it is when it is needed.
fn size_of_blobs(store: &Store, ids: &[ObjectId]) -> Result<u64, Refusal> {
    let answers = store.cat_file("--batch-check=%(objectsize)", ids)?;
    let sizes = answers.split(|byte| *byte == b'\n');
    let sizes = sizes.filter_map(|line| std::str::from_utf8(line).ok()?.parse::<u64>().ok());
    Ok(sizes.fold(0, u64::saturating_add))
}

/// Objects that a store lacks: blobs by the file that holds them, trees in memory.
pub(crate) struct NewObjects<'a> {
    known: &'a HashSet<ObjectId>,
    blobs: BTreeMap<ObjectId, Vec<u8>>,
    trees: BTreeMap<ObjectId, Vec<u8>>,
}

impl<'a> NewObjects<'a> {
    pub(crate) fn new(known: &'a HashSet<ObjectId>) -> Self {
        NewObjects { known, blobs: BTreeMap::new(), trees: BTreeMap::new() }
    }

    /// The blob of this file is needed.
    pub(crate) fn want(&mut self, path: &[u8], leaf: &Leaf) {
        if !self.known.contains(&leaf.id) {
            self.blobs.entry(leaf.id).or_insert_with(|| path.to_vec());
        }
    }

    pub(crate) fn tree(&mut self, id: ObjectId, data: Vec<u8>) -> Result<(), Refusal> {
        if !self.known.contains(&id) {
            self.trees.insert(id, data);
        }
        Ok(())
    }

    /// Writes them all as one pack. Content that is not what was hashed leaves a tree without its
    /// blob: `--strict` or the check at the end refuses it.
    pub(crate) fn write(
        &self,
        store: &Store,
        dir: &Path,
        strict: Option<Code>,
    ) -> Result<(), Refusal> {
        let mut tree = workspace(dir)?;
        store.import(self.blobs.len() + self.trees.len(), strict, |pack| {
            for path in self.blobs.values() {
                write_blob(&mut tree, path, pack)?;
            }
            for data in self.trees.values() {
                pack.object(gix_object::Kind::Tree, data)?;
            }
            Ok(())
        })?;
        self.check(store)
    }

    fn check(&self, store: &Store) -> Result<(), Refusal> {
        let ids = self.blobs.keys().chain(self.trees.keys());
        let answers = store.cat_file("--batch-check=%(objecttype)", ids)?;
        if answers.split(|byte| *byte == b'\n').any(|line| line.ends_with(b" missing")) {
            let cause = "a file changed between two readings";
            return Err(Refusal::new(Code::FsChanged, cause));
        }
        Ok(())
    }
}

fn write_blob(
    tree: &mut Tree,
    path: &[u8],
    pack: &mut crate::pack::Writer<'_>,
) -> Result<(), Refusal> {
    let changed = || {
        let shown = crate::path::shown(path);
        Refusal::new(Code::FsChanged, format!("{shown} changed while it was read"))
    };
    let stat = tree.stat(path)?.ok_or_else(changed)?;
    match kind_of(&stat) {
        Kind::Link => {
            let target = tree.link(path)?;
            pack.object(gix_object::Kind::Blob, &target)
        }
        Kind::File => {
            let file = tree.open_file(path).map_err(at("opening", path))?;
            let stat = rustix::fs::fstat(&file).map_err(at("reading", path))?;
            if kind_of(&stat) != Kind::File {
                return Err(changed());
            }
            pack.blob(size_of(&stat), |out| {
                // One byte more than there was tells a file that grew.
                let most = size_of(&stat).saturating_add(1);
                let mut file = std::io::Read::take(std::fs::File::from(file), most);
                std::io::copy(&mut file, out).map_err(at("storing", path))
            })
        }
        _ => Err(changed()),
    }
}

/// Opens a workspace for reading; a symbolic link in its place is refused.
pub(crate) fn workspace(dir: &Path) -> Result<Tree, Refusal> {
    Tree::open(dir)
}
