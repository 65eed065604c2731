//! Copies one file and computes its blob id on the way.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use atenea_core::{Code, Refusal};
use rustix::fs::{Mode as Permissions, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::beneath::{Kind, Tree, ctime, kind_of, mtime, size_of};
use crate::fail::{at, at_path};
use crate::holes;
use crate::ids::{BlobHasher, id_of};
use crate::path::{shown, split};
use crate::progress::Meter;
use crate::room::{Filling, fits};
use crate::tree::{Leaf, Mode};

const BUFFER: usize = 256 << 10;

/// Whether two looks at a file saw the same state.
fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino, a.st_size) == (b.st_dev, b.st_ino, b.st_size)
        && mtime(a) == mtime(b)
        && ctime(a) == ctime(b)
}

fn changed(path: &[u8]) -> Refusal {
    Refusal::new(Code::FsChanged, format!("{} changed while it was read", shown(path)))
}

/// Reads files of a tree, and hashes or copies them.
pub(crate) struct Copier<'a> {
    pub(crate) from: Tree,
    pub(crate) meter: Meter<'a>,
    buffer: Vec<u8>,
    /// Off after the first filesystem that cannot share blocks.
    reflink: bool,
    filling: Filling,
}

/// The permissions a copy gets.
pub(crate) type Permit = fn(Mode) -> u32;

/// What was read.
pub(crate) struct Read {
    pub(crate) leaf: Leaf,
    pub(crate) stat: Stat,
}

/// Where copies go: a directory of ours that nobody else writes.
pub(crate) struct Target {
    root: OwnedFd,
    made: std::collections::HashSet<Vec<u8>>,
    /// Keep the time stamps of files.
    pub(crate) keep_times: bool,
}

impl Target {
    pub(crate) fn new(root: OwnedFd, keep_times: bool) -> Self {
        Target { root, made: std::collections::HashSet::new(), keep_times }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(crate) fn dirs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.made.iter()
    }

    /// Makes a directory and its parents.
    pub(crate) fn make_dir(&mut self, dir: &[u8]) -> Result<(), Refusal> {
        if dir.is_empty() || self.made.contains(dir) {
            return Ok(());
        }
        self.make_dir(split(dir).0)?;
        match rustix::fs::mkdirat(&self.root, dir, Permissions::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(at("making the directory", dir)(error)),
        }
        self.made.insert(dir.to_vec());
        Ok(())
    }

    fn create(&mut self, path: &[u8]) -> Result<OwnedFd, Refusal> {
        self.make_dir(split(path).0)?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, path, flags, Permissions::from_raw_mode(0o600))
            .map_err(at("making", path))
    }
}

impl<'a> Copier<'a> {
    pub(crate) fn new(from: Tree, meter: Meter<'a>) -> Self {
        Copier { from, meter, buffer: vec![0; BUFFER], reflink: true, filling: Filling::default() }
    }

    /// Hashes a file, and copies it with these permissions when there is a target. `None` when it
    /// is gone or is no file any more.
    pub(crate) fn read(
        &mut self,
        path: &[u8],
        target: Option<(&mut Target, Permit)>,
    ) -> Result<Option<Read>, Refusal> {
        let Some(stat) = self.from.stat(path)? else { return Ok(None) };
        let read = match kind_of(&stat) {
            Kind::Link => self.link(path, stat, target.map(|(target, _)| target))?,
            Kind::File => match target {
                None => self.file(path, None)?,
                Some((target, permissions)) => self.copy(path, target, permissions)?,
            },
            Kind::Dir | Kind::Special => return Ok(None),
        };
        self.meter.file();
        Ok(Some(read))
    }

    /// The length a file claims; 0 when it is gone. A sparse one claims what no disk holds.
    pub(crate) fn claimed(&mut self, path: &[u8]) -> Result<u64, Refusal> {
        Ok(self.from.stat(path)?.map_or(0, |stat| size_of(&stat)))
    }

    fn link(
        &mut self,
        path: &[u8],
        stat: Stat,
        target: Option<&mut Target>,
    ) -> Result<Read, Refusal> {
        let text = self.from.link(path)?;
        if let Some(target) = target {
            target.make_dir(split(path).0)?;
            rustix::fs::symlinkat(text.as_slice(), &target.root, path)
                .map_err(at("making the link", path))?;
            if target.keep_times {
                let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(&target.root, path, &times(&stat), flags)
                    .map_err(at("dating", path))?;
            }
        }
        let id = id_of(gix_object::Kind::Blob, &text)?;
        Ok(Read { leaf: Leaf { mode: Mode::Link, id }, stat })
    }

