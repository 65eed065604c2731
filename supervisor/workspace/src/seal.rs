//! Turns what the agent left into git objects of ours.
//!
//! New files that the base's ignore rules match are not part of the result (unless the manifest's
//! `include_ignored` names them) and are counted. Files whose bytes did not change keep the entry
//! they had in the base, whatever filter or line-ending rule once made them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::beneath::Kind;
use crate::clone_files::{NewObjects, workspace};
use crate::copy::Copier;
use crate::path::{RawPath, join};
use crate::progress::{Meter, Report};
use crate::seal_walk::{Found, Walked, Walker, check_link, link_targets};
use crate::snapshot::Limits;
use crate::store::{BaseMeta, Store};
use crate::tree::{Leaf, Mode, tree_of};

/// What to look at more closely.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SealOptions {
    /// Bounds.
    pub limits: Limits,
    /// Files that were setuid or setgid when the workspace was handed over, see
    /// [`crate::give_to`]: giving a file away clears the bits.
    pub setuid: Vec<RawPath>,
}

/// How many files differ from the base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// New files.
    pub added: u64,
    /// Files with other content, mode or kind.
    pub modified: u64,
    /// Files that are gone.
    pub deleted: u64,
    /// New files that the base's rules ignore; they are not part of the result.
    pub ignored: u64,
}

/// A change that cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Where it is.
    pub path: RawPath,
    /// Why.
    pub code: Code,
}

/// Refused changes that are named; the count is always complete.
const REFUSED_MAX: usize = 100;

/// The result of a run, as objects in its store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// Tree an exported commit gets.
    pub result_tree: String,
    /// Tree of the files byte for byte: what `diff` shows and a patch is made of.
    pub raw_tree: String,
    /// What changed.
    pub changes: Changes,
    /// Changes that stand against an export, at most a hundred. They are in no tree, except those
    /// in submodules, which only `raw_tree` holds.
    pub refused: Vec<Refused>,
    /// How many there are.
    pub refused_total: u64,
}

impl Sealed {
    /// Whether everything that changed can be exported, as a commit or as a patch.
    ///
    /// # Errors
    /// The code of the first change that cannot.
    pub fn exportable(&self, as_patch: bool) -> Result<(), Refusal> {
        let stands = |refused: &&Refused| !(as_patch && refused.code == Code::ExportSubmodule);
        let Some(first) = self.refused.iter().find(stands) else {
            // Unnamed ones are beyond the bound; what they are is not known here.
            return match self.refused_total > self.refused.len() as u64 {
                true => Err(Refusal::new(Code::ExportBadPath, "too many changes are refused")),
                false => Ok(()),
            };
        };
        let others = match self.refused_total {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        Err(Refusal::new(first.code, format!("{}{others}", first.path.shown())))
    }
}

/// Seals a workspace whose agent is gone.
///
/// # Errors
/// `fs.*`; `export.bad_path` when git's strict check finds something ours did not.
pub fn seal(
    ws: &Path,
    store: &Path,
    options: &SealOptions,
    progress: &mut dyn Report,
) -> Result<Sealed, Refusal> {
    let (store, meta) = Store::open(store)?;
    let filter = meta.filter.compile()?;
    let raw_base = store.files_of(&meta.raw_tree)?;
    let base = store.files_of(&meta.base_tree)?;
    let walker = Walker {
        store: &store,
        meta: &meta,
        base: &raw_base,
        filter: &filter,
        limits: &options.limits,
    };
    let mut walked = walker.run(ws)?;
    for path in &options.setuid {
        if walked.files.contains_key(&path.0) {
            walked.problems.insert(path.0.clone(), Code::ExportSetuid);
        }
    }
    let sealing = Sealing { ws, store: &store, meta: &meta, raw_base, base };
    let now = sealing.read(&walked, options, progress)?;
    sealing.check(&walked, now)
}

struct Sealing<'a> {
    ws: &'a Path,
    store: &'a Store,
    meta: &'a BaseMeta,
    raw_base: BTreeMap<Vec<u8>, Leaf>,
    base: BTreeMap<Vec<u8>, Leaf>,
}

