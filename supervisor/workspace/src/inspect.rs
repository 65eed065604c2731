//! What a starting directory is: a git work tree or a plain directory.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::fail::{at_path, bad};
use crate::git::{Git, line_path};
use crate::path::RawPath;

/// What kind of directory a run starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// The work tree of a git repository.
    Repository,
    /// A directory that belongs to no repository.
    Directory,
}

/// A directory that runs can be started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Repository or plain directory.
    pub kind: SourceKind,
    /// Root of the work tree, or the directory itself; absolute and without symbolic links.
    pub root: RawPath,
    /// The commit HEAD names; none when there is no commit yet or no repository.
    pub head: Option<String>,
    /// The branch HEAD is on, without `refs/heads/`; none when detached.
    pub branch: Option<RawPath>,
    /// Who owns the root.
    pub owner: u32,
    /// The git directory of this work tree.
    pub git_dir: Option<RawPath>,
    /// The git directory that all work trees of the repository share.
    pub common_dir: Option<RawPath>,
}

impl Source {
    /// A command in this repository, hardened, with git directory and work tree named.
    pub(crate) fn git(&self, name: &str) -> Git {
        let git = Git::new(name).work_tree(self.root.as_path());
        match &self.git_dir {
            Some(dir) => git.repository(dir.as_path()),
            None => git,
        }
    }

    /// Whether there is a repository.
    pub fn is_repository(&self) -> bool {
        self.kind == SourceKind::Repository
    }
}

/// Finds the repository or directory that `start` belongs to. `state_dir` is the supervisor's own
/// directory, which no run may see.
///
/// # Errors
/// `fs.not_found`, `fs.not_yours`, `fs.bad_workspace` (`/`, no directory, a bare or broken
/// repository), `fs.state_in_workspace`, `host.no_git`.
pub fn inspect(start: &Path, state_dir: Option<&Path>) -> Result<Source, Refusal> {
    let start = std::fs::canonicalize(start).map_err(at_path("resolving", start))?;
    let meta = std::fs::metadata(&start).map_err(at_path("reading", &start))?;
    if !meta.is_dir() {
        return Err(bad(format!("{start:?} is not a directory")));
    }
    // S6: asked here, because git's own words would not tell whose right is missing.
    let needed = rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(&start, needed).map_err(at_path("opening", &start))?;
    let source = if may_be_in_repository(&start) { ask_git(&start)? } else { directory(&start)? };
    check_place(source.root.as_path(), state_dir)?;
    Ok(source)
}

/// Whether git could find a repository here: no parent has a `.git` or looks like a bare one means
/// no. What cannot be read counts as a maybe.
fn may_be_in_repository(start: &Path) -> bool {
    let there = |path: PathBuf| match std::fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    start.ancestors().any(|dir| there(dir.join(".git")) || there(dir.join("HEAD")))
}

fn ask_git(start: &Path) -> Result<Source, Refusal> {
    if let Some(dir) = start.ancestors().map(|dir| dir.join(".git")).find(|dir| dir.is_dir()) {
        check_git_dir(&dir)?;
    }
    if let Some(source) = usual_repository(start)? {
        return Ok(source);
    }
    let found = Git::new("rev-parse").within(start).arg("--is-inside-work-tree").outcome()?;
    if found.ok() && found.stdout == b"true\n" {
        repository(start)
    } else if found.ok() {
        Err(bad(format!("{start:?} is a bare repository or inside a git directory")))
    } else if let Some(broken) = nearest_git(start) {
        Err(found.refusal(Code::FsBadWorkspace).with_help(format!(
            "the repository of {broken:?} cannot be used; repair it, or choose another directory"
        )))
    } else {
        directory(start)
    }
}

/// The usual case in one call of git: a work tree with a commit, and no line breaks in its paths.
/// `None` sends everything else the long way, which can tell what is wrong.
fn usual_repository(start: &Path) -> Result<Option<Source>, Refusal> {
    let asked = Git::new("rev-parse")
        .within(start)
        .args(["--is-inside-work-tree", "--show-object-format", "--absolute-git-dir"])
        .args(["--git-common-dir", "--show-toplevel", "HEAD^{commit}"])
        .args(["--symbolic-full-name", "HEAD"])
        .outcome()?;
    if !asked.ok() {
        return Ok(None);
    }
    let lines: Vec<&[u8]> = asked.stdout.split(|byte| *byte == b'\n').collect();
    let [b"true", b"sha1", git_dir, common, root, head, full_name, b""] = lines.as_slice() else {
        return Ok(None);
    };
    let path = |line: &[u8]| line_path(line.to_vec());
    let mut source = located(start, path(git_dir), &path(common), &path(root))?;
    source.head = Some(crate::ids::parse(head)?.to_string());
    source.branch = full_name.strip_prefix(b"refs/heads/").map(|name| RawPath(name.to_vec()));
    Ok(Some(source))
}

