//! What the agent left, read through descriptors and checked by us: nothing behind this is a second
//! barrier.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use atenea_core::{Code, Refusal};
use rustix::io::Errno;

use crate::beneath::{Kind, Met, Step, size_of, walk};
use crate::clone_files::workspace;
use crate::filter::Compiled;
use crate::gitname::{is_dot_git, is_plain};
use crate::path::split;
use crate::snapshot::Limits;
use crate::store::{BaseMeta, Store};
use crate::tree::Leaf;

/// A file or link in the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    /// Several names for one file: only its own content, unchanged, is accepted.
    pub(crate) linked: bool,
    /// Bytes it claims to have.
    size: u64,
    /// Bytes that lie on the disk for it.
    allocated: u64,
}

impl Walked {
    /// The bounds within which it is read, checked before anything is: a hole of a terabyte costs the
    /// agent nothing. What lies on the disk really was let through by whoever watches the disk, so
    /// it is taken, however far it is above the limit; only what is claimed and not there is not.
    pub(crate) fn bound(&self, limits: &Limits) -> Result<Limits, Refusal> {
        let sum = |of: fn(&Found) -> u64| {
            self.files.values().fold(0u64, |sum, found| sum.saturating_add(of(found)))
        };
        let bytes = limits.bytes.saturating_add(sum(|found| found.allocated));
        let limits = Limits { bytes, ..*limits };
        limits.check_bytes(sum(|found| found.size)).map_err(|refusal| {
            let help = "the files claim far more bytes than were written (holes), so neither diff \
                        nor export can take them; discard the run";
            refusal.with_help(help)
        })?;
        Ok(limits)
    }
}

/// The workspace as it was met.
#[derive(Default)]
pub(crate) struct Walked {
    pub(crate) files: BTreeMap<Vec<u8>, Found>,
    pub(crate) problems: BTreeMap<Vec<u8>, Code>,
    pub(crate) ignored: u64,
}

pub(crate) struct Walker<'a> {
    pub(crate) store: &'a Store,
    pub(crate) meta: &'a BaseMeta,
    pub(crate) base: &'a BTreeMap<Vec<u8>, Leaf>,
    pub(crate) filter: &'a Compiled,
    pub(crate) limits: &'a Limits,
}

impl Walker<'_> {
    /// Walks the workspace, without its own `.git` and without what the base's rules ignore.
    pub(crate) fn run(&self, dir: &Path) -> Result<Walked, Refusal> {
        let tree = workspace(dir)?;
        let mut walked = Walked::default();
        walk(tree.root(), b"", &mut |met| self.meet(met, &mut walked))?;
        self.drop_ignored(&mut walked)?;
        let outside: Vec<Vec<u8>> =
            walked.files.keys().filter(|path| !self.allows(path)).cloned().collect();
        for path in outside {
            walked.problems.entry(path).or_insert(Code::ExportBadPath);
        }
        Ok(walked)
    }

    /// A file beyond the ceiling would replace one that the agent never saw.
    fn allows(&self, path: &[u8]) -> bool {
        self.filter.shows(path) || self.base.contains_key(path)
    }

    fn meet(&self, met: &Met<'_>, walked: &mut Walked) -> Result<Step, Refusal> {
        let path = met.path;
        if path == b".git" || self.meta.opaque.iter().any(|dir| dir.0 == path) {
            return Ok(Step::Skip);
        }
        self.limits.check_count(walked.files.len() + walked.problems.len())?;
        let mut refuse = |code| {
            walked.problems.insert(path.to_vec(), code);
            Ok(Step::Skip)
        };
        if let Some(error) = met.closed {
            return refuse(match error {
                Errno::ACCESS | Errno::PERM => Code::FsNotYours,
                Errno::XDEV => Code::ExportSpecialFile,
                _ => Code::ExportBadPath,
            });
        }
        if is_dot_git(split(path).1) {
            return refuse(Code::ExportGitPath);
        }
        if !is_plain(path) {
            return refuse(Code::ExportBadPath);
        }
        match met.kind {
            Kind::Special => return refuse(Code::ExportSpecialFile),
            Kind::Dir => return Ok(Step::Enter),
            Kind::File if met.stat.st_mode & 0o6000 != 0 => {
                walked.problems.insert(path.to_vec(), Code::ExportSetuid);
            }
            Kind::File | Kind::Link => {}
        }
        let linked = met.kind == Kind::File && met.stat.st_nlink > 1;
        if linked && !self.base.contains_key(path) {
            // No content of its own is accepted, so it is not even read: names cost nothing.
            walked.problems.entry(path.to_vec()).or_insert(Code::ExportHardLink);
            return Ok(Step::Skip);
        }
        // The same blocks under several names are there once; here they count for none.
        let blocks = if linked { 0 } else { u64::try_from(met.stat.st_blocks).unwrap_or(0) };
        let (size, allocated) = (size_of(&met.stat), blocks.saturating_mul(512));
        walked.files.insert(path.to_vec(), Found { kind: met.kind, linked, size, allocated });
        Ok(Step::Skip)
    }

    /// Takes out new files that the rules of the *base* ignore: what the agent wrote into a
    /// `.gitignore` counts only after somebody accepted it (S7).
    fn drop_ignored(&self, walked: &mut Walked) -> Result<(), Refusal> {
        if !self.meta.root_is_repository() {
            return Ok(());
        }
        let new: BTreeSet<&Vec<u8>> = walked
            .files
            .keys()
            .chain(walked.problems.keys())
            .filter(|path| !self.base.contains_key(*path) && is_plain(path))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let outcome = self
            .store
            .git("check-ignore")
            .set("core.excludesFile", self.store.path.join("info/exclude"))
            .work_tree(&self.store.path.join("ignore"))
            .env("GIT_LITERAL_PATHSPECS", "0")
            .args(["-z", "--stdin", "--no-index"])
            .run_with(|out| {
                for path in new {
                    // A name may start with a colon, which would mean something here.
                    out.write_all(b"./")
                        .and_then(|()| out.write_all(path))
                        .and_then(|()| out.write_all(b"\0"))
                        .map_err(|error| crate::fail::io(format!("writing: {error}")))?;
                }
                Ok(())
            })?;
        // Status 1 says that nothing is ignored.
        if !outcome.ok() && outcome.status.code() != Some(1) {
            return Err(outcome.refusal(Code::FsIo));
        }
        for path in crate::git::nul_parts(&outcome.stdout) {
            let path = path.strip_prefix(b"./").unwrap_or(path);
            if self.filter.shows_ignored(path) {
                continue;
            }
            let file = walked.files.remove(path).is_some();
            let problem = walked.problems.remove(path).is_some();
            walked.ignored += u64::from(file || problem);
        }
        Ok(())
    }
}

