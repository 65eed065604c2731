//! How many bytes lie below a directory that somebody else changes meanwhile.
//!
//! Everything is opened from the directory above by its one name: no path is ever too long, and no
//! link is followed, also not one that takes a directory's place during the walk. Only the innermost
//! directories are held open; on the way back the others are opened through `..` and must be the
//! ones that were left.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// What a file or directory counts at least, bytes: empty ones fill a disk too.
pub(super) const ENTRY_BYTES_MIN: u64 = 4_096;
/// Directories that wait to be read: wider growth than this is over any limit.
const PENDING_MAX: usize = 4_000_000;
/// The deepest directory that is walked; a path of the kernel has at most two thousand levels.
const DEPTH_MAX: usize = 20_000;
/// Directories that are held open at once.
const OPEN_MAX: usize = 32;

/// Why a directory could not be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Torn {
    /// A directory cannot be read.
    Unreadable,
    /// A directory was moved while its inside was looked at.
    Moving,
    /// There are more levels or directories than any work needs.
    TooDeep,
    /// Its processes have more descriptors and mappings than can be looked at.
    TooManyOpen,
    /// Its control group cannot be read, so nobody knows its processes.
    Group,
    /// Its processes do not stand still when they are told to.
    Restless,
}

impl Torn {
    /// What was found.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Torn::Unreadable => "a directory in it cannot be read",
            Torn::Moving => "directories in it move all the time",
            Torn::TooManyOpen => "its processes hold too many files open",
            Torn::Group => "its control group cannot be read",
            Torn::Restless => "its processes cannot be made to stand still",
            Torn::TooDeep => "it is too deep or has too many directories",
        }
    }

    /// Whether the next look may find something else.
    pub(super) fn may_pass(self) -> bool {
        self != Torn::TooDeep
    }
}

const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// One directory on the way down.
struct Level {
    id: (u64, u64),
    fd: Option<OwnedFd>,
    /// Directories in it that were not looked at yet.
    todo: Vec<CString>,
}

/// Bytes on disk below a directory. What disappears before it is looked at counts nothing.
///
/// # Errors
/// Why the size is not known.
pub(super) fn size_of(dir: &Path) -> Result<u64, Torn> {
    let fd = match rustix::fs::open(dir, OPEN, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(0),
        Err(_) => return Err(Torn::Unreadable),
    };
    let mut walk = Walk { total: 0, pending: 0, levels: Vec::new() };
    walk.enter(fd)?;
    while walk.step()? {}
    Ok(walk.total)
}

struct Walk {
    total: u64,
    pending: usize,
    levels: Vec<Level>,
}

