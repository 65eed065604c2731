//! The tree that the agent sees, made from the plan's mounts in a filesystem of its own.
//!
//! Sources are taken first, while the host's view is whole; then the new root covers the staging
//! directory in this process's mount namespace only. Everything is made by descriptor below that
//! root, so no name an agent ever wrote takes part.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use atenea_core::Code;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::mounts::{self, Tmpfs};
use super::{Failure, Vetted, failed};
use crate::plan::{INIT_PATH, Mount, MountKind, SandboxPlan};

/// Device files that harmless programs need.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links that programs expect beside them.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Terminals of one run.
const TERMINALS_MAX: u32 = 64;

/// Makes the tree at the staging directory.
pub(super) fn make(plan: &SandboxPlan, init: &Vetted, staging: &Path) -> Result<(), Failure> {
    rustix::process::umask(Mode::empty());
    let binds = take_sources(plan)?;
    let devices = take_devices()?;
    let init_tree = mounts::vetted_bind(&init.path, init.identity, false, true).map_err(failed(
        Code::HostNoInit,
        "init",
        init.path.display().to_string(),
    ))?;
    let mut tree = Tree { root: root(plan, staging)?, binds, devices, plan };
    // bubblewrap and init need these whatever the plan says.
    tree.file(Path::new(INIT_PATH), &[], 0o555)
        .and_then(|place| mounts::attach(&init_tree, place.as_fd()))
        .map_err(failed(Code::ProcessLaunchFailed, "init", INIT_PATH))?;
    for (index, mount) in plan.mounts.iter().enumerate().skip(1) {
        tree.make(index, mount).map_err(failed(
            Code::ProcessLaunchFailed,
            "mount",
            mount.target.to_string(),
        ))?;
    }
    Ok(())
}

/// The first mount of a plan is its root.
fn root(plan: &SandboxPlan, staging: &Path) -> Result<OwnedFd, Failure> {
    let step = || failed(Code::ProcessLaunchFailed, "root", staging.display().to_string());
    let Some(Mount { what: MountKind::Tmpfs { size, nr_inodes, mode, .. }, .. }) =
        plan.mounts.first()
    else {
        return Err(step()(io::Error::other("the plan's first mount is no tmpfs")));
    };
    let tmpfs = Tmpfs { size: *size, nr_inodes: *nr_inodes, mode: *mode, owner: None };
    let root = tmpfs.make().map_err(step())?;
    mounts::attach_at(&root, staging).map_err(step())?;
    Ok(root)
}

fn take_sources(plan: &SandboxPlan) -> Result<BTreeMap<usize, OwnedFd>, Failure> {
    let mut taken = BTreeMap::new();
    for (index, mount) in plan.mounts.iter().enumerate() {
        if let MountKind::Bind { source, vetted, directory, read_only } = &mount.what {
            let tree = mounts::vetted_bind(source.as_path(), *vetted, *directory, *read_only)
                .map_err(failed(Code::FsChanged, "source", source.to_string()))?;
            taken.insert(index, tree);
        }
    }
    Ok(taken)
}

fn take_devices() -> Result<Vec<(&'static str, OwnedFd)>, Failure> {
    DEVICES
        .into_iter()
        .map(|name| {
            let path = Path::new("/dev").join(name);
            mounts::device(&path).map(|tree| (name, tree)).map_err(failed(
                Code::ProcessLaunchFailed,
                "device",
                path.display().to_string(),
            ))
        })
        .collect()
}

struct Tree<'a> {
    root: OwnedFd,
    binds: BTreeMap<usize, OwnedFd>,
    devices: Vec<(&'static str, OwnedFd)>,
    plan: &'a SandboxPlan,
}

