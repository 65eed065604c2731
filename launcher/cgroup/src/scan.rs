//! Finds what dead supervisors left: the instance's directory anywhere in each hierarchy, because a
//! restarted supervisor may start from another group than the dead one.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::remove_empty;
use crate::group::Member;
use crate::layout::Tree;
use crate::name::instance_dir;
use crate::{Error, Layout, Place, Result, RunGroup};

/// Directories visited per hierarchy. A busy host has some thousands.
const VISITED_MAX: usize = 50_000;
/// Levels below the mount point.
const DEPTH_MAX: usize = 32;

/// Every directory `atenea-<instance>`, in every hierarchy.
///
/// # Errors
/// Whatever cannot be read, and [`Error::TooMany`]: "not found" is only said after looking
/// everywhere. A directory that vanishes during the walk is nothing.
pub fn find_instances(layout: &Layout, instance: &str) -> Result<Vec<Place>> {
    let name = instance_dir(instance)?;
    let mut found = Vec::new();
    for tree in layout.trees() {
        find_in(tree, &name, &mut found)?;
    }
    Ok(found)
}

fn find_in(tree: &Tree, name: &str, found: &mut Vec<Place>) -> Result<()> {
    let mount = tree.open_mount()?;
    let mut todo = VecDeque::from([PathBuf::new()]);
    let mut visited = 0_usize;
    while let Some(relative) = todo.pop_front() {
        visited += 1;
        if visited > VISITED_MAX || relative.components().count() > DEPTH_MAX {
            return Err(Error::TooMany { path: tree.mount.clone(), bound: VISITED_MAX });
        }
        let Some(dir) = mount.open_below(&relative)? else { continue };
        if relative.file_name().is_some_and(|last| last == name) {
            // Below it are runs, not instances.
            found.push(Place::new(tree, &relative, &dir)?);
            continue;
        }
        todo.extend(dir.children()?.into_iter().map(|child| relative.join(child)));
    }
    Ok(())
}

/// All run groups below these instance directories; the directories of one run in different
/// hierarchies become one group.
///
/// # Errors
/// Whatever cannot be read.
pub fn scan(layout: &Layout, bases: &[Place]) -> Result<Vec<RunGroup>> {
    let mut runs: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for base in bases {
        let tree = layout.tree(&base.hierarchy)?;
        let Some(parent) = tree.open_mount()?.open_below(Path::new(&base.path))? else { continue };
        let parent = Arc::new(parent);
        for child in parent.children()? {
            let Some(dir) = parent.open_below(Path::new(&child))? else { continue };
            let place = Place::new(tree, &Path::new(&base.path).join(&child), &dir)?;
            let name = child.to_string_lossy().into_owned();
            runs.entry(name).or_default().push(Member::new(tree, Arc::clone(&parent), dir, place));
        }
    }
    let assemble = |(name, members)| RunGroup::assemble(layout.kind(), name, members);
    Ok(runs.into_iter().map(assemble).collect())
}

/// Removes an instance directory that was found, if it is empty. `true`: it is gone.
///
/// # Errors
/// [`Error::Replaced`] when another directory has its place.
pub fn remove_instance(layout: &Layout, place: &Place) -> Result<bool> {
    let tree = layout.tree(&place.hierarchy)?;
    let relative = Path::new(&place.path);
    let ours = relative
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with("atenea-"));
    if !ours {
        return Err(Error::BadName { name: place.path.clone() });
    }
    let parent = relative.parent().unwrap_or(Path::new(""));
    let Some(own) = tree.open_mount()?.open_below(parent)? else { return Ok(true) };
    let Some(dir) = tree.open_mount()?.open_below(relative)? else { return Ok(true) };
    if dir.ino() != place.ino {
        let path = dir.path().to_owned();
        return Err(Error::Replaced { path, expected: place.ino, found: dir.ino() });
    }
    remove_empty(&own, &dir, relative)
}
