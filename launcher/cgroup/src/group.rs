//! The groups of one run: made with their limits, entered, killed, proven empty.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::dir::{Dir, is_gone_io, keyed};
use crate::events::{self, OomWatch, Wait};
use crate::layout::Tree;
use crate::{
    Base, Controller, Error, Frozen, Identity, Kind, Limits, Place, Result, freeze, limits, name,
    remove,
};

/// One directory of a run.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) v2: bool,
    pub(crate) controllers: Vec<Controller>,
    /// Holds `dir`; removal goes through it.
    pub(crate) parent: Arc<Dir>,
    pub(crate) dir: Dir,
    pub(crate) place: Place,
}

impl Member {
    pub(crate) fn new(tree: &Tree, parent: Arc<Dir>, dir: Dir, place: Place) -> Self {
        let controllers = tree.controllers.clone();
        Member { v2: tree.is_v2(), controllers, parent, dir, place }
    }
}

/// The groups of one run, held open.
#[derive(Debug)]
pub struct RunGroup {
    kind: Kind,
    name: String,
    /// The v2 directory first, where there is one.
    members: Vec<Member>,
    /// `cgroup.procs` of every member, open for writing; only in a group made by `create`.
    entrances: Vec<OwnedFd>,
}

impl RunGroup {
    /// Makes the groups of a run and sets its limits, or makes nothing.
    ///
    /// # Errors
    /// [`Error::LimitNotSet`] and [`Error::LimitDiffers`] name the file; [`Error::Exists`] when a
    /// group of that name is there.
    pub fn create(base: &Base, name: &str, limits: &Limits) -> Result<Self> {
        name::check_run(name)?;
        limits.check()?;
        let kind = base.layout().kind();
        let mut made =
            RunGroup { kind, name: name.to_owned(), members: Vec::new(), entrances: Vec::new() };
        match made.build(base, limits) {
            Ok(()) => Ok(made),
            Err(error) => {
                // Only what was made here is in `members`; nothing can be inside yet.
                made.remove()?;
                Err(error)
            }
        }
    }

    fn build(&mut self, base: &Base, limits: &Limits) -> Result<()> {
        for base_dir in base.dirs() {
            let parent = &base_dir.dir;
            if !parent.make(&self.name)? {
                return Err(Error::Exists { path: parent.file_path(&self.name) });
            }
            let opened = parent.require_below(Path::new(&self.name)).and_then(|dir| {
                let place = Place::new(&base_dir.tree, &base_dir.relative.join(&self.name), &dir)?;
                Ok(Member::new(&base_dir.tree, Arc::clone(parent), dir, place))
            });
            match opened {
                Ok(member) => self.members.push(member),
                Err(error) => {
                    // Made a moment ago and not yet known to `remove`.
                    let path = parent.file_path(&self.name);
                    let removed = parent.rmdir(self.name.as_ref());
                    removed.map_err(|e| Error::io("remove", path, e))?;
                    return Err(error);
                }
            }
        }
        for member in &self.members {
            limits::set(&member.dir, member.v2, &member.controllers, limits)?;
            let open = member.dir.open_file("cgroup.procs", OFlags::WRONLY);
            let path = member.dir.file_path("cgroup.procs");
            self.entrances.push(open.map_err(|source| Error::NotWritable { path, source })?);
        }
        Ok(())
    }

    /// From directories that were found.
    pub(crate) fn assemble(kind: Kind, name: String, mut members: Vec<Member>) -> Self {
        members.sort_by_key(|member| !member.v2);
        RunGroup { kind, name, members, entrances: Vec::new() }
    }

    /// Name of the run's directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The record to journal.
    pub fn identity(&self) -> Identity {
        let places = self.members.iter().map(|member| member.place.clone()).collect();
        Identity { kind: self.kind, name: self.name.clone(), places }
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(crate) fn with(&self, controller: Controller) -> Result<&Member> {
        self.members
            .iter()
            .find(|member| member.controllers.contains(&controller))
            .ok_or_else(|| Error::MissingController { controller, path: (&*self.name).into() })
    }

    /// The v2 directory, for `CLONE_INTO_CGROUP`.
    pub fn v2_dir(&self) -> Option<BorrowedFd<'_>> {
        self.members.iter().find(|member| member.v2).map(|member| member.dir.as_fd())
    }