impl Tree<'_> {
    fn make(&mut self, index: usize, mount: &Mount) -> io::Result<()> {
        let target = mount.target.as_path();
        match &mount.what {
            MountKind::Tmpfs { size, nr_inodes, mode, of_agent } => {
                let ids = self.plan.ids;
                let owner = of_agent.then_some((ids.outside_uid, ids.outside_gid));
                let tmpfs = Tmpfs { size: *size, nr_inodes: *nr_inodes, mode: *mode, owner };
                self.attach(&tmpfs.make()?, target)
            }
            MountKind::Bind { directory, .. } => {
                let tree = self
                    .binds
                    .remove(&index)
                    .ok_or_else(|| io::Error::other("its source was not taken"))?;
                if *directory {
                    self.attach(&tree, target)
                } else {
                    mounts::attach(&tree, self.file(target, &[], 0o444)?.as_fd())
                }
            }
            // Made by bubblewrap, which makes the pid namespace it belongs to.
            MountKind::Proc => self.dir(target).map(drop),
            MountKind::Dev => self.make_dev(target),
            MountKind::Symlink { to } => {
                let parent = self.parent(target)?;
                Ok(rustix::fs::symlinkat(to.as_path(), parent, last(target)?)?)
            }
            MountKind::File { contents, mode } => {
                self.file(target, contents.as_bytes(), *mode).map(drop)
            }
            MountKind::Dir => self.dir(target).map(drop),
            MountKind::Seal => self.seal(target),
        }
    }

    fn attach(&self, tree: &OwnedFd, target: &Path) -> io::Result<()> {
        mounts::attach(tree, self.dir(target)?.as_fd())
    }

    fn seal(&self, target: &Path) -> io::Result<()> {
        if inside(target).as_os_str().is_empty() {
            return mounts::seal(self.root.as_fd());
        }
        mounts::seal(self.dir(target)?.as_fd())
    }

    /// `/dev` is a directory of the root, so it becomes read-only with it.
    fn make_dev(&mut self, target: &Path) -> io::Result<()> {
        let dev = self.dir(target)?;
        for (name, tree) in std::mem::take(&mut self.devices) {
            let place = create_file(dev.as_fd(), Path::new(name), &[], 0o444)?;
            mounts::attach(&tree, place.as_fd())?;
        }
        let terminals = mounts::devpts(TERMINALS_MAX)?;
        mounts::attach(&terminals, self.dir(&target.join("pts"))?.as_fd())?;
        for (name, to) in DEVICE_LINKS {
            rustix::fs::symlinkat(to, &dev, name)?;
        }
        Ok(())
    }

    /// Opens a directory below the root and makes what is missing on the way, one part after the
    /// other. No link is followed: every parent of a mount point is a directory made here, never
    /// what somebody put in its place (the lesson of CVE-2026-87766).
    fn dir(&self, target: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = rustix::fs::openat(&self.root, ".", flags, Mode::empty())?;
        for part in inside(target).components() {
            match rustix::fs::mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            at = rustix::fs::openat(&at, part.as_os_str(), flags, Mode::empty())?;
        }
        Ok(at)
    }

    /// The directory that holds a target.
    fn parent(&self, target: &Path) -> io::Result<OwnedFd> {
        self.dir(target.parent().unwrap_or(Path::new("/")))
    }

    fn file(&self, target: &Path, contents: &[u8], mode: u32) -> io::Result<OwnedFd> {
        create_file(self.parent(target)?.as_fd(), last(target)?, contents, mode)
    }
}

/// Makes a file with its content; what comes back names its place, for a mount on it.
fn create_file(
    parent: BorrowedFd<'_>,
    name: &Path,
    contents: &[u8],
    mode: u32,
) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(mode))?;
    let mut rest = contents;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(file)
}

/// A path inside, relative to the root.
fn inside(target: &Path) -> &Path {
    target.strip_prefix("/").unwrap_or(target)
}

fn last(target: &Path) -> io::Result<&Path> {
    target.file_name().map(Path::new).ok_or_else(|| io::Error::other("has no last part"))
}
