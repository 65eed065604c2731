//! The private clone of a `workspace-write` run: a repository of its own with the user's working
//! state, in which everything works and nothing reaches the user's.
//!
//! History is what the base commit reaches and nothing else: never the user's object store, which
//! also holds deleted secrets and other branches. The clone owns its copy of the pack; a hard link
//! would let the run write into the cache.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use atenea_core::Refusal;
use gix_hash::ObjectId;
use serde::{Deserialize, Serialize};

use crate::clone_files::{Copied, copy_commit, copy_working_state};
use crate::copy::copy_private;
use crate::fail::{at_path, bad, io};
use crate::filter::{Compiled, Filter};
use crate::git::{Git, nul_parts};
use crate::identity::Identity;
use crate::ids::parse;
use crate::inspect::Source;
use crate::path::{RawPath, os};
use crate::progress::Report;
use crate::snapshot::{Limits, Skipped, copy_index};
use crate::staging::{Staging, make_dirs};
use crate::store::{BaseMeta, META_VERSION, Store, write_file};
use crate::tree::{Leaf, Mode, tree_of};

/// What the workspace starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// The files as they are on disk, committed or not.
    #[default]
    WorkingTree,
    /// The commit HEAD names.
    Head,
    /// Any commit.
    Commit(String),
}

/// How to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CloneOptions {
    /// What to start from.
    pub base: Base,
    /// Which files are visible.
    pub filter: Filter,
    /// Bounds.
    pub limits: Limits,
    /// Who the agent commits as.
    pub identity: Identity,
    /// Uid and gid that own everything in the end; only root can give files away.
    pub owner: Option<(u32, u32)>,
}

/// A private clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clone {
    /// Tree of the base, as a commit would record it.
    pub base_tree: String,
    /// Tree of the files as they lie in the workspace, byte for byte.
    pub raw_tree: String,
    /// The commit an export is put on top of.
    pub base_commit: Option<String>,
    /// Files and links in the workspace.
    pub files: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Skipped things, at most a hundred.
    pub skipped: Vec<Skipped>,
    /// How many things were skipped.
    pub skipped_total: u64,
}

/// Makes a private clone in `dest`, which must not exist, and its store in `store`, beside it and out
/// of the agent's reach. What a failure or crash leaves of the two is the caller's to remove; only a
/// store with `base.json` is complete.
///
/// # Errors
/// `fs.*`, `host.no_git`, `manifest.bad_value`.
pub fn clone_private(
    source: &Source,
    dest: &Path,
    store: &Path,
    cache: &Path,
    options: &CloneOptions,
    progress: &mut dyn Report,
) -> Result<Clone, Refusal> {
    let filter = options.filter.compile()?;
    for dir in ["packs", "staging"] {
        make_dirs(&cache.join(dir))?;
    }
    std::fs::create_dir(dest).map_err(at_path("making", dest))?;
    let cloning = Cloning {
        source,
        dest,
        cache,
        options,
        filter,
        store: Store::create(store, &options.identity)?,
        staging: Staging::new(cache)?,
        commit: base_commit(source, &options.base)?,
    };
    let clone = cloning.run(progress)?;
    if let Some((uid, gid)) = options.owner {
        crate::handover::give_to(dest, uid, gid, None)?;
    }
    Ok(clone)
}

/// The commit the workspace is based on; none for directories and before the first commit.
fn base_commit(source: &Source, base: &Base) -> Result<Option<ObjectId>, Refusal> {
    let rev = match base {
        Base::WorkingTree => {
            return source.head.as_ref().map(|id| parse(id.as_bytes())).transpose();
        }
        Base::Head => "HEAD",
        Base::Commit(rev) => rev,
    };
    if !source.is_repository() {
        return Err(bad(format!("base {rev} needs a git repository")));
    }
    let named = format!("{rev}^{{commit}}");
    let found =
        source.git("rev-parse").args(["--verify", "-q", "--end-of-options", &named]).outcome()?;
    if !found.ok() {
        return Err(bad(format!("the repository has no commit {rev:?}")));
    }
    parse(found.stdout.trim_ascii()).map(Some)
}

pub(crate) struct Cloning<'a> {
    pub(crate) source: &'a Source,
    pub(crate) dest: &'a Path,
    pub(crate) cache: &'a Path,
    pub(crate) options: &'a CloneOptions,
    pub(crate) filter: Compiled,
    pub(crate) store: Store,
    pub(crate) staging: Staging,
    pub(crate) commit: Option<ObjectId>,
}

