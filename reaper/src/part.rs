//! Parts of a run's directory, and who may delete which.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use atenea_core::RunId;

use crate::delete::{self, Removed};
use crate::state::{self, RUNS, State};
use crate::{Error, Result};

/// The agent's workspace.
pub(crate) const WORKSPACE: &str = "ws";
/// What the workspace started from; without it nothing can be exported, so it is guarded as well.
pub(crate) const BASE: &str = "base.git";

/// The permission to delete one run's workspace (C4). It can only be made for one of three reasons;
/// whoever makes it has read the reason from the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    run: RunId,
    reason: &'static str,
}

impl Permission {
    /// A person discarded the work, or it was exported and then given up.
    pub fn discarded(run: RunId) -> Self {
        Permission { run, reason: "discarded" }
    }

    /// The workspace was being made when we died: it holds no work.
    pub fn half_made(run: RunId) -> Self {
        Permission { run, reason: "half made" }
    }

    /// No agent ever ran in it.
    pub fn never_started(run: RunId) -> Self {
        Permission { run, reason: "never started" }
    }

    /// Whose workspace may be deleted.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Why.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    fn covers(&self, run: &RunId) -> Result<()> {
        if self.run == *run {
            Ok(())
        } else {
            Err(Error::OtherRun { run: run.clone(), permitted: self.run.clone() })
        }
    }
}

/// A part of a run's directory.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// The workspace and what it started from.
    Workspace(&'a Permission),
    /// Anything else, by its name.
    Other(&'a OsStr),
}

/// Removes one part. Repeating it is no error.
///
/// # Errors
/// [`Error::OtherRun`], [`Error::BadPart`] (also for a workspace that is named as "other"),
/// [`Error::MountBelow`], and what cannot be removed.
pub fn remove_part(state: &State, run: &RunId, part: Part<'_>) -> Result<Removed> {
    let names = match part {
        Part::Workspace(permission) => {
            permission.covers(run)?;
            vec![OsStr::new(WORKSPACE), OsStr::new(BASE)]
        }
        Part::Other(name) => vec![check_other(name)?],
    };
    let relative = run_path(run);
    let Some(dir) = state.open_below(&relative)? else { return Ok(Removed::default()) };
    let path = state.path().join(relative);
    let mut removed = Removed::default();
    for name in names {
        removed.entries += delete::remove(dir.as_fd(), &path, name)?.entries;
    }
    Ok(removed)
}

/// Removes a run's directory with everything in it. Repeating it is no error.
///
/// # Errors
/// [`Error::WorkspaceKept`] when there is a workspace and no permission: then nothing is removed.
pub fn remove_run_dir(
    state: &State,
    run: &RunId,
    permission: Option<&Permission>,
) -> Result<Removed> {
    let relative = run_path(run);
    if let Some(dir) = state.open_below(&relative)? {
        let path = state.path().join(&relative);
        match permission {
            Some(permission) => permission.covers(run)?,
            None => {
                for part in [WORKSPACE, BASE] {
                    if state::file_type(dir.as_fd(), OsStr::new(part), &path)?.is_some() {
                        return Err(Error::WorkspaceKept { run: run.clone() });
                    }
                }
            }
        }
    }
    let Some(runs) = state.open_below(Path::new(RUNS))? else { return Ok(Removed::default()) };
    delete::remove(runs.as_fd(), &state.path().join(RUNS), OsStr::new(run.as_str()))
}

fn run_path(run: &RunId) -> PathBuf {
    Path::new(RUNS).join(run.as_str())
}

/// A plain name that is not one of the guarded ones.
fn check_other(name: &OsStr) -> Result<&OsStr> {
    let mut parts = Path::new(name).components();
    let plain = matches!(parts.next(), Some(std::path::Component::Normal(only)) if only == name)
        && parts.next().is_none();
    if plain && name != WORKSPACE && name != BASE {
        Ok(name)
    } else {
        Err(Error::BadPart { name: name.into() })
    }
}
