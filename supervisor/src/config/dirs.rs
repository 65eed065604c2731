//! Directories that must be ours: made, checked through an open descriptor, tightened.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atenea_core::{Code, Refusal};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::places::Surroundings;

/// Mode of a user's directories.
const PRIVATE: u32 = 0o700;
/// Mode of root's state directory: searchable, because each run's uid reaches its own directory
/// below it, and unlistable.
const SEARCHABLE: u32 = 0o711;
/// Mode of root's socket directory: users of the system's supervisor find its socket there.
const PUBLIC: u32 = 0o755;
/// What every state directory holds that was ever used.
const USED_MARK: &str = "journal";

/// See [`super::ensure_state_dir`].
pub(super) fn ensure_state_dir(path: &Path, around: &Surroundings) -> Result<PathBuf, Refusal> {
    let path = plain(path)?;
    let mode = if around.is_root() { SEARCHABLE } else { PRIVATE };
    let fd = make(&path, around)?;
    let found = owned_by(&path, &fd, &[around.uid])?;
    if found != mode {
        refuse_foreign(&path, found)?;
        set_mode(&path, &fd, mode)?;
    }
    std::fs::canonicalize(&path).map_err(|error| refuse(&path, error))
}

/// A directory that is not as we make ours may be somebody's home or `/tmp`: it is taken over only
/// when it is empty or was a state directory before, and never when others can write to it.
fn refuse_foreign(path: &Path, mode: u32) -> Result<(), Refusal> {
    if mode & 0o1022 != 0 {
        return Err(refuse(path, format!("its mode is {mode:04o}: others can write to it")));
    }
    let mut entries = std::fs::read_dir(path).map_err(|error| refuse(path, error))?;
    if entries.next().is_some() && !path.join(USED_MARK).exists() {
        return Err(refuse(path, "it holds files of something else")
            .with_help("give a directory of its own with --state-dir"));
    }
    Ok(())
}

/// See [`super::ensure_socket_dir`].
pub(super) fn ensure_socket_dir(socket: &Path, around: &Surroundings) -> Result<(), Refusal> {
    let dir = parent(socket)?;
    if !is_ours_to_shape(dir, around) {
        // A directory that a person named with --socket keeps its mode; the socket has its own.
        return open(dir).map(drop).map_err(|error| refuse_errno(dir, error));
    }
    let mode = if around.is_root() { PUBLIC } else { PRIVATE };
    let fd = make(dir, around)?;
    match owned_by(dir, &fd, &[around.uid])? {
        found if found == mode => Ok(()),
        _ => set_mode(dir, &fd, mode),
    }
}

/// See [`super::check_socket_dir`].
pub(super) fn check_socket_dir(socket: &Path, around: &Surroundings) -> Result<(), Refusal> {
    let dir = parent(socket)?;
    match open(dir) {
        Ok(fd) => owned_by(dir, &fd, &[around.uid, 0]).map(drop),
        // Nobody listens in a directory that is not there.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(refuse_errno(dir, error)),
    }
}

fn parent(socket: &Path) -> Result<&Path, Refusal> {
    match socket.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(dir) => Ok(dir),
        None => Err(refuse(socket, "it is no path of a socket")),
    }
}

/// Whether the directory is one of those this program makes for sockets.
fn is_ours_to_shape(dir: &Path, around: &Surroundings) -> bool {
    let private = around.shared_tmp.join(format!("atenea-{}", around.uid));
    let runtime = around.runtime_dir.as_ref().map(|dir| dir.join("atenea"));
    match around.is_root() {
        true => dir == around.system("/run/atenea"),
        false => dir == private || Some(dir) == runtime.as_deref(),
    }
}

/// The path without a final slash, through which `open` would follow a link, and refused when its
/// last component is no name.
fn plain(path: &Path) -> Result<PathBuf, Refusal> {
    let plain: PathBuf = path.components().collect();
    match plain.file_name() {
        Some(_) => Ok(plain),
        None => Err(refuse(path, "its last component is no name")),
    }
}

/// Opens a directory, after making it and its parents when they are not there.
fn make(path: &Path, around: &Surroundings) -> Result<OwnedFd, Refusal> {
    if let Some(parent) = path.parent() {
        let mode = if around.is_root() { PUBLIC } else { PRIVATE };
        let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(parent);
        made.map_err(|error| refuse(parent, error))?;
    }
    match rustix::fs::mkdir(path, Mode::from_raw_mode(PRIVATE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(refuse_errno(path, error)),
    }
    open(path).map_err(|error| refuse_errno(path, error))
}

/// Opens a directory itself, never what a link points at.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// The permissions of an open directory that belongs to one of `owners`.
fn owned_by(path: &Path, fd: &OwnedFd, owners: &[u32]) -> Result<u32, Refusal> {
    let stat = rustix::fs::fstat(fd).map_err(|error| refuse_errno(path, error))?;
    match owners.contains(&stat.st_uid) {
        true => Ok(stat.st_mode & 0o7777),
        false => Err(refuse(path, format!("it belongs to uid {}, not to you", stat.st_uid))),
    }
}

fn set_mode(path: &Path, fd: &OwnedFd, mode: u32) -> Result<(), Refusal> {
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::fchmod(fd, mode).map_err(|error| refuse_errno(path, error))
}

fn refuse_errno(path: &Path, error: Errno) -> Refusal {
    match error {
        Errno::NOTDIR | Errno::LOOP => refuse(path, "it is a symbolic link or no directory"),
        error => refuse(path, error),
    }
}

fn refuse(path: &Path, why: impl Display) -> Refusal {
    Refusal::new(Code::HostStateDir, format!("{}: {why}", path.display()))
}