/// A `.git` above that git did not accept: falling back to a plain directory would hide damage.
fn nearest_git(start: &Path) -> Option<PathBuf> {
    start
        .ancestors()
        .find(|dir| {
            let git = dir.join(".git");
            std::fs::symlink_metadata(&git)
                .is_ok_and(|meta| !meta.is_dir() || git.join("HEAD").symlink_metadata().is_ok())
        })
        .map(Path::to_path_buf)
}

fn directory(start: &Path) -> Result<Source, Refusal> {
    let owner = std::fs::metadata(start).map_err(at_path("reading", start))?.uid();
    Ok(Source {
        kind: SourceKind::Directory,
        root: start.into(),
        head: None,
        branch: None,
        owner,
        git_dir: None,
        common_dir: None,
    })
}

/// A repository with what git said of its places, checked.
fn located(start: &Path, git_dir: PathBuf, common: &Path, root: &Path) -> Result<Source, Refusal> {
    // Relative to the directory it was asked in, on every version of git.
    let common = start.join(common);
    let common_dir = std::fs::canonicalize(&common).map_err(at_path("resolving", &common))?;
    let root = std::fs::canonicalize(root).map_err(at_path("resolving", root))?;
    // Those of a work tree elsewhere were not known before.
    check_git_dir(&git_dir)?;
    check_git_dir(&common_dir)?;
    // `core.worktree` can name any directory: only one that holds the start is meant.
    if !start.starts_with(&root) {
        return Err(bad(format!(
            "{start:?} is not inside the work tree {root:?} of its repository"
        )));
    }
    let mut source = directory(&root)?;
    source.kind = SourceKind::Repository;
    source.git_dir = Some(git_dir.into());
    source.common_dir = Some(common_dir.into());
    Ok(source)
}

fn repository(start: &Path) -> Result<Source, Refusal> {
    let ask = |what: &str| -> Result<PathBuf, Refusal> {
        Git::new("rev-parse").within(start).arg(what).run().map(line_path)
    };
    let git_dir = ask("--absolute-git-dir")?;
    let (common, root) = (ask("--git-common-dir")?, ask("--show-toplevel")?);
    let mut source = located(start, git_dir, &common, &root)?;
    let format = source.git("rev-parse").arg("--show-object-format").run()?;
    if format != b"sha1\n" {
        return Err(bad("repositories with SHA-256 object ids are not supported"));
    }
    let head = source.git("rev-parse").args(["--verify", "-q", "HEAD^{commit}"]).outcome()?;
    if head.ok() {
        source.head = Some(crate::ids::parse(head.stdout.trim_ascii())?.to_string());
    }
    let branch = source.git("symbolic-ref").args(["-q", "HEAD"]).outcome()?;
    if branch.ok() {
        let name = branch.stdout.trim_ascii_end();
        source.branch = name.strip_prefix(b"refs/heads/").map(|name| RawPath(name.to_vec()));
    }
    if source.head.is_none() && source.branch.is_none() {
        return Err(bad("HEAD of the repository names a commit that does not exist"));
    }
    Ok(source)
}

/// Files of a git directory that git, or we, read to the end.
const READ_WHOLE: &[&str] = &[
    "HEAD",
    "commondir",
    "config",
    "config.worktree",
    "gitdir",
    "index",
    "info/attributes",
    "info/exclude",
    "info/grafts",
    "info/sparse-checkout",
    "objects/info/alternates",
    "packed-refs",
    "shallow",
];

/// Refuses a git directory in which a pipe or the like is in the place of a file: whoever opens it
/// waits. It is no barrier against somebody who changes it later; that git is ended with the run.
fn check_git_dir(dir: &Path) -> Result<(), Refusal> {
    READ_WHOLE.iter().try_for_each(|name| check_waits_for_nothing(&dir.join(name)))
}

/// Refuses what is there and is neither file nor directory, also behind links.
pub(crate) fn check_waits_for_nothing(path: &Path) -> Result<(), Refusal> {
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() && !meta.is_dir() && path != Path::new("/dev/null") => {
            Err(bad(format!("{path:?} is a pipe, socket or device, where git reads a file")))
        }
        // Whatever it is, it does not make anybody wait.
        _ => Ok(()),
    }
}

fn check_place(root: &Path, state_dir: Option<&Path>) -> Result<(), Refusal> {
    if root == Path::new("/") {
        return Err(bad("the workspace is /"));
    }
    let Some(state) = state_dir else { return Ok(()) };
    // The state directory may not exist yet: its nearest existing parent decides.
    let state = state
        .ancestors()
        .find_map(|dir| {
            let real = std::fs::canonicalize(dir).ok()?;
            Some(real.join(state.strip_prefix(dir).ok()?))
        })
        .unwrap_or_else(|| state.to_path_buf());
    if state.starts_with(root) || root.starts_with(&state) {
        return Err(Refusal::new(
            Code::FsStateInWorkspace,
            format!("the workspace is {root:?}, the state directory {state:?}"),
        ));
    }
    Ok(())
}
