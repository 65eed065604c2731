//! Bytes that the processes of a run hold without a name: files of the workspace's file system that
//! were deleted while somebody has them open or mapped. No walk of the workspace meets them.
//!
//! What this does not see is a descriptor on its way through a socket, and, for a supervisor that is
//! not root, a file that is only mapped or held by a process that made itself undumpable.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atenea_core::RunId;
use atenea_launcher::protocol::GroupIdentity;
use atenea_reaper::{GroupState, Layout, RunGroup};
use caps::{CapSet, Capability};

use super::disk_walk::Torn;

/// Descriptors and mappings that are looked at; more are more than any work needs.
const ENTRIES_MAX: u64 = 4_000_000;

/// What a look at another user's processes needs: their descriptors, and files that they map. Held by
/// a supervisor of root, in force for the time of a look only.
pub const CAPABILITIES: [Capability; 2] =
    [Capability::CAP_SYS_PTRACE, Capability::CAP_CHECKPOINT_RESTORE];

/// Finds the group of a run again, as the journal knows it; `None` when it is gone.
///
/// # Errors
/// [`Torn::Group`] when nobody can tell.
pub(super) fn group(run: &RunId, record: &str) -> Result<Option<RunGroup>, Torn> {
    let found = serde_json::from_str::<GroupIdentity>(record)
        .map_err(|error| error.to_string())
        .and_then(|identity| {
            let layout = Layout::detect().map_err(|error| error.to_string())?;
            RunGroup::reopen(&layout, &identity).map_err(|error| error.to_string())
        });
    match found {
        Ok(GroupState::Same(group)) => Ok(Some(group)),
        Ok(_) => Ok(None),
        Err(error) => {
            tracing::warn!("what {run} holds open cannot be looked at: {error}");
            Err(Torn::Group)
        }
    }
}

/// Bytes that the processes of a group hold without a name on the file system of `dir`. Processes
/// that end meanwhile hold nothing.
///
/// # Errors
/// [`Torn::Group`] or [`Torn::TooManyOpen`].
pub(super) fn by_group(group: &RunGroup, dir: &Path) -> Result<u64, Torn> {
    let pids = group.procs().map_err(|_| Torn::Group)?;
    let _in_force = InForce::raise();
    by_processes(&pids, dir)
}

fn by_processes(pids: &[u32], dir: &Path) -> Result<u64, Torn> {
    let Ok(place) = std::fs::metadata(dir) else { return Ok(0) };
    // What belongs to somebody else is a file of the host that was replaced.
    let mut held = Held { dev: place.dev(), uid: place.uid(), files: HashMap::new(), seen: 0 };
    for pid in pids {
        held.process(Path::new(&format!("/proc/{pid}")))?;
    }
    Ok(held.files.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))
}

struct Held {
    dev: u64,
    uid: u32,
    /// By inode: a file counts once, whoever holds it.
    files: HashMap<u64, u64>,
    seen: u64,
}

impl Held {
    fn process(&mut self, process: &Path) -> Result<(), Torn> {
        let mut mapped = false;
        // Each thread may have descriptors of its own, and the first one may have ended.
        for thread in names(&process.join("task")) {
            let thread = Path::new("/proc").join(thread);
            for fd in names(&thread.join("fd")) {
                self.count(&thread.join("fd").join(fd))?;
            }
            // Threads share what is mapped.
            mapped = mapped || self.mappings(&thread)?;
        }
        Ok(())
    }

    /// Whether there were any.
    fn mappings(&mut self, thread: &Path) -> Result<bool, Torn> {
        let Ok(maps) = std::fs::read(thread.join("maps")) else { return Ok(false) };
        for line in maps.split(|byte| *byte == b'\n') {
            self.one_more()?;
            if line.ends_with(b"(deleted)")
                && let Some(range) = line.split(|byte| *byte == b' ').next()
                && let Ok(range) = std::str::from_utf8(range)
            {
                self.count(&thread.join("map_files").join(plain(range)))?;
            }
        }
        Ok(!maps.is_empty())
    }

    fn count(&mut self, link: &Path) -> Result<(), Torn> {
        self.one_more()?;
        // The link leads to the file itself, whatever its path was.
        if let Ok(file) = std::fs::metadata(link)
            && file.is_file()
            && file.nlink() == 0
            && (file.dev(), file.uid()) == (self.dev, self.uid)
        {
            self.files.insert(file.ino(), file.blocks().saturating_mul(512));
        }
        Ok(())
    }

    fn one_more(&mut self) -> Result<(), Torn> {
        self.seen += 1;
        if self.seen > ENTRIES_MAX { Err(Torn::TooManyOpen) } else { Ok(()) }
    }
}

/// A range as `map_files` names it: without the zeros in front that `maps` prints.
fn plain(range: &str) -> String {
    let short = |number: &str| match number.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => digits.to_owned(),
    };
    range.split('-').map(short).collect::<Vec<_>>().join("-")
}

fn names(dir: &Path) -> impl Iterator<Item = std::ffi::OsString> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// Capabilities of this thread for as long as it lives.
struct InForce;

impl InForce {
    /// Takes those that there are: for another user than root none are needed or possible.
    fn raise() -> Self {
        for capability in CAPABILITIES {
            if caps::has_cap(None, CapSet::Permitted, capability).unwrap_or(false)
                && let Err(error) = caps::raise(None, CapSet::Effective, capability)
            {
                tracing::warn!("{capability}: {error}");
            }
        }
        InForce
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        for capability in CAPABILITIES {
            let _ = caps::drop(None, CapSet::Effective, capability);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn write(dir: &Path, name: &str) -> File {
        let mut file = File::create_new(dir.join(name)).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file
    }

    #[test]
    fn a_deleted_file_counts_once_while_it_is_open_and_no_other_does() {
        // A disk of its own: other tests of this process hold files too.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let held = || by_processes(&[std::process::id()], dir.path()).unwrap();
        let before = held();
        let named = write(dir.path(), "named");
        let open = write(dir.path(), "open");
        let again = open.try_clone().unwrap();
        assert_eq!(held(), before);
        std::fs::remove_file(dir.path().join("open")).unwrap();
        assert_eq!(held(), before + (1 << 20));
        drop(open);
        assert_eq!(held(), before + (1 << 20), "one of two descriptors is left");
        drop((again, named));
        assert_eq!(held(), before);
    }

    #[test]
    fn a_range_loses_its_zeros_in_front() {
        assert_eq!(plain("00400000-0040a000"), "400000-40a000");
        assert_eq!(plain("00000000-7ff0"), "0-7ff0");
    }
}
