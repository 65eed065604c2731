//! What the journal keeps of a run's groups, and how they are found again.

use std::path::{Component, Path};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dir::Dir;
use crate::group::Member;
use crate::layout::Tree;
use crate::{Error, Kind, Layout, Result, RunGroup, name};

/// One directory in one hierarchy. Inodes of cgroup v2 and v1 are not used again within a boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// `v2`, or the controllers of the v1 hierarchy.
    pub hierarchy: String,
    /// Path below the mount point.
    pub path: String,
    /// Inode of the directory.
    pub ino: u64,
}

impl Place {
    pub(crate) fn new(tree: &Tree, relative: &Path, dir: &Dir) -> Result<Self> {
        let path =
            relative.to_str().ok_or_else(|| Error::unparsable(dir.path(), "not UTF-8"))?.to_owned();
        Ok(Place { hierarchy: tree.name.clone(), path, ino: dir.ino() })
    }

    /// Whether this is the v2 tree, where a run is killed.
    pub fn is_v2(&self) -> bool {
        self.hierarchy == crate::layout::V2
    }
}

/// A run's groups as a record. Valid in the boot in which it was made: the record that holds it
/// must hold the boot id too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Layout of the host at that time.
    pub kind: Kind,
    /// Name of the run's directory.
    pub name: String,
    /// The v2 directory first.
    pub places: Vec<Place>,
}

/// What is where the record says.
#[derive(Debug)]
pub enum GroupState {
    /// The groups that were made, at least one of them.
    Same(RunGroup),
    /// None of them is there.
    Gone,
    /// Another directory has the place of one of them. Not ours: it is not touched.
    Replaced {
        /// Which.
        place: Place,
        /// The inode that is there now.
        found: u64,
    },
}

impl RunGroup {
    /// Finds the groups of a record again, comparing inodes.
    ///
    /// # Errors
    /// [`Error::NoHierarchy`], [`Error::BadName`] for a record that names no group of ours, and
    /// whatever cannot be read. None of these means that the groups are gone.
    pub fn reopen(layout: &Layout, identity: &Identity) -> Result<GroupState> {
        name::check_run(&identity.name)?;
        let mut members = Vec::new();
        for place in &identity.places {
            let (parent, _) = split(&place.path, &identity.name)?;
            let tree = layout.tree(&place.hierarchy)?;
            let Some(parent_dir) = tree.open_mount()?.open_below(Path::new(parent))? else {
                continue;
            };
            let Some(dir) = parent_dir.open_below(Path::new(&identity.name))? else { continue };
            if dir.ino() != place.ino {
                return Ok(GroupState::Replaced { place: place.clone(), found: dir.ino() });
            }
            members.push(Member::new(tree, Arc::new(parent_dir), dir, place.clone()));
        }
        if members.is_empty() {
            return Ok(GroupState::Gone);
        }
        Ok(GroupState::Same(RunGroup::assemble(layout.kind(), identity.name.clone(), members)))
    }
}

/// Splits `…/atenea-<instance>/<name>`; a record of another form names nothing that we may touch.
fn split<'a>(path: &'a str, name: &str) -> Result<(&'a str, &'a str)> {
    let bad = || Error::BadName { name: path.to_owned() };
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let (parent, last) = path.rsplit_once('/').ok_or_else(bad)?;
    let instance = parent.rsplit('/').next().unwrap_or_default();
    let ours = instance.strip_prefix("atenea-").is_some_and(|rest| !rest.is_empty());
    if plain && ours && last == name { Ok((parent, last)) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_names_a_group_of_somebody_else_is_refused() {
        assert_eq!(split("x/atenea-a/r_1", "r_1").unwrap().0, "x/atenea-a");
        assert_eq!(split("atenea-a/r_1", "r_1").unwrap().0, "atenea-a");
        for bad in [
            "r_1",
            "/atenea-a/r_1",
            "x/../atenea-a/r_1",
            "system.slice/r_1",
            "atenea-/r_1",
            "atenea-a/r_2",
        ] {
            assert!(split(bad, "r_1").is_err(), "{bad}");
        }
    }
}
