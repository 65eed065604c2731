//! Which files make up the working state of a directory.
//!
//! In a repository git lists names only: it reads the index and the ignore rules and compares no
//! content, so no filter, hook or monitor has a reason to run. Everything else about a file is read
//! through descriptors of ours.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use atenea_core::{Code, Refusal};

use crate::beneath::{Kind, Step, Tree, open_dir, walk};
use crate::filter::Compiled;
use crate::git::{Git, line_path, nul_parts};
use crate::inspect::{Source, check_waits_for_nothing};
use crate::path::{RawPath, join, os, split};
use crate::snapshot::{Limits, Skips};
use std::os::fd::AsFd;

/// Nested repositories deeper than this are refused: each level starts processes.
const NESTING_MAX: usize = 16;

/// Names of the working state, sorted. A name may be gone or be no file by the time it is read.
#[derive(Default)]
pub(crate) struct Listing {
    /// Files and links.
    pub(crate) files: BTreeSet<Vec<u8>>,
    /// Directories that hold nothing; only of plain directories.
    pub(crate) empty_dirs: BTreeSet<Vec<u8>>,
    /// Submodules: directories whose files belong to another repository.
    pub(crate) submodules: BTreeSet<Vec<u8>>,
}

/// What to list.
pub(crate) struct Wanted<'a> {
    pub(crate) source: &'a Source,
    pub(crate) filter: &'a Compiled,
    pub(crate) limits: &'a Limits,
    /// A copy of the index to list from, so that one state is seen.
    pub(crate) index: Option<&'a Path>,
    /// The user's own ignore rules.
    pub(crate) excludes: Option<&'a RawPath>,
}

