//! The working state of a directory as one read-only tree, shared by all runs that see the same.
//!
//! Layout of the cache: `trees/ID/{complete,tree/}`, `staging/` for trees that are being made,
//! `stat/` for what is known about the files of a source, `packs/` for history. A tree comes into
//! `trees` whole, by one rename, with a marker that names the boot it was made in.

use std::path::{Path, PathBuf};

use atenea_core::{Code, Refusal};
use rustix::fs::{FlockOperation, Mode as Permissions};
use serde::{Deserialize, Serialize};

use crate::beneath::{Kind, Tree, claimed, kind_of, open_dir, size_of};
use crate::copy::{Copier, Target};
use crate::fail::{at, at_path};
use crate::filter::{Compiled, Filter};
use crate::ids::id_of;
use crate::inspect::Source;
use crate::list::{Listing, Wanted};
use crate::path::RawPath;
use crate::progress::{Meter, Report};
use crate::room::fits;
use crate::staging::{Staging, make_dirs, remove_tree};
use crate::statcache::StatCache;
use crate::tree::{Leaf, Mode, build, no_sink};

/// Bounds of what is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most files.
    pub files: u64,
    /// The most bytes of all files together.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // Above the largest repositories people work in; memory stays below 200 bytes per file.
        Limits { files: 2_000_000, bytes: 64 << 30 }
    }
}

impl Limits {
    pub(crate) fn check_count(&self, count: usize) -> Result<(), Refusal> {
        if count as u64 > self.files {
            let cause = format!("the workspace holds more than {} files", self.files);
            return Err(Refusal::new(Code::FsTooLarge, cause));
        }
        Ok(())
    }

    pub(crate) fn check_bytes(&self, bytes: u64) -> Result<(), Refusal> {
        if bytes > self.bytes {
            let cause = format!("the workspace holds more than {} bytes", self.bytes);
            return Err(Refusal::new(Code::FsTooLarge, cause));
        }
        Ok(())
    }
}

/// Something that is not part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Where it is.
    pub path: RawPath,
    /// `special-file` or `other-filesystem`.
    pub reason: String,
}

/// Names of skipped things that are kept; the count is always complete.
const SKIPPED_MAX: usize = 100;

#[derive(Default)]
pub(crate) struct Skips {
    pub(crate) named: Vec<Skipped>,
    pub(crate) total: u64,
}

impl Skips {
    pub(crate) fn add(&mut self, path: &[u8], reason: &str) {
        self.total += 1;
        if self.named.len() < SKIPPED_MAX {
            self.named.push(Skipped { path: RawPath(path.to_vec()), reason: reason.to_owned() });
        }
    }
}

/// What to take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotOptions {
    /// Which files are visible.
    pub filter: Filter,
    /// Bounds.
    pub limits: Limits,
    /// The user's own ignore file (`core.excludesFile`), see [`crate::identity`].
    pub excludes: Option<RawPath>,
}

/// A tree in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Git tree id of the raw content.
    pub tree: String,
    /// Where it is: read-only, below `trees/` of the cache.
    pub path: RawPath,
    /// Files and links in it.
    pub files: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Whether this call made it.
    pub newly_made: bool,
    /// Skipped things, at most a hundred.
    pub skipped: Vec<Skipped>,
    /// How many things were skipped.
    pub skipped_total: u64,
}

/// Makes the snapshot of a working state, or finds it in the cache.
///
/// # Errors
/// `fs.changed`, `fs.too_large`, `fs.not_yours`, `fs.disk_full`, `fs.io`, `fs.bad_workspace`.
pub fn snapshot(
    source: &Source,
    cache: &Path,
    options: &SnapshotOptions,
    progress: &mut dyn Report,
) -> Result<Snapshot, Refusal> {
    snapshot_as_of(source, cache, options, progress, None)
}

/// `started` replaces the moment before the first read, for tests of the stat cache.
pub(crate) fn snapshot_as_of(
    source: &Source,
    cache: &Path,
    options: &SnapshotOptions,
    progress: &mut dyn Report,
    started: Option<i128>,
) -> Result<Snapshot, Refusal> {
    let filter = options.filter.compile()?;
    for dir in ["trees", "staging", "stat"] {
        make_dirs(&cache.join(dir))?;
    }
    let staging = Staging::new(cache)?;
    let made = rustix::fs::fstat(&staging.fd).map_err(at_path("reading", &staging.path))?;
    let mut making = Making {
        started: started.unwrap_or_else(|| crate::beneath::ctime(&made)),
        source,
        options,
        stat_file: cache.join("stat").join(stat_name(source, options)),
        skips: Skips::default(),
        bytes: 0,
        staging,
    };
    making.run(cache, &filter, progress)
}