    fn copy(
        &mut self,
        path: &[u8],
        target: &mut Target,
        permissions: Permit,
    ) -> Result<Read, Refusal> {
        let out = target.create(path)?;
        let read = self.file(path, Some(&out))?;
        let permissions = Permissions::from_raw_mode(permissions(read.leaf.mode));
        rustix::fs::fchmod(&out, permissions).map_err(at("setting the mode of", path))?;
        if target.keep_times {
            rustix::fs::futimens(&out, &times(&read.stat)).map_err(at("dating", path))?;
        }
        Ok(read)
    }

    /// One retry when the file changed under our hands.
    fn file(&mut self, path: &[u8], out: Option<&OwnedFd>) -> Result<Read, Refusal> {
        if let Some(read) = self.attempt(path, out)? {
            return Ok(read);
        }
        if let Some(out) = out {
            rustix::fs::ftruncate(out, 0).map_err(at("emptying", path))?;
            rustix::fs::seek(out, rustix::fs::SeekFrom::Start(0)).map_err(at("emptying", path))?;
        }
        self.attempt(path, out)?.ok_or_else(|| changed(path))
    }

    fn attempt(&mut self, path: &[u8], out: Option<&OwnedFd>) -> Result<Option<Read>, Refusal> {
        let file = match self.from.open_file(path) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(at("opening", path)(error)),
        };
        let before = rustix::fs::fstat(&file).map_err(at("reading", path))?;
        if kind_of(&before) != Kind::File {
            return Ok(None);
        }
        let size = size_of(&before);
        let shared = match out {
            Some(out) if self.reflink && size > 0 => {
                let cloned = rustix::fs::ioctl_ficlone(out, &file).is_ok();
                self.reflink = cloned;
                cloned
            }
            _ => false,
        };
        // What shares its blocks needs no room.
        let out_unshared = out.filter(|_| !shared);
        if let Some(out) = out_unshared {
            self.filling.begin(out, size)?;
        }
        // A shared copy is hashed itself: it cannot change any more.
        let source = match out {
            Some(out) if shared => out.as_fd(),
            _ => file.as_fd(),
        };
        let mut hasher = BlobHasher::new(size);
        let mut left = size;
        loop {
            let count = rustix::io::read(source, &mut self.buffer).map_err(at("reading", path))?;
            if count == 0 {
                break;
            }
            let Some(rest) = left.checked_sub(count as u64) else { return Ok(None) };
            let bytes = &self.buffer[..count];
            hasher.update(bytes);
            if let Some(out) = out_unshared {
                let written =
                    holes::write_at(out, size - left, bytes).map_err(at("writing", path))?;
                self.filling.wrote(out, written)?;
            }
            left = rest;
            self.meter.bytes(count);
        }
        if let Some(out) = out_unshared {
            // It may end in a hole.
            rustix::fs::ftruncate(out, size).map_err(at("writing", path))?;
        }
        let after = rustix::fs::fstat(&file).map_err(at("reading", path))?;
        if left != 0 || !same(&before, &after) {
            return Ok(None);
        }
        let leaf = Leaf { mode: Mode::of_file(before.st_mode), id: hasher.finish()? };
        Ok(Some(Read { leaf, stat: before }))
    }
}

fn times(stat: &Stat) -> Timestamps {
    // Below a thousand million by definition.
    let tv_nsec = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let time = Timespec { tv_sec: stat.st_mtime, tv_nsec };
    Timestamps { last_access: time, last_modification: time }
}

/// Copies a file of ours that is never written in place: shares blocks where the filesystem can, and
/// keeps holes. Never a hard link: a run owns its copy and could write through it.
pub(crate) fn copy_private(from: &Path, to: &Path) -> Result<(), Refusal> {
    let source = File::open(from).map_err(at_path("opening", from))?;
    let target = File::options().write(true).create_new(true).open(to);
    let target = target.map_err(at_path("making", to))?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let size = source.metadata().map_err(at_path("reading", from))?.len();
    fits(&target, size)?;
    let mut filling = Filling::default();
    let mut buffer = vec![0; BUFFER];
    let mut done = 0;
    // One byte more than there was tells a file that grew.
    let mut content = source.take(size.saturating_add(1));
    loop {
        let count = content.read(&mut buffer).map_err(at_path("reading", from))?;
        if count == 0 {
            break;
        }
        let bytes = &buffer[..count];
        let written = holes::write_at(&target, done, bytes).map_err(at_path("copying", to))?;
        filling.wrote(&target, written)?;
        done += count as u64;
    }
    if done != size {
        use std::os::unix::ffi::OsStrExt;
        return Err(changed(from.as_os_str().as_bytes()));
    }
    target.set_len(size).map_err(at_path("copying", to))
}
