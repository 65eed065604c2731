//! What of a sealed workspace can be exported: the rest is left out, with its reason.
//!
//! Nothing that was left out may change what the others mean, so links are followed in the tree as
//! it would be checked out: with the entries of the base that stay in the place of refused ones.

use std::collections::{BTreeMap, HashMap, HashSet};

use atenea_core::{Code, Refusal};
use gix_hash::ObjectId;

use crate::ids::parse;
use crate::path::{join, split};
use crate::seal::{Sealing, ancestors};
use crate::seal_walk::check_link;
use crate::tree::{Leaf, Mode};

/// Leaving a link out can make another one lead outside; after so many rounds every new link is
/// refused.
const LINK_ROUNDS_MAX: usize = 16;

/// Files of a workspace by path.
pub(crate) type Files = BTreeMap<Vec<u8>, Leaf>;
/// Refused changes by path.
pub(crate) type Problems = BTreeMap<Vec<u8>, Code>;
type Links = HashMap<Vec<u8>, Vec<u8>>;

impl Sealing<'_> {
    /// Takes out of `now` what is refused, and what leads outside then.
    pub(crate) fn settle(
        &self,
        now: &mut Files,
        problems: &mut Problems,
        targets: &Links,
    ) -> Result<(), Refusal> {
        // What is refused is in no tree; what the base had there stays. A change in a submodule is
        // refused only by a commit: a patch can carry it.
        let refused = problems.iter().filter(|(_, code)| **code != Code::ExportSubmodule);
        let refused: Vec<Vec<u8>> = refused.map(|(path, _)| path.clone()).collect();
        self.leave_out(now, &refused);
        let mut links = self.links_of(now, targets, &refused)?;
        for round in 0.. {
            let escaping = self.escaping(now, &links, round >= LINK_ROUNDS_MAX);
            if escaping.is_empty() {
                break;
            }
            let paths: Vec<Vec<u8>> = escaping.iter().map(|(path, _)| path.clone()).collect();
            problems.extend(escaping);
            self.leave_out(now, &paths);
            let stay = self.links_of(now, targets, &paths)?;
            links = stay.into_iter().chain(links).collect();
            links.retain(|path, _| now.get(path).is_some_and(|leaf| leaf.mode == Mode::Link));
        }
        Ok(())
    }

    fn leave_out(&self, now: &mut Files, paths: &[Vec<u8>]) {
        for path in paths {
            match self.raw_base.get(path) {
                Some(leaf) if !is_covered(path, now) => now.insert(path.clone(), *leaf),
                _ => now.remove(path),
            };
        }
    }

    /// Changed links that lead outside, or all of them.
    fn escaping(&self, now: &Files, links: &Links, all: bool) -> Vec<(Vec<u8>, Code)> {
        now.iter()
            .filter(|(path, leaf)| {
                leaf.mode == Mode::Link && self.raw_base.get(*path) != Some(*leaf)
            })
            .filter_map(|(path, _)| {
                let code = match links.get(path) {
                    Some(target) if !all => check_link(path, target, links)?,
                    _ => Code::ExportPathEscapes,
                };
                Some((path.clone(), code))
            })
            .collect()
    }

    /// Where the links of `now` lead; those of the base that stay in the place of refused ones are
    /// read from the store.
    fn links_of(
        &self,
        now: &Files,
        targets: &Links,
        refused: &[Vec<u8>],
    ) -> Result<Links, Refusal> {
        let is_link = |path: &Vec<u8>| now.get(path).filter(|leaf| leaf.mode == Mode::Link);
        let mut links: Links = targets
            .iter()
            .filter(|(path, _)| is_link(path).is_some())
            .map(|(path, target)| (path.clone(), target.clone()))
            .collect();
        let stay: Vec<(&Vec<u8>, ObjectId)> =
            refused.iter().filter_map(|path| Some((path, is_link(path)?.id))).collect();
        let ids: Vec<ObjectId> = stay.iter().map(|(_, id)| *id).collect();
        let texts = self.store.blobs(&ids)?;
        links.extend(stay.into_iter().zip(texts).map(|((path, _), text)| (path.clone(), text)));
        Ok(links)
    }

    /// The changed files that git's own check is about, with its words: those that it names by
    /// their content, else all whose name means something to git.
    pub(crate) fn blamed(&self, refusal: &Refusal, now: &Files) -> BTreeMap<Vec<u8>, String> {
        if refusal.code != Code::ExportBadPath {
            return BTreeMap::new();
        }
        let ids: HashSet<ObjectId> = refusal
            .cause
            .split(|ch: char| !ch.is_ascii_alphanumeric())
            .filter(|word| word.len() == 40)
            .filter_map(|word| parse(word.as_bytes()).ok())
            .collect();
        let changed = || now.iter().filter(|(path, leaf)| self.raw_base.get(*path) != Some(*leaf));
        let mut paths: Vec<&Vec<u8>> =
            changed().filter(|(_, leaf)| ids.contains(&leaf.id)).map(|(path, _)| path).collect();
        if paths.is_empty() {
            let means = |path: &&Vec<u8>| means_something(split(path).1);
            paths = changed().map(|(path, _)| path).filter(means).collect();
        }
        let words = |path: &Vec<u8>| {
            let id = now.get(path).map(|leaf| leaf.id.to_string()).unwrap_or_default();
            words_about(&id, &refusal.cause).to_owned()
        };
        paths.into_iter().map(|path| (path.clone(), words(path))).collect()
    }
}

/// What git says about one object, else all of it. Its lines come with escaped ends.
fn words_about<'a>(id: &str, cause: &'a str) -> &'a str {
    let about = cause.split("\\n").find_map(|line| line.split_once(&format!("{id}: ")));
    about.map_or(cause, |(_, words)| words)
}

/// Whether a path cannot be restored because it is a directory now, or lies below a file.
fn is_covered(path: &[u8], now: &Files) -> bool {
    let below = join(path, b"");
    let directory = now.range(below.clone()..).next().is_some_and(|(p, _)| p.starts_with(&below));
    directory || ancestors(path).any(|dir| now.contains_key(dir))
}

/// Whether some filesystem may take a name for one of the files that git itself reads. Too many are
/// no harm: it is asked only when git refused the whole.
fn means_something(name: &[u8]) -> bool {
    let text = String::from_utf8_lossy(name).to_ascii_lowercase();
    !name.is_ascii() || text.contains('~') || text.starts_with(".git") || text.starts_with(".mail")
}
