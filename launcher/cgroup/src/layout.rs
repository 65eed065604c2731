//! Which hierarchies this host has and where our own group is in each of them.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::dir::Dir;
use crate::mountinfo::{self, Membership, Mount};
use crate::{Error, Place, Result};

/// Magic number that `statfs` reports for cgroup v2.
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
/// Where hierarchies are mounted on every Linux system.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Name of the v2 tree in records.
pub(crate) const V2: &str = "v2";
/// The leaf the supervisor sits in on a unified host.
pub(crate) const LEAF: &str = "supervisor";

/// How the host mounts its hierarchies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Pure v2.
    Unified,
    /// Controllers on v1 hierarchies, a v2 tree beside them.
    Hybrid,
}

/// A controller that every run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// CPU bandwidth.
    Cpu,
    /// Memory and swap.
    Memory,
    /// Number of tasks.
    Pids,
}

impl Controller {
    /// All of them.
    pub const ALL: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];

    /// The kernel's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// `v2`, or the v1 controllers, for records.
    pub(crate) name: String,
    /// Controllers whose limits are set here; none on the v2 tree of a hybrid host.
    pub(crate) controllers: Vec<Controller>,
    pub(crate) mount: PathBuf,
    /// The group below which we may make ours, relative to `mount`.
    pub(crate) own: PathBuf,
}

impl Tree {
    pub(crate) fn is_v2(&self) -> bool {
        self.name == V2
    }

    pub(crate) fn open_mount(&self) -> Result<Dir> {
        Dir::open_mount(&self.mount)
    }
}

/// The hierarchies of this host and our own group in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    kind: Kind,
    /// The v2 tree first: it is entered first and removed last.
    trees: Vec<Tree>,
    /// On a unified host: whether this process is in the leaf already.
    in_leaf: bool,
}

impl Layout {
    /// Looks at this host and this process.
    ///
    /// # Errors
    /// [`Error::is_host_support`] ones when the host cannot contain runs, others when it cannot be
    /// read.
    pub fn detect() -> Result<Self> {
        Layout::detect_at(Path::new(CGROUP_ROOT), Path::new("/proc/self"))
    }

    /// The same with other roots, for tests.
    ///
    /// # Errors
    /// As [`Layout::detect`].
    pub fn detect_at(root: &Path, proc_self: &Path) -> Result<Self> {
        let kind = kind_of(root)?;
        let read = |name: &str| {
            let path = proc_self.join(name);
            std::fs::read(&path).map_err(|e| Error::io("read", path, e))
        };
        let cgroup = String::from_utf8(read("cgroup")?)
            .map_err(|_| Error::unparsable(proc_self.join("cgroup"), "not UTF-8"))?;
        Layout::from_texts(kind, root, &cgroup, &read("mountinfo")?)
    }

    /// The same from the kernel's texts.
    pub(crate) fn from_texts(
        kind: Kind,
        root: &Path,
        cgroup: &str,
        mountinfo: &[u8],
    ) -> Result<Self> {
        let members = mountinfo::parse_membership(cgroup, Path::new("/proc/self/cgroup"))?;
        let mounts: Vec<Mount> = mountinfo::parse(mountinfo, Path::new("/proc/self/mountinfo"))?
            .into_iter()
            .filter(|mount| mount.point.starts_with(root))
            .collect();
        let no_tree = || Error::NoCgroup2 { root: root.to_owned() };
        let v2_mount = mounts.iter().find(|m| m.fs_type == "cgroup2").ok_or_else(no_tree)?;
        let v2_member = members.iter().find(|m| m.controllers.is_empty()).ok_or_else(no_tree)?;
        let mut v2 = tree(V2.to_owned(), v2_mount, v2_member)?;
        let in_leaf = kind == Kind::Unified && leave_leaf(&mut v2)?;

        let mut trees: Vec<Tree> = Vec::new();
        for controller in Controller::ALL {
            let on_v1 = match kind {
                Kind::Hybrid => find_v1(controller, &mounts, &members)?,
                Kind::Unified => None,
            };
            match on_v1 {
                Some(found) => match trees.iter_mut().find(|t| t.name == found.name) {
                    Some(known) => known.controllers.push(controller),
                    None => trees.push(Tree { controllers: vec![controller], ..found }),
                },
                None => {
                    require_v2_controller(&v2, controller)?;
                    v2.controllers.push(controller);
                }
            }
        }
        trees.insert(0, v2);
        Ok(Layout { kind, trees, in_leaf })
    }

    /// Whether a supervisor started by this process cannot limit its runs where this process is: on a
    /// unified host, a group with processes of its own cannot have children with controllers, and
    /// this process stays in it. A supervisor there needs a group that is given to it alone.
    pub fn is_shared(&self) -> bool {
        // The root of the whole hierarchy may hold processes beside controllers.
        self.kind == Kind::Unified
            && !self.in_leaf
            && self.trees.iter().any(|tree| !tree.own.as_os_str().is_empty())
    }

