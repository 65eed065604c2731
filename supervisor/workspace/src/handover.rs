//! Giving a workspace to the uid of its run, and taking it back.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use atenea_core::{Code, Refusal};
use rustix::fs::{AtFlags, Gid, Uid};
use serde::{Deserialize, Serialize};

use crate::beneath::{Kind, Step, open_dir, walk};
use crate::fail::at;
use crate::path::{RawPath, shown, split};

/// What was met while a tree changed hands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// Files, links and directories that have a new owner.
    pub given: u64,
    /// Files that were setuid or setgid, at most a hundred: the kernel clears the bits with the
    /// owner, so the seal must be told ([`crate::SealOptions::setuid`]).
    pub setuid: Vec<RawPath>,
    /// Names that belonged to somebody else and were left alone.
    pub foreign: u64,
}

const NAMED_MAX: usize = 100;

/// Gives everything in `dir`, and `dir` itself, to an owner; only root can. With `from`, only what
/// belongs to that uid changes hands: after a run nothing else in its workspace is the run's.
/// Links are changed themselves, never what they name, and no other filesystem is entered.
///
/// # Errors
/// `fs.not_yours` without the right to do so, `fs.io`.
pub fn give_to(dir: &Path, uid: u32, gid: u32, from: Option<u32>) -> Result<HandOver, Refusal> {
    if uid == u32::MAX || gid == u32::MAX {
        return Err(Refusal::new(Code::FsIo, "the uid or gid stands for nobody"));
    }
    let root = open_dir(dir)?;
    let mut done = HandOver::default();
    let give = |at_dir: BorrowedFd<'_>, path: &[u8], flags| {
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(at_dir, path, owner.0, owner.1, flags).map_err(at("giving away", path))
    };
    // A directory that was given away is still entered: its descriptor came before.
    walk(root.as_fd(), b"", &mut |met| {
        if let Some(error) = met.closed {
            let cause = format!("entering {}: {error}", shown(met.path));
            return Err(Refusal::new(crate::fail::code_of(error), cause));
        }
        if from.is_some_and(|from| met.stat.st_uid != from) {
            done.foreign += 1;
            return Ok(Step::Enter);
        }
        if met.kind == Kind::File && met.stat.st_mode & 0o6000 != 0 && done.setuid.len() < NAMED_MAX
        {
            done.setuid.push(RawPath(met.path.to_vec()));
        }
        give_beneath(root.as_fd(), met.path, &give)?;
        done.given += 1;
        Ok(Step::Enter)
    })?;
    let own = rustix::fs::fstat(&root).map_err(at("reading", b"."))?;
    if from.is_none_or(|from| own.st_uid == from) {
        give(root.as_fd(), b"", AtFlags::EMPTY_PATH)?;
        done.given += 1;
    }
    Ok(done)
}

type Give<'a> = &'a dyn Fn(BorrowedFd<'_>, &[u8], AtFlags) -> Result<(), Refusal>;

/// Changes one name through the descriptor of its directory, so that no component is followed.
fn give_beneath(root: BorrowedFd<'_>, path: &[u8], give: Give<'_>) -> Result<(), Refusal> {
    let (parent, name) = split(path);
    if parent.is_empty() {
        return give(root, name, AtFlags::SYMLINK_NOFOLLOW);
    }
    let fd = crate::beneath::open_dir_at(root, parent).map_err(at("opening", parent))?;
    give(fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}