    /// The descriptors that [`RunGroup::enter_current`] writes to, the v2 one first.
    pub fn procs_files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.entrances.iter().map(AsFd::as_fd)
    }

    /// Moves the calling process into all groups of the run (S1: before it executes anything).
    ///
    /// Only `write` is called and nothing is allocated, so the child of a fork may call it. The v2
    /// group is entered first: from the first moment in which any limit holds, `kill` reaches it.
    ///
    /// # Errors
    /// The first write that failed; the process must exit then, it is in some groups only.
    pub fn enter_current(&self) -> io::Result<()> {
        if self.entrances.is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        for entrance in &self.entrances {
            rustix::io::write(entrance, b"0")?;
        }
        Ok(())
    }

    /// Ends every process in the run's groups, at once and for forks in flight (C1).
    ///
    /// Processes that are in a v1 group only (they cannot get there by what the run may do) are
    /// ended one by one. Return does not mean that they are gone: see [`RunGroup::wait_empty`].
    ///
    /// # Errors
    /// A group that could not be killed.
    pub fn kill(&self) -> Result<()> {
        for member in &self.members {
            if member.v2 {
                match member.dir.write("cgroup.kill", "1") {
                    Err(e) if !is_gone_io(&e) => {
                        return Err(Error::io("kill", member.dir.file_path("cgroup.kill"), e));
                    }
                    _ => {}
                }
            } else {
                remove::kill_strays(&member.dir)?;
            }
        }
        Ok(())
    }

    /// Keeps every process of the run still for as long as the guard lives: what one of them is in
    /// the middle of is done, and nothing else is begun. `None` when they do not stand still within
    /// `timeout`, for example because the disk does not answer one; they go on then.
    ///
    /// # Errors
    /// When there is no v2 group, or it cannot be written or watched; they go on then too.
    pub fn freeze(&self, timeout: Duration) -> Result<Option<Frozen>> {
        match self.members.iter().find(|member| member.v2) {
            Some(member) => freeze::freeze(&member.dir, timeout),
            None => Err(Error::NoCgroup2 { root: (&*self.name).into() }),
        }
    }

    /// Whether any live process is in any of the groups. Zombies do not count.
    ///
    /// # Errors
    /// Whatever cannot be read; never "no" instead.
    pub fn populated(&self) -> Result<bool> {
        for member in &self.members {
            let inside = if member.v2 {
                is_populated(&member.dir)?
            } else {
                !remove::procs_of_tree(&member.dir)?.is_empty()
            };
            if inside {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until no process is inside, at most this long.
    ///
    /// # Errors
    /// Whatever cannot be read or polled.
    pub fn wait_empty(&self, timeout: Duration) -> Result<Wait> {
        events::wait_empty(self, timeout)
    }

    /// Process ids in the groups, for messages; by them nothing may be signalled.
    ///
    /// # Errors
    /// Whatever cannot be read.
    pub fn procs(&self) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        for member in &self.members {
            pids.extend(remove::procs_of_tree(&member.dir)?);
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Removes all groups, sub-groups first, the v2 one last. Done already is done; so it may be
    /// repeated after any crash. It kills nothing: on [`Error::Busy`] call [`RunGroup::kill`] again.
    ///
    /// # Errors
    /// [`Error::Busy`] after about one second of tries, [`Error::Replaced`] when another directory
    /// has the place of one of them.
    pub fn remove(&self) -> Result<()> {
        remove::remove(&self.members)
    }

    /// Watches for the first process that the kernel ends for want of memory.
    ///
    /// # Errors
    /// When the watch cannot be registered.
    pub fn watch_oom(&self) -> Result<OomWatch> {
        let memory = self.with(Controller::Memory)?;
        OomWatch::new(&memory.dir, memory.v2)
    }

    /// How many processes the kernel ended for want of memory.
    ///
    /// # Errors
    /// When it cannot be read: unknown is not zero.
    pub fn oom_kills(&self) -> Result<u64> {
        let memory = self.with(Controller::Memory)?;
        events::oom_kills(&memory.dir, memory.v2)
    }

    /// How often a fork was refused because of the pids limit.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn fork_refusals(&self) -> Result<u64> {
        let dir = &self.with(Controller::Pids)?.dir;
        let text = dir.read("pids.events")?;
        keyed(&text, "max").ok_or_else(|| Error::unparsable(dir.file_path("pids.events"), &text))
    }
}

/// `populated` of a v2 group; one that is gone is empty.
pub(crate) fn is_populated(dir: &Dir) -> Result<bool> {
    let Some(text) = dir.read_if_there("cgroup.events")? else { return Ok(false) };
    match keyed(&text, "populated") {
        Some(value) => Ok(value != 0),
        None => Err(Error::unparsable(dir.file_path("cgroup.events"), &text)),
    }
}
