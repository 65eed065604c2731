//! Turns what the agent left into git objects of ours.
//!
//! New files that the base's ignore rules match are not part of the result (unless the manifest's
//! `include_ignored` names them) and are counted. Files whose bytes did not change keep the entry
//! they had in the base, whatever filter or line-ending rule once made them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::clone_files::{NewObjects, workspace};
use crate::copy::Copier;
use crate::history::{History, history};
use crate::path::{RawPath, join};
use crate::progress::{Meter, Report};
use crate::seal_walk::{Found, Walked, Walker, link_targets};
use crate::settle::{Files, Problems};
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
    /// The words of git's own check, when it was that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Refused changes that are named; the count is always complete.
const REFUSED_MAX: usize = 100;
/// The most characters of git's words about one of them.
const WHY_MAX: usize = 300;

/// The result of a run, as objects in its store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// Tree an exported commit gets.
    pub result_tree: String,
    /// Tree of the files byte for byte: what `diff` shows and a patch is made of.
    pub raw_tree: String,
    /// What changed.
    pub changes: Changes,
    /// Changes that no export carries, at most a hundred. They are in no tree, except those in
    /// submodules, which only `raw_tree` holds.
    pub refused: Vec<Refused>,
    /// How many there are.
    pub refused_total: u64,
    /// The agent's own history, which no export carries either.
    #[serde(default)]
    pub history: History,
    /// Whether the run started from files that no commit held: an export then makes two commits.
    #[serde(default)]
    pub uncommitted_base: bool,
}

impl Sealed {
    /// The named changes that an export leaves out; a patch carries those in submodules.
    pub fn left_out(&self, as_patch: bool) -> impl Iterator<Item = &Refused> {
        let carried = move |refused: &&Refused| as_patch && refused.code == Code::ExportSubmodule;
        self.refused.iter().filter(move |refused| !carried(refused))
    }

    /// What to say when nothing at all can be exported.
    pub(crate) fn nothing(&self, as_patch: bool) -> Refusal {
        let Some(first) = self.left_out(as_patch).next() else {
            let cause = "no file changed that an export carries";
            return Refusal::new(Code::ExportNothing, cause)
                .with_help("see what there is: atenea-sup diff RUN");
        };
        let others = match self.refused_total {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        Refusal::new(first.code, format!("nothing else changed: {}{others}", first.path.shown()))
    }
}

/// The most times that git's own check is asked for what it lets through.
const CHECKS_MAX: usize = 8;

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
    let limits = walked.bound(&options.limits)?;
    let sealing = Sealing { ws, store: &store, meta: &meta, raw_base, base };
    let now = sealing.read(&walked, &limits, progress)?;
    sealing.check(&walked, now)
}

pub(crate) struct Sealing<'a> {
    ws: &'a Path,
    pub(crate) store: &'a Store,
    meta: &'a BaseMeta,
    pub(crate) raw_base: Files,
    base: Files,
}

impl Sealing<'_> {
    /// Hashes everything: times and sizes are the agent's word.
    fn read(
        &self,
        walked: &Walked,
        limits: &Limits,
        progress: &mut dyn Report,
    ) -> Result<Files, Refusal> {
        let meter = Meter::new(progress, walked.files.len());
        let mut copier = Copier::new(workspace(self.ws)?, meter);
        let mut now = BTreeMap::new();
        let mut bytes: u64 = 0;
        for path in walked.files.keys() {
            // Once more, in case it grew since it was met.
            bytes = bytes.saturating_add(copier.claimed(path)?);
            limits.check_bytes(bytes)?;
            let read = copier.read(path, None)?.ok_or_else(|| {
                let shown = crate::path::shown(path);
                Refusal::new(Code::FsChanged, format!("{shown} vanished while it was read"))
            })?;
            now.insert(path.clone(), read.leaf);
        }
        copier.meter.finish();
        Ok(now)
    }

    /// Leaves out what cannot be exported and makes objects of the rest. Git's own check has the
    /// last word: what it refuses is left out too, and it is asked again.
    fn check(&self, walked: &Walked, mut now: Files) -> Result<Sealed, Refusal> {
        let targets = link_targets(self.ws, &walked.files)?;
        let mut problems = self.problems(walked, &now);
        let mut words: BTreeMap<Vec<u8>, String> = BTreeMap::new();
        for _ in 0..CHECKS_MAX {
            self.settle(&mut now, &mut problems, &targets)?;
            let result = self.recorded(&now);
            let refusal = match self.write(&now, &result) {
                Ok(trees) => return self.sealed(walked, &now, trees, problems, &words),
                Err(refusal) => refusal,
            };
            let blamed = self.blamed(&refusal, &now);
            if blamed.is_empty() {
                return Err(refusal);
            }
            problems.extend(blamed.keys().map(|path| (path.clone(), Code::ExportBadPath)));
            words.extend(blamed);
        }
        Err(Refusal::new(Code::ExportBadPath, "git refuses too many of the changed files"))
    }

    fn problems(&self, walked: &Walked, now: &Files) -> Problems {
        let mut problems = walked.problems.clone();
        for (path, found) in &walked.files {
            let changed = now.get(path) != self.raw_base.get(path);
            if let Some(code) = changed.then(|| self.problem(path, found)).flatten() {
                problems.entry(path.clone()).or_insert(code);
            }
        }
        for path in self.raw_base.keys().filter(|path| !now.contains_key(*path)) {
            if self.meta.in_submodule(path) {
                problems.entry(path.clone()).or_insert(Code::ExportSubmodule);
            }
        }
        problems
    }

    fn sealed(
        &self,
        walked: &Walked,
        now: &Files,
        (raw_tree, result_tree): (String, String),
        problems: Problems,
        words: &BTreeMap<Vec<u8>, String>,
    ) -> Result<Sealed, Refusal> {
        self.store.sync()?;
        let before = self.meta.refs.as_deref();
        Ok(Sealed {
            result_tree,
            raw_tree,
            changes: self.changes(now, walked.ignored),
            refused_total: problems.len() as u64,
            refused: problems
                .into_iter()
                .take(REFUSED_MAX)
                .map(|(path, code)| {
                    let why = words.get(&path).map(|text| text.chars().take(WHY_MAX).collect());
                    Refused { path: RawPath(path), code, why }
                })
                .collect(),
            history: before.map(|refs| history(self.ws, refs)).unwrap_or_default(),
            uncommitted_base: self.meta.has_uncommitted(self.store)?,
        })
    }

    fn problem(&self, path: &[u8], found: &Found) -> Option<Code> {
        if found.linked {
            return Some(Code::ExportHardLink);
        }
        if self.meta.in_submodule(path) {
            return Some(Code::ExportSubmodule);
        }
        (!self.raw_base.contains_key(path) && self.hides(path)).then_some(Code::ExportBadPath)
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
    fn recorded(&self, now: &Files) -> Files {
        let mut result: Files = self
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

    fn changes(&self, now: &Files, ignored: u64) -> Changes {
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

    fn write(&self, now: &Files, result: &Files) -> Result<(String, String), Refusal> {
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
pub(crate) fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}