/// Both trees of a base, as lists sorted by path.
struct Bases {
    raw: BTreeMap<Vec<u8>, Leaf>,
    base: BTreeMap<Vec<u8>, Leaf>,
}

impl Cloning<'_> {
    fn run(&self, progress: &mut dyn Report) -> Result<Clone, Refusal> {
        let repository = self.source.is_repository();
        let known = self.adopt_history()?;
        let index = copy_index(self.source, &self.staging.path)?;
        let copied = if self.options.base == Base::WorkingTree {
            copy_working_state(self, index.as_deref(), progress)?
        } else {
            copy_commit(self, progress)?
        };
        if repository && self.options.base == Base::WorkingTree {
            self.adopt_index(index.as_deref(), &known)?;
        }
        let bases = self.bases(&copied)?;
        let excludes = self.excludes()?;
        self.keep_ignore_rules(&bases.raw, &excludes)?;
        if repository && self.options.filter.is_everything() {
            self.repository_with_history(&excludes)?;
        }
        let (raw_tree, base_tree) = self.write_bases(&bases, &known)?;
        if repository && !self.options.filter.is_everything() {
            self.repository_without_history(&excludes, &raw_tree)?;
        }
        let _ = std::fs::remove_file(self.store.path.join("index"));
        let meta = BaseMeta {
            version: META_VERSION,
            kind: self.source.kind,
            root: self.source.root.clone(),
            filter: self.options.filter.clone(),
            raw_tree: raw_tree.to_string(),
            base_tree: base_tree.to_string(),
            base_commit: self.commit.map(|id| id.to_string()),
            submodules: copied.submodules.iter().map(|path| RawPath(path.clone())).collect(),
            git_state: crate::unchanged::git_state(self.dest, &copied.opaque)?,
            opaque: copied.opaque.iter().map(|path| RawPath(path.clone())).collect(),
            files: bases.raw.len() as u64,
            refs: Some(
                crate::history::refs_of(self.dest)?
                    .into_iter()
                    .map(|(name, value)| (RawPath(name), RawPath(value)))
                    .collect(),
            ),
        };
        self.store.complete(&meta)?;
        Ok(Clone {
            base_tree: meta.base_tree,
            raw_tree: meta.raw_tree,
            base_commit: meta.base_commit,
            files: meta.files,
            bytes: copied.bytes,
            skipped: copied.skips.named,
            skipped_total: copied.skips.total,
        })
    }

    /// Puts the history of the base commit into the store; gives the ids of its files and trees.
    fn adopt_history(&self) -> Result<HashSet<ObjectId>, Refusal> {
        let Some(commit) = self.commit else { return Ok(HashSet::new()) };
        let shallow = self.shallow()?;
        let stem = self.history_pack(commit, &shallow)?;
        self.store.adopt(&stem)?;
        if !shallow.is_empty() {
            write_file(&self.store.path.join("shallow"), &shallow)?;
        }
        let listed = self
            .store
            .git("ls-tree")
            .args(["-r", "-t", "-z", "--full-tree", "--format=%(objectname)"])
            .arg(commit.to_string())
            .run()?;
        nul_parts(&listed).map(parse).collect()
    }

    /// Where the user's repository ends when it is shallow.
    fn shallow(&self) -> Result<Vec<u8>, Refusal> {
        let Some(common) = &self.source.common_dir else { return Ok(Vec::new()) };
        let path = common.as_path().join("shallow");
        match read_within(&path, SHALLOW_MAX) {
            Ok(bytes) if bytes.len() <= SHALLOW_MAX => Ok(bytes),
            Ok(_) => Err(bad(format!("{path:?} has more than {SHALLOW_MAX} bytes"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(at_path("reading", &path)(error)),
        }
    }

    /// The pack of everything the commit reaches, made once per commit.
    fn history_pack(&self, commit: ObjectId, shallow: &[u8]) -> Result<PathBuf, Refusal> {
        let mut name = commit.to_string();
        if !shallow.is_empty() {
            name.push('-');
            name.push_str(&blake3::hash(shallow).to_hex().as_str()[..16]);
        }
        let stem = self.cache.join("packs").join(name);
        if stem.with_extension("idx").exists() && stem.with_extension("pack").exists() {
            return Ok(stem);
        }
        let made = self.staging.path.join("history.pack");
        let file = std::fs::File::create_new(&made).map_err(at_path("making", &made))?;
        self.source
            .git("pack-objects")
            .args(["--revs", "--stdout", "--delta-base-offset", "-q"])
            .run_to_file(file, |out| {
            writeln!(out, "{commit}").map_err(|error| io(format!("writing: {error}")))
        })?;
        let index = made.with_extension("idx");
        self.store.git("index-pack").arg("-o").arg(&index).arg(&made).run()?;
        // The index comes last: a pack with an index is complete.
        for kind in ["pack", "idx"] {
            let from = made.with_extension(kind);
            let to = stem.with_extension(kind);
            std::fs::File::open(&from)
                .and_then(|file| file.sync_all())
                .and_then(|()| std::fs::rename(&from, &to))
                .map_err(at_path("publishing", &to))?;
        }
        Ok(stem)
    }

    /// Brings the user's index into the store in a plain form, with the staged content that no
    /// commit holds yet.
    fn adopt_index(&self, index: Option<&Path>, known: &HashSet<ObjectId>) -> Result<(), Refusal> {
        let Some(index) = index.filter(|path| path.exists()) else { return Ok(()) };
        let at = |git: Git| git.env("GIT_INDEX_FILE", index);
        let listed = at(self.source.git("ls-files")).args(["-z", "--stage"]).run()?;
        let mut staged = BTreeSet::new();
        for line in nul_parts(&listed) {
            let id = line.get(7..47).ok_or_else(|| io("git ls-files gave a short line"))?;
            let id = parse(id)?;
            if !line.starts_with(b"160000") && !known.contains(&id) {
                staged.insert(id);
            }
        }
        self.adopt_staged(&staged)?;
        let own = self.store.path.join("index");
        std::fs::rename(index, &own)
            .or_else(|_| copy_with_time(index, &own))
            .map_err(at_path("placing", &own))?;
        self.adopt_shared_index()?;
        // Written once more by git: without monitors and shared parts, and with entries that are as
        // young as the index checked against the files (their content, by nobody's filter).
        self.store
            .git("update-index")
            .with_attributes()
            .work_tree(self.dest)
            .args(["--index-version", "2", "--no-split-index", "--no-untracked-cache"])
            .args(["--no-fsmonitor", "--force-write-index"])
            .run()
            .map(drop)
    }

    /// A split index keeps most of its entries in a second file.
    fn adopt_shared_index(&self) -> Result<(), Refusal> {
        let Some(git_dir) = &self.source.git_dir else { return Ok(()) };
        let dir = git_dir.as_path();
        let entries = std::fs::read_dir(dir).map_err(at_path("listing", dir))?;
        for entry in entries {
            let entry = entry.map_err(at_path("listing", dir))?;
            let name = entry.file_name();
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file && name.to_string_lossy().starts_with("sharedindex.") {
                copy_private(&entry.path(), &self.store.path.join(name))?;
            }
        }
        Ok(())
    }

    fn adopt_staged(&self, staged: &BTreeSet<ObjectId>) -> Result<(), Refusal> {
        if staged.is_empty() {
            return Ok(());
        }
        let list = |out: &mut dyn std::io::Write, ids: &mut dyn Iterator<Item = String>| {
            for id in ids {
                writeln!(out, "{id}").map_err(|error| io(format!("writing: {error}")))?;
            }
            Ok(())
        };
        // An entry that was only announced (`add -N`) has no object.
        let there = self
            .source
            .git("cat-file")
            .args(["--batch-check=%(objectname) %(objecttype)", "--buffer"])
            .run_with(|out| list(out, &mut staged.iter().map(ToString::to_string)))?
            .must()?;
        let there: Vec<String> = String::from_utf8_lossy(&there)
            .lines()
            .filter_map(|line| line.strip_suffix(" blob").map(str::to_owned))
            .collect();
        if there.is_empty() {
            return Ok(());
        }
        let path = self.staging.path.join("staged.pack");
        let file = std::fs::File::create_new(&path).map_err(at_path("making", &path))?;
        self.source
            .git("pack-objects")
            .args(["--stdout", "-q"])
            .run_to_file(file, |out| list(out, &mut there.into_iter()))?;
        let file = std::fs::File::open(&path).map_err(at_path("opening", &path))?;
        self.store.git("index-pack").arg("--stdin").run_from_file(file).map(drop)
    }

    /// What the base is, byte for byte and as a commit would record it.
    fn bases(&self, copied: &Copied) -> Result<Bases, Refusal> {
        let raw = copied.leaves.clone();
        let under_submodule = |path: &[u8]| {
            copied.submodules.iter().any(|dir| {
                path.strip_prefix(dir.as_slice()).is_some_and(|rest| rest.first() == Some(&b'/'))
            })
        };
        let mut base: BTreeMap<Vec<u8>, Leaf> = raw
            .iter()
            .filter(|(path, _)| !under_submodule(path))
            .map(|(path, leaf)| (path.clone(), *leaf))
            .collect();
        if self.store.path.join("index").exists() {
            self.recorded_entries(&mut base)?;
        }
        if let (Some(commit), false) = (self.commit, self.options.filter.is_everything()) {
            let all = self.store.files_of(&commit.to_string())?;
            base.extend(all.into_iter().filter(|(path, _)| !self.filter.shows(path)));
        }
        Ok(Bases { raw, base })
    }

    /// Entries of the index that the files on disk do not contradict.
    fn recorded_entries(&self, base: &mut BTreeMap<Vec<u8>, Leaf>) -> Result<(), Refusal> {
        let ls = |args: &[&str]| {
            self.store
                .git("ls-files")
                .with_attributes()
                .work_tree(self.dest)
                .arg("-z")
                .args(args)
                .run()
        };
        let modified = ls(&["--modified"])?;
        let modified: HashSet<&[u8]> = nul_parts(&modified).collect();
        for line in nul_parts(&ls(&["--stage", "-t"])?) {
            let wrong = || io("git ls-files gave a line of unknown form");
            let (tag, line) = line.split_at_checked(2).ok_or_else(wrong)?;
            let tab = line.iter().position(|byte| *byte == b'\t').ok_or_else(wrong)?;
            let path = &line[tab + 1..];
            let stage = line.get(48).copied();
            let mode = line.get(..6).and_then(Mode::parse).ok_or_else(wrong)?;
            let id = parse(line.get(7..47).ok_or_else(wrong)?)?;
            if stage != Some(b'0') {
                continue;
            }
            let absent = tag == b"S " && !base.contains_key(path);
            let clean = base.contains_key(path) && !modified.contains(path);
            if absent || clean || mode == Mode::Gitlink {
                base.insert(path.to_vec(), Leaf { mode, id });
            }
        }
        Ok(())
    }

    /// The ignore rules that are in no `.gitignore`: of the repository and of the user.
    fn excludes(&self) -> Result<Vec<u8>, Refusal> {
        let own = self.source.common_dir.as_ref().map(|dir| dir.as_path().join("info/exclude"));
        let user = self.options.identity.excludes.as_ref().map(|path| path.as_path().to_path_buf());
        let mut text = Vec::new();
        for path in [user, own].into_iter().flatten() {
            match read_within(&path, EXCLUDES_MAX) {
                Ok(bytes) if bytes.len() <= EXCLUDES_MAX => {
                    text.extend_from_slice(&bytes);
                    text.push(b'\n');
                }
                Ok(_) => return Err(bad(format!("{path:?} has more than {EXCLUDES_MAX} bytes"))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(at_path("reading", &path)(error)),
            }
        }
        Ok(text)
    }

    /// Keeps the ignore rules of the base, out of the agent's reach, for the seal.
    fn keep_ignore_rules(
        &self,
        raw: &BTreeMap<Vec<u8>, Leaf>,
        excludes: &[u8],
    ) -> Result<(), Refusal> {
        write_file(&self.store.path.join("info/exclude"), excludes)?;
        if !self.source.is_repository() {
            return Ok(());
        }
        let rules = raw.iter().filter(|(path, leaf)| {
            leaf.mode != Mode::Link && crate::path::split(path).1 == b".gitignore"
        });
        for (path, _) in rules {
            let to = self.store.path.join("ignore").join(os(path));
            if let Some(dir) = to.parent() {
                make_dirs(dir)?;
            }
            copy_private(&self.dest.join(os(path)), &to)?;
        }
        Ok(())
    }

    fn write_bases(
        &self,
        bases: &Bases,
        known: &HashSet<ObjectId>,
    ) -> Result<(ObjectId, ObjectId), Refusal> {
        let mut objects = crate::clone_files::NewObjects::new(known);
        for (path, leaf) in &bases.raw {
            objects.want(path, leaf);
        }
        let mut tree = |map| tree_of(map, &mut |id, data| objects.tree(id, data));
        let raw = tree(&bases.raw)?;
        let base = tree(&bases.base)?;
        objects.write(&self.store, self.dest, None)?;
        Ok((raw, base))
    }
}

/// The most bytes of an ignore file: it is read whole.
const EXCLUDES_MAX: usize = 1 << 20;

/// The most bytes of the list where history ends: 400,000 commits.
const SHALLOW_MAX: usize = 16 << 20;

/// Reads a file that may be a hole; one byte more than the most tells that there is more.
fn read_within(path: &Path, max: usize) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn copy_with_time(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::copy(from, to)?;
    let time = std::fs::metadata(from)?.modified()?;
    std::fs::File::options().write(true).open(to)?.set_modified(time)
}