/// The most links one path is followed through, as in the kernel.
const LINKS_MAX: usize = 40;

/// Where a link leads, computed from the tree as it would be checked out.
pub(crate) fn check_link(
    path: &[u8],
    target: &[u8],
    links: &HashMap<Vec<u8>, Vec<u8>>,
) -> Option<Code> {
    let mut at: Vec<Vec<u8>> = parts(split(path).0);
    let mut todo: Vec<Vec<u8>> = parts(target);
    todo.reverse();
    if target.starts_with(b"/") {
        return Some(Code::ExportPathEscapes);
    }
    let mut followed = 0;
    while let Some(part) = todo.pop() {
        if part == b".." {
            if at.pop().is_none() {
                return Some(Code::ExportPathEscapes);
            }
            continue;
        }
        if is_dot_git(&part) {
            return Some(Code::ExportGitPath);
        }
        at.push(part);
        if let Some(next) = links.get(&at.join(&b'/')) {
            followed += 1;
            if next.starts_with(b"/") {
                return Some(Code::ExportPathEscapes);
            }
            // A loop leads nowhere, so it does not lead outside either.
            if followed > LINKS_MAX {
                return None;
            }
            at.pop();
            todo.extend(parts(next).into_iter().rev());
        }
    }
    None
}

fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

/// Targets of all links of the workspace.
pub(crate) fn link_targets(
    dir: &Path,
    files: &BTreeMap<Vec<u8>, Found>,
) -> Result<HashMap<Vec<u8>, Vec<u8>>, Refusal> {
    let mut tree = workspace(dir)?;
    files
        .iter()
        .filter(|(_, found)| found.kind == Kind::Link)
        .map(|(path, _)| Ok((path.clone(), tree.link(path)?)))
        .collect()
}

impl BaseMeta {
    pub(crate) fn root_is_repository(&self) -> bool {
        self.kind == crate::inspect::SourceKind::Repository
    }

    pub(crate) fn in_submodule(&self, path: &[u8]) -> bool {
        self.submodules.iter().any(|dir| {
            path == dir.0
                || path.strip_prefix(dir.0.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, target: &str, links: &[(&str, &str)]) -> Option<Code> {
        let links = links
            .iter()
            .map(|(path, target)| (path.as_bytes().to_vec(), target.as_bytes().to_vec()))
            .collect();
        check_link(path.as_bytes(), target.as_bytes(), &links)
    }

    #[test]
    fn links_that_stay_inside_are_accepted() {
        assert_eq!(check("a", "b/c", &[]), None);
        assert_eq!(check("d/a", "../b", &[]), None);
        assert_eq!(check("d/a", "..//./", &[]), None);
        assert_eq!(check("a", "x/../y", &[]), None);
        assert_eq!(check("a", "a", &[("a", "a")]), None, "a loop leads nowhere");
    }

    #[test]
    fn links_that_lead_outside_are_refused_also_through_other_links() {
        let escapes = Some(Code::ExportPathEscapes);
        assert_eq!(check("a", "/etc/passwd", &[]), escapes);
        assert_eq!(check("a", "..", &[]), escapes);
        assert_eq!(check("d/a", "../../x", &[]), escapes);
        assert_eq!(check("d/a", "x/../../../y", &[]), escapes);
        // Read as text, the target stays inside; followed, it climbs out.
        assert_eq!(check("m", "p/q/l/../x", &[("p/q/l", "../..")]), escapes);
        assert_eq!(check("m", "old/x", &[("old", "/etc")]), escapes);
    }

    #[test]
    fn links_into_the_git_directory_are_refused() {
        let git = Some(Code::ExportGitPath);
        assert_eq!(check("a", ".git/hooks", &[]), git);
        assert_eq!(check("d/a", "../.GIT/config", &[]), git);
        assert_eq!(check("m", "g/hooks", &[("g", "GIT~1")]), git);
    }
}