/// The cache of stats belongs to a root and to what is visible of it.
fn stat_name(source: &Source, options: &SnapshotOptions) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&source.root.0).update(&[0]);
    for glob in options.filter.files.iter().chain(&options.filter.include_ignored) {
        hasher.update(glob.as_bytes()).update(&[0]);
    }
    hasher.finalize().to_hex().as_str()[..32].to_owned()
}

struct Making<'a> {
    started: i128,
    source: &'a Source,
    options: &'a SnapshotOptions,
    stat_file: PathBuf,
    skips: Skips,
    bytes: u64,
    staging: Staging,
}

type Leaves = Vec<(Vec<u8>, Leaf)>;

impl Making<'_> {
    fn run(
        &mut self,
        cache: &Path,
        filter: &Compiled,
        progress: &mut dyn Report,
    ) -> Result<Snapshot, Refusal> {
        let index = copy_index(self.source, &self.staging.path)?;
        let wanted = Wanted {
            source: self.source,
            filter,
            limits: &self.options.limits,
            index: index.as_deref(),
            excludes: self.options.excludes.as_ref(),
        };
        let listing = wanted.list(&mut self.skips)?;
        let old = StatCache::load(&self.stat_file);
        let mut tree = Tree::open(self.source.root.as_path())?;
        let mut known: Leaves = Vec::with_capacity(listing.files.len());
        let (mut unknown, mut unknown_bytes) = (Vec::new(), 0u64);
        for path in &listing.files {
            let Some(stat) = self.look(&mut tree, path)? else { continue };
            match old.get(path, &stat) {
                Some(leaf) => known.push((path.clone(), leaf)),
                None => {
                    unknown.push(path.clone());
                    unknown_bytes = unknown_bytes.saturating_add(claimed(&stat));
                }
            }
        }
        let mut copier = Copier::new(tree, Meter::new(progress, listing.files.len()));
        // With few unknown files it pays to look for the tree before everything is copied.
        if unknown.len() * 2 <= known.len() || known.is_empty() && unknown.is_empty() {
            // Most likely they are new and have to be copied: then they are not read in vain.
            fits(&self.staging.fd, unknown_bytes)?;
            let (id, files) = self.read_few(&mut copier, &listing, known, &unknown, old)?;
            let path = cache.join("trees").join(&id);
            if is_complete(&path) {
                copier.meter.finish();
                return Ok(self.done(id, &path, files, false));
            }
        }
        let (id, files) = self.copy_all(&mut copier, &listing)?;
        let path = cache.join("trees").join(&id);
        copier.meter.finish();
        let newly_made = self.publish(&path, &id, files)?;
        Ok(self.done(id, &path, files, newly_made))
    }

    /// Reads what a path is; counts files, reports what cannot be part of a snapshot.
    fn look(&mut self, tree: &mut Tree, path: &[u8]) -> Result<Option<rustix::fs::Stat>, Refusal> {
        let stat = match tree.stat(path) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        match kind_of(&stat) {
            Kind::Dir => return Ok(None),
            Kind::Special => {
                self.skips.add(path, "special-file");
                return Ok(None);
            }
            Kind::File | Kind::Link => {}
        }
        self.bytes = self.bytes.saturating_add(claimed(&stat));
        self.options.limits.check_bytes(self.bytes)?;
        Ok(Some(stat))
    }

    fn read_few(
        &mut self,
        copier: &mut Copier<'_>,
        listing: &Listing,
        known: Leaves,
        unknown: &[Vec<u8>],
        old: StatCache,
    ) -> Result<(String, u64), Refusal> {
        let mut stats = old;
        let mut leaves = known;
        for path in unknown {
            if let Some(read) = copier.read(path, None)? {
                stats.put(path, &read.stat, read.leaf, self.started);
                leaves.push((path.clone(), read.leaf));
            }
        }
        leaves.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if !unknown.is_empty() {
            stats.save(&self.stat_file)?;
        }
        tree_id(&leaves, listing)
    }

    fn copy_all(
        &mut self,
        copier: &mut Copier<'_>,
        listing: &Listing,
    ) -> Result<(String, u64), Refusal> {
        // What was seen at the first look; while it is copied the disk is looked at again.
        fits(&self.staging.fd, self.bytes)?;
        let root = self.staging.path.join("tree");
        std::fs::create_dir(&root).map_err(at_path("making", &root))?;
        let mut target = Target::new(open_dir(&root)?, false);
        let mut stats = StatCache::default();
        let mut leaves = Leaves::new();
        self.bytes = 0;
        for path in &listing.files {
            if let Some(read) = copier.read(path, Some((&mut target, read_only)))? {
                if read.leaf.mode != Mode::Link {
                    self.bytes += size_of(&read.stat);
                    self.options.limits.check_bytes(self.bytes)?;
                }
                stats.put(path, &read.stat, read.leaf, self.started);
                leaves.push((path.clone(), read.leaf));
            }
        }
        for dir in &listing.empty_dirs {
            target.make_dir(dir)?;
        }
        for dir in target.dirs() {
            rustix::fs::chmodat(
                target.fd(),
                dir.as_slice(),
                Permissions::from_raw_mode(0o555),
                rustix::fs::AtFlags::empty(),
            )
            .map_err(at("setting the mode of", dir))?;
        }
        rustix::fs::fchmod(target.fd(), Permissions::from_raw_mode(0o555))
            .map_err(at_path("setting the mode of", &root))?;
        stats.save(&self.stat_file)?;
        tree_id(&leaves, listing)
    }

    /// Moves the staged tree into place; `false` when somebody else was first.
    fn publish(&mut self, path: &Path, id: &str, files: u64) -> Result<bool, Refusal> {
        let marker = serde_json::json!({
            "tree": id, "files": files, "bytes": self.bytes, "boot": boot_id()?,
        });
        let marker_file = self.staging.path.join(MARKER);
        crate::store::write_file(&marker_file, marker.to_string().as_bytes())?;
        // The listing is done; the copy of the index has served.
        let _ = std::fs::remove_file(self.staging.path.join("index"));
        let trees = path.parent().map(open_dir).transpose()?;
        let trees = trees.ok_or_else(|| crate::fail::io("the cache has no directory of trees"))?;
        // Held until the end of the call: only one maker replaces a tree of an earlier boot.
        rustix::fs::flock(&trees, FlockOperation::LockExclusive)
            .map_err(at_path("locking", path))?;
        if is_complete(path) {
            return Ok(false);
        }
        if path.exists() {
            let aside = self.staging.path.with_extension("old");
            std::fs::rename(path, &aside).map_err(at_path("replacing", path))?;
            remove_tree(&aside)?;
        }
        std::fs::rename(&self.staging.path, path).map_err(at_path("publishing", path))?;
        self.staging.moved = true;
        Ok(true)
    }

    fn done(&mut self, tree: String, path: &Path, files: u64, newly_made: bool) -> Snapshot {
        let skips = std::mem::take(&mut self.skips);
        Snapshot {
            tree,
            path: path.join("tree").into(),
            files,
            bytes: self.bytes,
            newly_made,
            skipped: skips.named,
            skipped_total: skips.total,
        }
    }
}