impl Sealing<'_> {
    /// Hashes everything: times and sizes are the agent's word.
    fn read(
        &self,
        walked: &Walked,
        options: &SealOptions,
        progress: &mut dyn Report,
    ) -> Result<BTreeMap<Vec<u8>, Leaf>, Refusal> {
        let meter = Meter::new(progress, walked.files.len());
        let mut copier = Copier::new(workspace(self.ws)?, meter);
        let mut now = BTreeMap::new();
        let mut bytes: u64 = 0;
        for path in walked.files.keys() {
            // Before it is read: a hole of a terabyte costs the agent nothing.
            bytes += copier.claimed(path)?;
            options.limits.check_bytes(bytes)?;
            let read = copier.read(path, None)?.ok_or_else(|| {
                let shown = crate::path::shown(path);
                Refusal::new(Code::FsChanged, format!("{shown} vanished while it was read"))
            })?;
            now.insert(path.clone(), read.leaf);
        }
        copier.meter.finish();
        Ok(now)
    }

    fn check(&self, walked: &Walked, mut now: BTreeMap<Vec<u8>, Leaf>) -> Result<Sealed, Refusal> {
        let mut problems = walked.problems.clone();
        let links = link_targets(self.ws, &walked.files)?;
        for (path, found) in &walked.files {
            let changed = now.get(path) != self.raw_base.get(path);
            if let Some(code) = changed.then(|| self.problem(path, found, &links)).flatten() {
                problems.entry(path.clone()).or_insert(code);
            }
        }
        for path in self.raw_base.keys().filter(|path| !now.contains_key(*path)) {
            if self.meta.in_submodule(path) {
                problems.entry(path.clone()).or_insert(Code::ExportSubmodule);
            }
        }
        // What is refused is in no tree; what the base had there stays. A change in a submodule is
        // refused only by a commit: a patch can carry it.
        let kept = problems.iter().filter(|(_, code)| **code != Code::ExportSubmodule);
        for (path, _) in kept {
            match self.raw_base.get(path) {
                Some(leaf) if !self.is_covered(path, &now) => now.insert(path.clone(), *leaf),
                _ => now.remove(path),
            };
        }
        let result = self.recorded(&now);
        let changes = self.changes(&now, walked.ignored);
        let (raw_tree, result_tree) = self.write(&now, &result)?;
        self.store.sync()?;
        Ok(Sealed {
            result_tree,
            raw_tree,
            changes,
            refused_total: problems.len() as u64,
            refused: problems
                .into_iter()
                .take(REFUSED_MAX)
                .map(|(path, code)| Refused { path: RawPath(path), code })
                .collect(),
        })
    }

    /// Whether a path cannot be restored because it is a directory now, or lies below a file.
    fn is_covered(&self, path: &[u8], now: &BTreeMap<Vec<u8>, Leaf>) -> bool {
        let below = join(path, b"");
        let directory =
            now.range(below.clone()..).next().is_some_and(|(p, _)| p.starts_with(&below));
        directory || ancestors(path).any(|dir| now.contains_key(dir))
    }

    fn problem(
        &self,
        path: &[u8],
        found: &Found,
        links: &std::collections::HashMap<Vec<u8>, Vec<u8>>,
    ) -> Option<Code> {
        if found.linked {
            return Some(Code::ExportHardLink);
        }
        if self.meta.in_submodule(path) {
            return Some(Code::ExportSubmodule);
        }
        if !self.raw_base.contains_key(path) && self.hides(path) {
            return Some(Code::ExportBadPath);
        }
        match found.kind {
            Kind::Link => links.get(path).and_then(|target| check_link(path, target, links)),
            _ => None,
        }
    }

    /// Whether the base holds something here that the workspace does not show.
    fn hides(&self, path: &[u8]) -> bool {
        let hidden =
            |path: &[u8]| self.base.contains_key(path) && !self.raw_base.contains_key(path);
        let below = join(path, b"");
        hidden(path)
            || ancestors(path).any(hidden)
            || self
                .base
                .range(below.clone()..)
                .take_while(|(other, _)| other.starts_with(&below))
                .any(|(other, _)| hidden(other))
    }

    /// The result as a commit records it.
    fn recorded(&self, now: &BTreeMap<Vec<u8>, Leaf>) -> BTreeMap<Vec<u8>, Leaf> {
        let mut result: BTreeMap<Vec<u8>, Leaf> = self
            .base
            .iter()
            .filter(|(path, _)| !self.raw_base.contains_key(*path))
            .map(|(path, leaf)| (path.clone(), *leaf))
            .collect();
        for (path, leaf) in now.iter().filter(|(path, _)| !self.meta.in_submodule(path)) {
            let entry = match (self.raw_base.get(path), self.base.get(path)) {
                (Some(raw), Some(base)) if raw == leaf => *base,
                (Some(raw), Some(base)) if raw.id == leaf.id && same_kind(raw.mode, leaf.mode) => {
                    Leaf { mode: leaf.mode, id: base.id }
                }
                _ => *leaf,
            };
            result.insert(path.clone(), entry);
        }
        result
    }

    fn changes(&self, now: &BTreeMap<Vec<u8>, Leaf>, ignored: u64) -> Changes {
        let mut changes = Changes { ignored, ..Changes::default() };
        for (path, leaf) in now {
            match self.raw_base.get(path) {
                None => changes.added += 1,
                Some(before) if before != leaf => changes.modified += 1,
                Some(_) => {}
            }
        }
        let gone = self.raw_base.keys().filter(|path| !now.contains_key(*path));
        changes.deleted = gone.count() as u64;
        changes
    }

    fn write(
        &self,
        now: &BTreeMap<Vec<u8>, Leaf>,
        result: &BTreeMap<Vec<u8>, Leaf>,
    ) -> Result<(String, String), Refusal> {
        if now == &self.raw_base && result == &self.base {
            return Ok((self.meta.raw_tree.clone(), self.meta.base_tree.clone()));
        }
        let known: HashSet<_> =
            self.raw_base.values().chain(self.base.values()).map(|leaf| leaf.id).collect();
        let mut objects = NewObjects::new(&known);
        for (path, leaf) in now {
            objects.want(path, leaf);
        }
        let mut tree = |map| tree_of(map, &mut |id, data| objects.tree(id, data));
        let raw = tree(now)?;
        let recorded = tree(result)?;
        objects.write(self.store, self.ws, Some(Code::ExportBadPath))?;
        Ok((raw.to_string(), recorded.to_string()))
    }
}

fn same_kind(a: Mode, b: Mode) -> bool {
    (a == Mode::Link) == (b == Mode::Link)
}

/// The directories a path lies in.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}
