//! Single mounts: filesystems in memory, binds of vetted sources. Nothing here knows a plan.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use atenea_core::Code;
use rustix::fs::{CWD, FileType};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
};

use super::{Failure, failed};
use crate::plan::FileIdentity;
use crate::sys;

const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;

/// Nothing mounted here is seen outside, and nothing mounted outside later appears here.
pub(super) fn make_private() -> Result<(), Failure> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).map_err(failed(
        Code::HostBubblewrapUnusable,
        "private",
        "make all mounts private",
    ))
}

/// A filesystem in memory, not yet mounted anywhere.
pub(super) struct Tmpfs {
    pub(super) size: u64,
    pub(super) nr_inodes: u64,
    pub(super) mode: u32,
    /// Owner of its root; this process when absent.
    pub(super) owner: Option<(u32, u32)>,
}

impl Tmpfs {
    pub(super) fn make(&self) -> io::Result<OwnedFd> {
        let fs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let set = |key: &str, value: String| rustix::mount::fsconfig_set_string(&fs, key, value);
        set("size", self.size.to_string())?;
        set("nr_inodes", self.nr_inodes.to_string())?;
        set("mode", format!("{:o}", self.mode))?;
        if let Some((uid, gid)) = self.owner {
            set("uid", uid.to_string())?;
            set("gid", gid.to_string())?;
        }
        finish(&fs, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
    }
}

/// Terminals of its own, at most `max`: the host's are bounded too, and shared.
pub(super) fn devpts(max: u32) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&fs, "ptmxmode", "0666")?;
    rustix::mount::fsconfig_set_string(&fs, "mode", "0620")?;
    rustix::mount::fsconfig_set_string(&fs, "max", max.to_string())?;
    finish(&fs, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

fn finish(fs: &OwnedFd, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    rustix::mount::fsconfig_create(fs)?;
    Ok(rustix::mount::fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// What kind of thing a bind must find.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Directory,
    File,
    Device,
}

/// A detached copy of what is mounted at a path of the host.
pub(super) fn clone_of(path: &Path, wanted: Wanted) -> io::Result<(OwnedFd, FileIdentity)> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    if wanted == Wanted::Directory {
        // What is mounted below is part of what was granted; the attributes reach it as well.
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(CWD, path, flags)?;
    let stat = rustix::fs::fstat(&tree)?;
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Some(Wanted::Directory),
        FileType::RegularFile => Some(Wanted::File),
        FileType::CharacterDevice => Some(Wanted::Device),
        _ => None,
    };
    if found != Some(wanted) {
        return Err(io::Error::other("is not of the kind that was vetted"));
    }
    Ok((tree, FileIdentity { dev: stat.st_dev, ino: stat.st_ino }))
}

/// A bind of exactly what was vetted: identity is compared after the mount was taken, so a path that
/// was exchanged meanwhile is found.
pub(super) fn vetted_bind(
    path: &Path,
    vetted: FileIdentity,
    directory: bool,
    read_only: bool,
) -> io::Result<OwnedFd> {
    let wanted = if directory { Wanted::Directory } else { Wanted::File };
    let (tree, found) = clone_of(path, wanted)?;
    if found != vetted {
        return Err(io::Error::other(format!(
            "is device {} inode {}, vetted was device {} inode {}",
            found.dev, found.ino, vetted.dev, vetted.ino
        )));
    }
    let attributes = NOSUID | NODEV | if read_only { RDONLY } else { 0 };
    sys::mount::set_attributes(tree.as_fd(), attributes, directory)?;
    Ok(tree)
}

/// A bind of one device file of the host.
pub(super) fn device(path: &Path) -> io::Result<OwnedFd> {
    let (tree, _) = clone_of(path, Wanted::Device)?;
    sys::mount::set_attributes(tree.as_fd(), NOSUID | libc::MOUNT_ATTR_NOEXEC, false)?;
    Ok(tree)
}

/// Puts a detached mount at an absolute path of the host's view.
pub(super) fn attach_at(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", CWD, path, flags)?)
}

/// Puts a detached mount on the place that a descriptor names.
pub(super) fn attach(tree: &OwnedFd, place: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", place, "", flags)?)
}

/// No further change of the filesystem mounted at this place.
pub(super) fn seal(mount: BorrowedFd<'_>) -> io::Result<()> {
    sys::mount::set_attributes(mount, RDONLY, false)
}
