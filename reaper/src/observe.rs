//! Looks what is there: control groups, run directories, mounts, sockets, half-made files.
//!
//! Called before the journal's fold is looked at (a run that is admitted later must not be taken for
//! a leftover), and it reads everything or fails: no sweep runs on "I could not read it".

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use atenea_cgroup::{Layout, Place, RunGroup, find_instances, parse_mountinfo};
use atenea_core::{BootId, RunId};
use rustix::fs::FileType;

use crate::delete::{self, Removed};
use crate::part::{BASE, Part, WORKSPACE, remove_part, remove_run_dir};
use crate::state::{RUNS, State, file_type, list};
use crate::{Error, Result, boot_id};

/// Where trees are made before they move into the cache.
const CACHE_STAGING: &str = "cache/staging";
/// The receipt of a run, in its directory.
const RECEIPT: &str = "receipt.json";
/// Ending of a file that is being written; it is renamed when it is complete.
const NEW: &[u8] = b".new";

/// A control group of a run.
#[derive(Debug)]
pub struct SeenGroup {
    /// The run; `None` when the name is not a run id.
    pub run: Option<RunId>,
    /// Its groups, held open.
    pub group: RunGroup,
    /// Whether a process is inside.
    pub populated: bool,
}

/// A directory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    /// The run.
    pub run: RunId,
    /// Where.
    pub path: PathBuf,
    /// Whether there is a workspace or its base: somebody may miss it (C4).
    pub has_workspace: bool,
    /// Whether there is a receipt: a proof somebody may ask for.
    pub has_receipt: bool,
    /// Files that were being written.
    pub half_made: Vec<OsString>,
    /// Sockets beside the workspace.
    pub sockets: Vec<OsString>,
}

impl RunDir {
    /// Whether somebody may miss what is in it, also when no record knows its run.
    pub fn is_precious(&self) -> bool {
        self.has_workspace || self.has_receipt
    }
}

/// Everything that was seen.
#[derive(Debug)]
pub struct Observed {
    /// This boot: identities of another one mean nothing.
    pub boot: BootId,
    /// Directories of this instance in every hierarchy, also where dead supervisors had them.
    pub instances: Vec<Place>,
    /// Groups of runs below them.
    pub groups: Vec<SeenGroup>,
    /// Directories of runs.
    pub runs: Vec<RunDir>,
    /// What lies among the run directories and is none.
    pub foreign: Vec<PathBuf>,
    /// Trees and files that were being made outside the run directories.
    pub half_made: Vec<PathBuf>,
    /// Sockets directly in the state directory.
    pub sockets: Vec<PathBuf>,
    /// Mounts below the state directory in our own mount namespace; a run makes none there.
    pub mounts: Vec<PathBuf>,
}

/// Looks at the control groups of `instance` and at the state directory.
///
/// # Errors
/// Whatever cannot be read or understood.
pub fn observe(state: &State, layout: &Layout, instance: &str) -> Result<Observed> {
    let boot = boot_id()?;
    let group = |source| Error::Group { name: instance.to_owned(), source };
    let instances = find_instances(layout, instance).map_err(group)?;
    let mut groups = Vec::new();
    for found in atenea_cgroup::scan(layout, &instances).map_err(group)? {
        let populated = found.populated().map_err(group)?;
        groups.push(SeenGroup { run: RunId::parse(found.name()).ok(), group: found, populated });
    }
    let mounts = mounts_below(state.path())?;
    let mut seen = Observed {
        boot,
        instances,
        groups,
        runs: Vec::new(),
        foreign: Vec::new(),
        half_made: Vec::new(),
        sockets: Vec::new(),
        mounts,
    };
    look_at_runs(state, &mut seen)?;
    look_at_top(state, &mut seen)?;
    look_at_staging(state, &mut seen)?;
    Ok(seen)
}

fn look_at_runs(state: &State, seen: &mut Observed) -> Result<()> {
    let Some(runs) = state.open_below(Path::new(RUNS))? else { return Ok(()) };
    let path = state.path().join(RUNS);
    for entry in list(runs.as_fd(), &path)? {
        let known = entry.name.to_str().and_then(|name| RunId::parse(name).ok());
        match known {
            Some(run) if entry.file_type == FileType::Directory => {
                if let Some(dir) = look_at_run(state, run)? {
                    seen.runs.push(dir);
                }
            }
            _ => seen.foreign.push(path.join(entry.name)),
        }
    }
    seen.runs.sort_by(|a, b| a.run.cmp(&b.run));
    Ok(())
}

fn look_at_run(state: &State, run: RunId) -> Result<Option<RunDir>> {
    let relative = Path::new(RUNS).join(run.as_str());
    let Some(dir) = state.open_below(&relative)? else { return Ok(None) };
    let path = state.path().join(relative);
    let mut seen = RunDir {
        run,
        path,
        has_workspace: false,
        has_receipt: false,
        half_made: Vec::new(),
        sockets: Vec::new(),
    };
    for entry in list(dir.as_fd(), &seen.path)? {
        if entry.name == WORKSPACE || entry.name == BASE {
            seen.has_workspace = true;
        } else if entry.name == RECEIPT {
            seen.has_receipt = true;
        } else if entry.file_type == FileType::Socket {
            seen.sockets.push(entry.name);
        } else if entry.name.as_bytes().ends_with(NEW) {
            seen.half_made.push(entry.name);
        }
    }
    Ok(Some(seen))
}

