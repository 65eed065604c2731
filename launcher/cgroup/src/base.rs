//! Our own parent group in every hierarchy: all runs of one supervisor instance lie below it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::dir::{Dir, is_gone};
use crate::layout::{LEAF, LEAF_MARK, Tree};
use crate::name::instance_dir;
use crate::{Controller, Error, Kind, Layout, Place, Result, RunGroup};

/// The instance's directory in one hierarchy.
#[derive(Clone, Debug)]
pub(crate) struct BaseDir {
    pub(crate) tree: Tree,
    /// Our own group, which holds `dir`.
    pub(crate) own: Arc<Dir>,
    pub(crate) dir: Arc<Dir>,
    /// Path of `dir` below the mount.
    pub(crate) relative: PathBuf,
}

/// The parent of all runs of one instance.
#[derive(Clone, Debug)]
pub struct Base {
    layout: Layout,
    instance: String,
    dirs: Vec<BaseDir>,
}

impl Base {
    /// Opens `atenea-<instance>` below our own group in every hierarchy, making what is missing.
    ///
    /// On a unified host the calling process first moves into a leaf of its group, so this is
    /// called before any other process or thread of the supervisor exists.
    ///
    /// # Errors
    /// [`Error::NotWritable`] and the other [`Error::is_host_support`] ones; nothing above our own
    /// group is ever written.
    pub fn open_or_create(layout: &Layout, instance: &str) -> Result<Self> {
        let name = instance_dir(instance)?;
        let mut dirs = Vec::new();
        for tree in layout.trees() {
            let own = Arc::new(tree.open_mount()?.require_below(&tree.own)?);
            if !tree.controllers.is_empty() && tree.is_v2() {
                prepare_own(layout, &own, &tree.controllers)?;
            }
            own.make(&name)?;
            let dir = own.require_below(Path::new(&name))?;
            if tree.is_v2() {
                enable(&dir, &tree.controllers)?;
            }
            let relative = tree.own.join(&name);
            dirs.push(BaseDir { tree: tree.clone(), own, dir: Arc::new(dir), relative });
        }
        Ok(Base { layout: layout.clone(), instance: instance.to_owned(), dirs })
    }

    /// The layout it was opened with.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The instance's name.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Whether its directories are those that were opened: somebody may have removed them since.
    ///
    /// # Errors
    /// What cannot be looked at.
    pub fn is_there(&self) -> Result<bool> {
        for base in &self.dirs {
            let Some(name) = base.relative.file_name() else { return Ok(false) };
            if base.own.ino_of(name)? != Some(base.dir.ino()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn dirs(&self) -> &[BaseDir] {
        &self.dirs
    }

    /// Its directory in every hierarchy.
    ///
    /// # Errors
    /// [`Error::Unparsable`] when our own group has a name that is not UTF-8.
    pub fn places(&self) -> Result<Vec<Place>> {
        self.dirs.iter().map(|d| Place::new(&d.tree, &d.relative, &d.dir)).collect()
    }

    /// All run groups below it.
    ///
    /// # Errors
    /// Whatever cannot be read; never "nothing" instead.
    pub fn scan(&self) -> Result<Vec<RunGroup>> {
        crate::scan(&self.layout, &self.places()?)
    }

    /// Removes the base itself where no run is left below it. `true`: it is gone everywhere.
    ///
    /// # Errors
    /// A removal that failed for another reason than a run that is still there.
    pub fn remove_if_empty(&self) -> Result<bool> {
        let mut gone = true;
        for base in self.dirs.iter().rev() {
            gone &= remove_empty(&base.own, &base.dir, &base.relative)?;
        }
        Ok(gone)
    }
}

/// Removes the directory of an instance if it is empty and still the one that was seen.
pub(crate) fn remove_empty(own: &Dir, dir: &Dir, relative: &Path) -> Result<bool> {
    let Some(name) = relative.file_name() else { return Ok(false) };
    match own.ino_of(name)? {
        None => return Ok(true),
        Some(found) if found != dir.ino() => {
            let path = dir.path().to_owned();
            return Err(Error::Replaced { path, expected: dir.ino(), found });
        }
        Some(_) => {}
    }
    match own.rmdir(name) {
        Ok(()) => Ok(true),
        Err(e) if is_gone(e) => Ok(true),
        Err(Errno::BUSY | Errno::NOTEMPTY) => Ok(false),
        Err(e) => Err(Error::io("remove", dir.path(), e)),
    }
}

/// Makes our own group on a unified host able to have children with controllers.
fn prepare_own(layout: &Layout, own: &Dir, controllers: &[Controller]) -> Result<()> {
    // Only the root of the whole hierarchy has no type; it may hold processes beside controllers.
    let is_hierarchy_root = !own.has("cgroup.type")?;
    if layout.kind() == Kind::Unified && !layout.in_leaf() && !is_hierarchy_root {
        enter_leaf(own)?;
    }
    enable(own, controllers)
}

fn enter_leaf(own: &Dir) -> Result<()> {
    own.make(LEAF)?;
    let leaf = own.require_below(Path::new(LEAF))?;
    // So that a child of this process, which starts in the leaf, knows that it may use its parent.
    rustix::fs::fsetxattr(&leaf, LEAF_MARK, b"1", XattrFlags::empty())
        .map_err(|e| Error::io("mark", leaf.path(), e))?;
    leaf.write("cgroup.procs", "0")
        .map_err(|source| Error::NotWritable { path: leaf.file_path("cgroup.procs"), source })
}

/// Enables controllers for the children of a group of ours, only those that are not enabled.
fn enable(dir: &Dir, controllers: &[Controller]) -> Result<()> {
    const FILE: &str = "cgroup.subtree_control";
    if controllers.is_empty() {
        return Ok(());
    }
    let enabled = dir.read(FILE)?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|c| !enabled.split_whitespace().any(|name| name == c.as_str()))
        .map(|c| format!("+{c}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let path = dir.file_path(FILE);
    match dir.write(FILE, &missing.join(" ")) {
        Ok(()) => Ok(()),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => {
            Err(Error::InternalProcesses { path: dir.path().to_owned(), pids: dir.procs()? })
        }
        Err(source) => Err(Error::NotWritable { path, source }),
    }
}