impl Walk {
    /// Counts what a directory holds and makes it the innermost.
    fn enter(&mut self, fd: OwnedFd) -> Result<(), Torn> {
        let stat = rustix::fs::fstat(&fd).map_err(|_| Torn::Unreadable)?;
        if self.levels.len() >= DEPTH_MAX {
            return Err(Torn::TooDeep);
        }
        let (bytes, todo) = list(fd.as_fd())?;
        self.total = self.total.saturating_add(bytes);
        self.pending += todo.len();
        if self.pending > PENDING_MAX {
            return Err(Torn::TooDeep);
        }
        self.levels.push(Level { id: id_of(&stat), fd: Some(fd), todo });
        // The outermost stays open too, for whoever comes back.
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX).filter(|far| *far > 0) {
            self.levels[far].fd = None;
        }
        Ok(())
    }

    /// Enters the next directory or goes back one level; `false` when all was seen.
    fn step(&mut self) -> Result<bool, Torn> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        let Some(name) = level.todo.pop() else { return self.leave() };
        self.pending -= 1;
        let Some(fd) = &level.fd else { return Err(Torn::Moving) };
        match rustix::fs::openat(fd, &name, OPEN, Mode::empty()) {
            Ok(inner) => self.enter(inner)?,
            // It is gone, or something else now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(_) => return Err(Torn::Unreadable),
        }
        Ok(true)
    }

    fn leave(&mut self) -> Result<bool, Torn> {
        let left = self.levels.pop();
        let Some(above) = self.levels.last_mut() else { return Ok(false) };
        if above.fd.is_some() {
            return Ok(true);
        }
        let Some(Level { fd: Some(inner), .. }) = left else { return Err(Torn::Moving) };
        let fd = rustix::fs::openat(&inner, "..", OPEN, Mode::empty());
        let fd = fd.map_err(|error| match error {
            // The directory that was left does not exist any more.
            Errno::NOENT => Torn::Moving,
            _ => Torn::Unreadable,
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(|_| Torn::Unreadable)?;
        if id_of(&stat) != above.id {
            return Err(Torn::Moving);
        }
        above.fd = Some(fd);
        Ok(true)
    }
}

fn id_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Bytes of what lies directly in a directory, and the directories among it.
fn list(dir: BorrowedFd<'_>) -> Result<(u64, Vec<CString>), Torn> {
    let mut bytes: u64 = 0;
    let mut dirs = Vec::new();
    let mut seen = HashSet::new();
    for entry in Dir::read_from(dir).map_err(|_| Torn::Unreadable)? {
        let entry = entry.map_err(|_| Torn::Unreadable)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(_) => return Err(Torn::Unreadable),
        };
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(u64::MAX);
        bytes = bytes.saturating_add(blocks.saturating_mul(512).max(ENTRY_BYTES_MIN));
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            if dirs.len() >= PENDING_MAX {
                return Err(Torn::TooDeep);
            }
            // A directory that is renamed while it is listed may be named twice.
            if seen.insert(stat.st_ino) {
                dirs.push(name.to_owned());
            }
        }
    }
    Ok((bytes, dirs))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Memory: a disk spends milliseconds on each directory.
    fn place() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    /// A chain of directories; the innermost.
    fn chain(top: &Path, name: &str, levels: usize) -> OwnedFd {
        let mut here = rustix::fs::open(top, OPEN, Mode::empty()).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
            here = rustix::fs::openat(&here, name, OPEN, Mode::empty()).unwrap();
        }
        here
    }

    fn write(dir: &OwnedFd, name: &str, bytes: usize) {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(file), &vec![1; bytes]).unwrap();
    }

    /// The standard library's own removal needs a descriptor for each level and a short path.
    fn flatten(top: &Path, name: &str) {
        for n in 0.. {
            let deep: std::path::PathBuf = std::iter::repeat_n(name, 14).collect();
            let to = top.join(format!("flat-{n}"));
            if std::fs::rename(top.join(deep), &to).is_err() {
                break;
            }
            std::fs::remove_dir_all(top.join(name)).unwrap();
            std::fs::rename(&to, top.join(name)).unwrap();
        }
    }

    #[test]
    fn empty_files_count_and_links_are_not_followed() {
        let dir = place();
        symlink("/", dir.path().join("root")).unwrap();
        let before = size_of(dir.path()).unwrap();
        assert_eq!(before, ENTRY_BYTES_MIN);
        for n in 0..100 {
            std::fs::File::create(dir.path().join(n.to_string())).unwrap();
        }
        assert_eq!(size_of(dir.path()), Ok(before + 100 * ENTRY_BYTES_MIN));
    }

    #[test]
    fn bytes_below_the_longest_path_are_counted_too() {
        let dir = place();
        let name = "n".repeat(250);
        // Twenty of these are more than the 4,096 bytes that a path can have.
        let inner = chain(dir.path(), &name, 40);
        let before = size_of(dir.path()).unwrap();
        write(&inner, "hidden", 1 << 20);
        assert!(size_of(dir.path()).unwrap() >= before + (1 << 20));
        flatten(dir.path(), &name);
    }

    #[test]
    fn many_levels_are_walked_down_and_up_again_with_few_descriptors() {
        let dir = place();
        let mut here = rustix::fs::open(dir.path(), OPEN, Mode::empty()).unwrap();
        // Beside each directory another one that is looked at on the way back.
        for _ in 0..200 {
            for name in ["d", "e"] {
                rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
                let beside = rustix::fs::openat(&here, name, OPEN, Mode::empty()).unwrap();
                write(&beside, "file", 1);
            }
            here = rustix::fs::openat(&here, "d", OPEN, Mode::empty()).unwrap();
        }
        assert_eq!(size_of(dir.path()), Ok(200 * 4 * ENTRY_BYTES_MIN));
        let mut walk = Walk { total: 0, pending: 0, levels: Vec::new() };
        walk.enter(rustix::fs::open(dir.path(), OPEN, Mode::empty()).unwrap()).unwrap();
        let mut most = 0;
        while walk.step().unwrap() {
            let open = walk.levels.iter().filter(|level| level.fd.is_some()).count();
            most = most.max(open);
        }
        assert!(most <= OPEN_MAX + 1, "{most} were open at once");
    }

    #[test]
    fn more_levels_than_any_work_needs_are_over_the_limit() {
        let dir = place();
        chain(dir.path(), "d", DEPTH_MAX);
        assert_eq!(size_of(dir.path()), Err(Torn::TooDeep));
        assert!(!Torn::TooDeep.may_pass());
        flatten(dir.path(), "d");
    }

    #[test]
    fn a_directory_that_becomes_a_link_during_the_walk_is_not_followed() {
        let dir = place();
        let outside = place();
        std::fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        std::fs::create_dir(dir.path().join("door")).unwrap();
        let mut walk = Walk { total: 0, pending: 0, levels: Vec::new() };
        walk.enter(rustix::fs::open(dir.path(), OPEN, Mode::empty()).unwrap()).unwrap();
        std::fs::remove_dir(dir.path().join("door")).unwrap();
        symlink(outside.path(), dir.path().join("door")).unwrap();
        while walk.step().unwrap() {}
        assert_eq!(walk.total, ENTRY_BYTES_MIN);
        // Control: as a directory its inside counts.
        std::fs::remove_file(dir.path().join("door")).unwrap();
        std::fs::rename(outside.path(), dir.path().join("door")).unwrap();
        assert!(size_of(dir.path()).unwrap() > 1 << 20);
    }

    #[test]
    fn a_directory_that_moves_during_the_walk_is_never_counted_as_if_nothing_were_there() {
        let dir = place();
        std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
        drop(chain(dir.path(), "d", OPEN_MAX * 2));
        let mut walk = Walk { total: 0, pending: 0, levels: Vec::new() };
        walk.enter(rustix::fs::open(dir.path().join("d"), OPEN, Mode::empty()).unwrap()).unwrap();
        while walk.levels.len() < OPEN_MAX * 2 {
            assert!(walk.step().unwrap());
        }
        // The second one moves: the way back leads somewhere else.
        std::fs::rename(dir.path().join("d/d/d"), dir.path().join("elsewhere/d")).unwrap();
        let end = loop {
            match walk.step() {
                Ok(true) => {}
                other => break other,
            }
        };
        assert_eq!(end, Err(Torn::Moving));
    }

    #[test]
    fn what_moves_behind_the_walk_is_missed_unless_nobody_moves_it() {
        let dir = place();
        for name in ["a", "b"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        // Two directories are read one after the other; what is moved from the second to the first
        // in between is in neither when it is read. This is why some looks find the run frozen.
        let mut walk = Walk { total: 0, pending: 0, levels: Vec::new() };
        walk.enter(rustix::fs::open(dir.path(), OPEN, Mode::empty()).unwrap()).unwrap();
        let first = walk.levels[0].todo[1].to_str().unwrap().to_owned();
        let second = walk.levels[0].todo[0].to_str().unwrap().to_owned();
        let (hidden, behind) = (dir.path().join(&second).join("big"), dir.path().join(&first));
        std::fs::create_dir(&hidden).unwrap();
        std::fs::write(hidden.join("data"), vec![1; 1 << 20]).unwrap();
        assert!(walk.step().unwrap(), "the first one is read");
        std::fs::rename(&hidden, behind.join("big")).unwrap();
        while walk.step().unwrap() {}
        assert_eq!(walk.total, 2 * ENTRY_BYTES_MIN);
        assert!(size_of(dir.path()).unwrap() > 1 << 20, "control: nobody moves");
    }

    #[test]
    fn a_directory_that_nobody_may_read_is_not_an_empty_one() {
        use std::os::unix::fs::PermissionsExt;
        let dir = place();
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        let seen = size_of(dir.path());
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        // Root reads everything.
        let root = rustix::process::geteuid().is_root();
        assert_eq!(seen, if root { Ok(ENTRY_BYTES_MIN) } else { Err(Torn::Unreadable) });
    }
}