    /// How the hierarchies are mounted.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Our own group in each hierarchy: those below which groups have to be made.
    pub fn own_groups(&self) -> Vec<PathBuf> {
        self.trees.iter().map(|tree| tree.mount.join(&tree.own)).collect()
    }

    /// Where a directory of a record is now, for messages.
    ///
    /// # Errors
    /// [`Error::NoHierarchy`] when its hierarchy is not mounted.
    pub fn path_of(&self, place: &Place) -> Result<PathBuf> {
        Ok(self.tree(&place.hierarchy)?.mount.join(&place.path))
    }

    pub(crate) fn trees(&self) -> &[Tree] {
        &self.trees
    }

    pub(crate) fn in_leaf(&self) -> bool {
        self.in_leaf
    }

    pub(crate) fn tree(&self, name: &str) -> Result<&Tree> {
        self.trees
            .iter()
            .find(|tree| tree.name == name)
            .ok_or_else(|| Error::NoHierarchy { hierarchy: name.to_owned() })
    }
}

/// [`Layout::is_shared`] of this process, also where its group lacks a controller that another may have.
pub fn needs_group() -> bool {
    match Layout::detect() {
        Ok(layout) => layout.is_shared(),
        Err(Error::MissingController { .. }) => {
            matches!(kind_of(Path::new(CGROUP_ROOT)), Ok(Kind::Unified))
        }
        Err(_) => false,
    }
}

fn kind_of(root: &Path) -> Result<Kind> {
    let stat = rustix::fs::statfs(root).map_err(|_| Error::NoCgroup2 { root: root.to_owned() })?;
    let unified = u64::try_from(stat.f_type) == Ok(CGROUP2_SUPER_MAGIC);
    Ok(if unified { Kind::Unified } else { Kind::Hybrid })
}

/// Own group relative to what is mounted.
fn tree(name: String, mount: &Mount, member: &Membership) -> Result<Tree> {
    let outside = || Error::Outside {
        own: member.path.clone(),
        root: mount.root.display().to_string(),
        mount: mount.point.clone(),
    };
    let own = Path::new(&member.path).strip_prefix(&mount.root).map_err(|_| outside())?;
    // A group outside our cgroup namespace is shown with `..`: never climb.
    if own.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Err(outside());
    }
    Ok(Tree { name, controllers: Vec::new(), mount: mount.point.clone(), own: own.to_owned() })
}

fn find_v1(
    controller: Controller,
    mounts: &[Mount],
    members: &[Membership],
) -> Result<Option<Tree>> {
    let has = |names: &[String]| names.iter().any(|name| name == controller.as_str());
    let mount = mounts.iter().find(|m| m.fs_type == "cgroup" && has(&m.super_options));
    let member = members.iter().find(|m| has(&m.controllers));
    match (mount, member) {
        (Some(mount), Some(member)) => tree(member.controllers.join(","), mount, member).map(Some),
        _ => Ok(None),
    }
}

fn require_v2_controller(v2: &Tree, controller: Controller) -> Result<()> {
    let own = v2.open_mount()?.require_below(&v2.own)?;
    let available = own.read("cgroup.controllers")?;
    if available.split_whitespace().any(|name| name == controller.as_str()) {
        Ok(())
    } else {
        Err(Error::MissingController { controller, path: own.path().to_owned() })
    }
}

/// On a unified host the supervisor sits in a leaf of the group that was delegated to it. The leaf's
/// parent is our own group only where that is on record: systemd's delegation mark, or ours.
fn leave_leaf(v2: &mut Tree) -> Result<bool> {
    if v2.own.file_name() != Some(LEAF.as_ref()) {
        return Ok(false);
    }
    let Some(parent) = v2.own.parent() else { return Ok(false) };
    let mount = v2.open_mount()?;
    let parent_dir = mount.require_below(parent)?;
    let leaf = mount.require_below(&v2.own)?;
    let marked = is_marked(&parent_dir, "trusted.delegate")
        || is_marked(&parent_dir, "user.delegate")
        || is_marked(&leaf, LEAF_MARK);
    if marked {
        v2.own = parent.to_owned();
    }
    Ok(marked)
}

/// Extended attribute that marks a leaf as made by us.
pub(crate) const LEAF_MARK: &str = "user.atenea.leaf";

fn is_marked(dir: &Dir, attribute: &str) -> bool {
    let mut value = [0_u8; 8];
    let length = rustix::fs::fgetxattr(dir, attribute, &mut value[..]);
    matches!(length, Ok(1)) && value[0] == b'1'
}