fn look_at_top(state: &State, seen: &mut Observed) -> Result<()> {
    for entry in list(state.as_fd(), state.path())? {
        let path = state.path().join(&entry.name);
        if entry.file_type == FileType::Socket {
            seen.sockets.push(path);
        } else if entry.name.as_bytes().ends_with(NEW) {
            seen.half_made.push(path);
        }
    }
    Ok(())
}

fn look_at_staging(state: &State, seen: &mut Observed) -> Result<()> {
    let Some(staging) = state.open_below(Path::new(CACHE_STAGING))? else { return Ok(()) };
    let path = state.path().join(CACHE_STAGING);
    let entries = list(staging.as_fd(), &path)?;
    seen.half_made.extend(entries.into_iter().map(|entry| path.join(entry.name)));
    Ok(())
}

/// Mount points strictly below a directory.
fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let path = Path::new("/proc/self/mountinfo");
    let text = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    let mounts = parse_mountinfo(&text, path)
        .map_err(|source| Error::Group { name: "mountinfo".to_owned(), source })?;
    let below = |mount: &PathBuf| mount.starts_with(dir) && mount != dir;
    Ok(mounts.into_iter().map(|mount| mount.point).filter(below).collect())
}

/// Removes a leftover that is files of ours and holds nobody's work: half-made ones, sockets, and a
/// run's directory without a workspace. `None`: this kind is not removed here (groups are killed
/// first, mounts, foreign files and workspaces are for a person). Repeating it is no error.
///
/// # Errors
/// [`Error::BadPart`] for a path of another form than [`observe`] reports, and what cannot be removed.
pub fn remove_leftover(state: &State, leftover: &Leftover) -> Result<Option<Removed>> {
    match leftover {
        Leftover::RunDir { run, precious: false } => remove_run_dir(state, run, None).map(Some),
        Leftover::HalfMade(path) | Leftover::Socket(path) => remove_file(state, path).map(Some),
        _ => Ok(None),
    }
}

fn remove_file(state: &State, path: &Path) -> Result<Removed> {
    let bad = || Error::BadPart { name: path.to_owned() };
    let relative = path.strip_prefix(state.path()).map_err(|_| bad())?;
    let name = relative.file_name().ok_or_else(bad)?;
    let parent = relative.parent().unwrap_or(Path::new(""));
    if let Ok(below_runs) = parent.strip_prefix(RUNS) {
        let run = below_runs.to_str().and_then(|name| RunId::parse(name).ok()).ok_or_else(bad)?;
        return remove_part(state, &run, Part::Other(name));
    }
    let is_new = name.as_bytes().ends_with(NEW);
    let dir = if parent == Path::new(CACHE_STAGING) {
        state.open_below(parent)?
    } else if parent.as_os_str().is_empty() {
        let kind = file_type(state.as_fd(), name, state.path())?;
        if !is_new && kind.is_some_and(|kind| kind != FileType::Socket) {
            return Err(bad());
        }
        state.open_below(Path::new("."))?
    } else {
        return Err(bad());
    };
    let Some(dir) = dir else { return Ok(Removed::default()) };
    delete::remove(dir.as_fd(), &state.path().join(parent), name)
}

/// Something that no live run accounts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A group; to be killed and removed.
    Group {
        /// Name of its directory.
        name: String,
        /// Whether a process is inside.
        populated: bool,
    },
    /// A directory of a run the journal does not know; a precious one is never deleted by us.
    RunDir {
        /// The run.
        run: RunId,
        /// Whether somebody may miss something in it (C4).
        precious: bool,
    },
    /// A file or tree that was being made.
    HalfMade(PathBuf),
    /// A socket that nobody listens on any more.
    Socket(PathBuf),
    /// A mount below the state directory; not ours to undo, it is reported.
    Mount(PathBuf),
    /// Something among the run directories that is none; not ours, it is reported.
    Foreign(PathBuf),
}

impl Leftover {
    /// Stable word for the journal.
    pub fn kind(&self) -> &'static str {
        match self {
            Leftover::Group { .. } => "group",
            Leftover::RunDir { .. } => "run-dir",
            Leftover::HalfMade(_) => "half-made",
            Leftover::Socket(_) => "socket",
            Leftover::Mount(_) => "mount",
            Leftover::Foreign(_) => "foreign",
        }
    }
}

impl Observed {
    /// What no run accounts for. `is_live`: runs whose group may exist now (none after a restart);
    /// `is_known`: runs of the journal.
    pub fn compare(
        &self,
        is_live: impl Fn(&RunId) -> bool,
        is_known: impl Fn(&RunId) -> bool,
    ) -> Vec<Leftover> {
        let mut found = Vec::new();
        for seen in &self.groups {
            if !seen.run.as_ref().is_some_and(&is_live) {
                let name = seen.group.name().to_owned();
                found.push(Leftover::Group { name, populated: seen.populated });
            }
        }
        for dir in &self.runs {
            let path = &dir.path;
            if !is_known(&dir.run) {
                let (run, precious) = (dir.run.clone(), dir.is_precious());
                found.push(Leftover::RunDir { run, precious });
                continue;
            }
            if !is_live(&dir.run) {
                found.extend(dir.half_made.iter().map(|n| Leftover::HalfMade(path.join(n))));
                found.extend(dir.sockets.iter().map(|n| Leftover::Socket(path.join(n))));
            }
        }
        found.extend(self.half_made.iter().cloned().map(Leftover::HalfMade));
        found.extend(self.sockets.iter().cloned().map(Leftover::Socket));
        found.extend(self.mounts.iter().cloned().map(Leftover::Mount));
        found.extend(self.foreign.iter().cloned().map(Leftover::Foreign));
        found
    }
}