const MARKER: &str = "complete";

/// Whether a tree of the cache can be used. Its files were never synced one by one, so after a power
/// loss some may be empty: a tree counts only in the boot it was made in, and is made again in the
/// next.
fn is_complete(tree: &Path) -> bool {
    let marker = std::fs::read(tree.join(MARKER)).ok();
    let marker: Option<serde_json::Value> =
        marker.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    match (marker, boot_id()) {
        (Some(marker), Ok(boot)) => marker.get("boot").and_then(|v| v.as_str()) == Some(&boot),
        _ => false,
    }
}

fn boot_id() -> Result<String, Refusal> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(at_path("reading", path))?;
    Ok(text.trim().to_owned())
}

/// Permissions in the cache: nobody writes.
fn read_only(mode: Mode) -> u32 {
    if mode == Mode::Executable { 0o555 } else { 0o444 }
}

/// The tree id of what was read; empty directories of plain directories count.
fn tree_id(leaves: &Leaves, listing: &Listing) -> Result<(String, u64), Refusal> {
    let empty = Leaf { mode: Mode::EmptyDir, id: id_of(gix_object::Kind::Tree, b"")? };
    let mut all: Vec<(&[u8], Leaf)> =
        leaves.iter().map(|(path, leaf)| (path.as_slice(), *leaf)).collect();
    all.extend(listing.empty_dirs.iter().map(|path| (path.as_slice(), empty)));
    all.sort_unstable_by(|a, b| a.0.cmp(b.0));
    Ok((build(&all, &mut no_sink)?.to_string(), leaves.len() as u64))
}

/// Copies the index, so that the listing sees one state; `None` without a repository.
pub(crate) fn copy_index(source: &Source, to: &Path) -> Result<Option<PathBuf>, Refusal> {
    let Some(git_dir) = &source.git_dir else { return Ok(None) };
    let copy = to.join("index");
    let from = git_dir.as_path().join("index");
    match std::fs::symlink_metadata(&from) {
        Ok(meta) if meta.is_file() => {
            crate::copy::copy_private(&from, &copy)?;
            // git compares file times with the time of the index: the copy must not look newer.
            let dated = meta.modified().and_then(|time| {
                std::fs::File::options().write(true).open(&copy)?.set_modified(time)
            });
            dated.map_err(at_path("dating", &copy))?;
        }
        Ok(_) => return Err(crate::fail::bad("the index of the repository is no file")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(at_path("reading", &from)(error)),
    }
    Ok(Some(copy))
}

#[cfg(test)]
mod tests;