impl Wanted<'_> {
    pub(crate) fn list(&self, skips: &mut Skips) -> Result<Listing, Refusal> {
        let mut listing = Listing::default();
        if self.source.is_repository() {
            let mut tree = Tree::open(self.source.root.as_path())?;
            let git = |name: &str| match self.index {
                Some(index) => self.source.git(name).env("GIT_INDEX_FILE", index),
                None => self.source.git(name),
            };
            self.repository(&git, &mut tree, b"", 0, &mut listing)?;
        } else {
            self.directory(&mut listing, skips)?;
        }
        Ok(listing)
    }

    fn add(&self, listing: &mut Listing, path: Vec<u8>) -> Result<(), Refusal> {
        if self.filter.shows(&path) {
            listing.files.insert(path);
        }
        self.limits.check_count(listing.files.len())
    }

    fn repository(
        &self,
        git: &dyn Fn(&str) -> Git,
        tree: &mut Tree,
        prefix: &[u8],
        depth: usize,
        listing: &mut Listing,
    ) -> Result<(), Refusal> {
        if depth > NESTING_MAX {
            return Err(crate::fail::bad(format!("repositories nested deeper than {NESTING_MAX}")));
        }
        let ls = |args: &[&str]| {
            let excludes = self.excludes.map_or(os(b"/dev/null"), |path| os(&path.0));
            git("ls-files").set("core.excludesFile", excludes).arg("-z").args(args).run()
        };
        let mut nested = BTreeSet::new();
        let mut dirs = HashSet::from([prefix.to_vec()]);
        for record in nul_parts(&ls(&["--stage"])?) {
            let (mode, path) = staged(record)?;
            let path = join(prefix, path);
            let mut dir = split(&path).0;
            while dir.len() > prefix.len() && !dirs.contains(dir) {
                dirs.insert(dir.to_vec());
                dir = split(dir).0;
            }
            if mode == b"160000" {
                listing.submodules.insert(path.clone());
                nested.insert(path);
            } else {
                self.add(listing, path)?;
            }
        }
        self.check_rules(&dirs)?;
        for name in nul_parts(&ls(&["--others", "--exclude-standard"])?) {
            // A trailing slash marks a repository that nobody added.
            match name.strip_suffix(b"/") {
                Some(dir) => {
                    nested.insert(join(prefix, dir));
                }
                None => self.add(listing, join(prefix, name))?,
            }
        }
        if self.filter.wants_ignored() {
            for name in nul_parts(&ls(&["--others", "--ignored", "--exclude-standard"])?) {
                let path = join(prefix, name);
                if self.filter.shows_ignored(&path) && !path.ends_with(b"/") {
                    self.add(listing, path)?;
                }
            }
        }
        for dir in nested {
            self.nested(tree, &dir, depth, listing)?;
        }
        Ok(())
    }

    /// git reads the ignore rules of every directory it comes to, and waits where they are a pipe. A
    /// directory that holds no file of the repository is not looked at here, which would take as long
    /// as the listing; there the run has to be cancelled.
    fn check_rules(&self, dirs: &HashSet<Vec<u8>>) -> Result<(), Refusal> {
        let root = self.source.root.as_path();
        for dir in dirs {
            check_waits_for_nothing(&root.join(os(&join(dir, b".gitignore"))))?;
        }
        self.excludes.map_or(Ok(()), |path| check_waits_for_nothing(path.as_path()))
    }

    /// A submodule or a repository inside: its own working state, listed by its own rules.
    fn nested(
        &self,
        tree: &mut Tree,
        dir: &[u8],
        depth: usize,
        listing: &mut Listing,
    ) -> Result<(), Refusal> {
        let marker = tree.stat(&join(dir, b".git"))?;
        let Some(marker) = marker else { return Ok(()) };
        if !matches!(crate::beneath::kind_of(&marker), Kind::Dir | Kind::File) {
            return Ok(());
        }
        let root = self.source.root.as_path().join(os(dir));
        let top = Git::new("rev-parse").within(&root).arg("--show-toplevel").outcome()?;
        // Another top means that git does not take this for a repository.
        let real = std::fs::canonicalize(&root).map_err(crate::fail::at("resolving", dir))?;
        let named = std::fs::canonicalize(line_path(top.stdout.clone())).ok();
        if !top.ok() || named.as_deref() != Some(&real) {
            let cause = format!("the repository in {real:?} cannot be read");
            return Err(if top.ok() {
                crate::fail::bad(cause)
            } else {
                top.refusal(Code::FsBadWorkspace)
            });
        }
        let git = |name: &str| Git::new(name).within(&real);
        self.repository(&git, tree, dir, depth + 1, listing)
    }

    fn directory(&self, listing: &mut Listing, skips: &mut Skips) -> Result<(), Refusal> {
        let root = open_dir(self.source.root.as_path())?;
        let mut dirs = BTreeSet::new();
        walk(root.as_fd(), b"", &mut |met| {
            if let Some(error) = met.closed {
                if error != rustix::io::Errno::XDEV {
                    return Err(crate::fail::at("opening", met.path)(error));
                }
                skips.add(met.path, "other-filesystem");
                return Ok(Step::Skip);
            }
            match met.kind {
                Kind::Dir => {
                    dirs.insert(met.path.to_vec());
                    self.limits.check_count(dirs.len())?;
                }
                Kind::File | Kind::Link => self.add(listing, met.path.to_vec())?,
                Kind::Special => skips.add(met.path, "special-file"),
            }
            Ok(Step::Enter)
        })?;
        for dir in dirs {
            let below = join(&dir, b"");
            let holds = |set: &BTreeSet<Vec<u8>>| {
                set.range(below.clone()..).next().is_some_and(|path| path.starts_with(&below))
            };
            // With a ceiling a directory is only shown for the files in it.
            if self.filter.shows_everything() && !holds(&listing.files) {
                listing.empty_dirs.insert(dir);
            }
        }
        // Only the innermost of empty directories need to be named.
        let all: Vec<Vec<u8>> = listing.empty_dirs.iter().cloned().collect();
        for pair in all.windows(2) {
            if let [outer, inner] = pair
                && inner.starts_with(&join(outer, b""))
            {
                listing.empty_dirs.remove(outer);
            }
        }
        Ok(())
    }
}

/// Mode and path of a line of `ls-files --stage -z`.
fn staged(record: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let wrong = || crate::fail::io("git ls-files gave a line of unknown form");
    let tab = record.iter().position(|byte| *byte == b'\t').ok_or_else(wrong)?;
    let mode = record.get(..6).ok_or_else(wrong)?;
    Ok((mode, &record[tab + 1..]))
}
