//! What is there, looked at from outside: processes, control groups, mounts, files. Nothing here
//! asks a supervisor or believes its records.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use atenea_core::Digest;
use atenea_reaper::Layout;

/// Pause between two looks at what is about to go.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Looks before what is there counts as left: ten seconds.
const LOOKS_MAX: u32 = 500;

/// Looks until nothing is found any more; gives what stays.
pub(super) async fn until_gone(mut look: impl FnMut() -> Vec<String>) -> Vec<String> {
    for _ in 1..LOOKS_MAX {
        let found = look();
        if found.is_empty() {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
    look()
}

/// Who is looked for among the processes of the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Words in a command line or environment.
    pub(super) marks: Vec<String>,
    /// Sessions of supervisors.
    pub(super) sessions: Vec<u32>,
    /// Launcher helpers, which have sessions of their own.
    pub(super) helpers: Vec<u32>,
}

/// Processes that belong to one of the sessions, are one of the helpers, have one of the marks in command line or
/// environment, or stand in `dir`. This process and what is dead and not reaped do not count.
pub(super) fn processes(dir: &Path, wanted: &Wanted) -> Vec<String> {
    let own = std::process::id();
    let pids = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse::<u32>().ok());
    let mut found = Vec::new();
    for pid in pids.filter(|pid| *pid != own) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let read = |file: &str| std::fs::read(process.join(file)).unwrap_or_default();
        let (line, environment) = (read("cmdline"), read("environ"));
        let has = |mark: &[u8]| contains(&line, mark) || contains(&environment, mark);
        let Some(session) = session_of(&process) else { continue };
        let stands = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        // A number that somebody else has got meanwhile is no helper's.
        let helps = wanted.helpers.contains(&pid) && contains(&line, b"__launcher");
        let marked = wanted.marks.iter().any(|mark| has(mark.as_bytes()));
        let ours = helps || marked || stands || wanted.sessions.contains(&session);
        if ours || has(dir.as_os_str().as_bytes()) {
            let shown = String::from_utf8_lossy(&line).replace('\0', " ");
            let shown: String = shown.trim().chars().take(80).collect();
            found.push(format!("process {pid} ({shown})"));
        }
    }
    found
}

/// The session of a process; `None` when it is gone, or dead and not reaped.
fn session_of(process: &Path) -> Option<u32> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name before may hold anything; state, parent, group and session follow.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(session)
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len().max(1)).any(|window| window == mark)
}

/// Control groups of an instance: its own directories in every hierarchy, and those of runs below.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    pub(super) instances: Vec<PathBuf>,
    pub(super) runs: Vec<PathBuf>,
}

/// Finds them by name below our own group in each hierarchy.
///
/// # Errors
/// When the host's hierarchies cannot be read.
pub(super) fn groups(instance: &str) -> Result<Groups, String> {
    let layout = Layout::detect().map_err(|e| e.to_string())?;
    let wanted = format!("atenea-{instance}");
    let mut found = Groups::default();
    for own in layout.own_groups() {
        let mut open = vec![own];
        while let Some(dir) = open.pop() {
            for name in directories(&dir) {
                let path = dir.join(&name);
                if *name == *wanted {
                    found.runs.extend(directories(&path).into_iter().map(|name| path.join(name)));
                    found.instances.push(path);
                } else {
                    open.push(path);
                }
            }
        }
    }
    Ok(found)
}

/// Mounts in our namespace that lie in `dir` or come from it.
pub(super) fn mounts(dir: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read("/proc/self/mountinfo").map_err(|e| format!("mountinfo: {e}"))?;
    let lines = text.split(|byte| *byte == b'\n');
    let of_dir = lines.filter(|line| contains(line, dir.as_os_str().as_bytes()));
    Ok(of_dir.map(|line| format!("mount {}", String::from_utf8_lossy(line))).collect())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn directories(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Every file below a directory with owner, mode and content.
pub(super) type Picture = BTreeMap<PathBuf, (u32, u32, Digest)>;

/// Takes a picture. Paths are relative.
///
/// # Errors
/// What cannot be read.
pub(super) fn picture(dir: &Path) -> Result<Picture, String> {
    let mut all = Picture::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        let failed = |e: std::io::Error| format!("{}: {e}", next.display());
        for entry in std::fs::read_dir(&next).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let meta = path.symlink_metadata().map_err(failed)?;
            let content = match meta.file_type() {
                kind if kind.is_file() => std::fs::read(&path).map_err(failed)?,
                kind if kind.is_symlink() => {
                    std::fs::read_link(&path).map_err(failed)?.into_os_string().into_encoded_bytes()
                }
                _ => Vec::new(),
            };
            if meta.is_dir() {
                open.push(path.clone());
            }
            let relative = path.strip_prefix(dir).unwrap_or(&path).to_owned();
            all.insert(relative, (meta.uid(), meta.mode(), Digest::of(&content)));
        }
    }
    Ok(all)
}

/// What differs between two pictures, except below the places an export may write to.
pub(super) fn differences(before: &Picture, after: &Picture, exports: bool) -> Vec<String> {
    let may_change = |path: &Path| {
        let parts = [".git/objects", ".git/refs/atenea", ".git/refs"];
        exports && parts.iter().any(|part| path == Path::new(part) || below(path, part))
    };
    let mut found = Vec::new();
    for (path, was) in before {
        // Nothing of the base is ever removed or changed, also where an export adds.
        match after.get(path) {
            None => found.push(format!("{} is gone", path.display())),
            Some(is) if is != was => found.push(format!("{} has changed", path.display())),
            Some(_) => {}
        }
    }
    let new = after.keys().filter(|path| !before.contains_key(*path) && !may_change(path));
    found.extend(new.map(|path| format!("{} is new", path.display())));
    let locks = after.keys().filter(|path| path.extension() == Some(OsStr::new("lock")));
    found.extend(locks.map(|path| format!("{} is a lock", path.display())));
    found
}

fn below(path: &Path, part: &str) -> bool {
    // Other refs than ours are somebody's.
    part != ".git/refs" && path.starts_with(part)
}

/// What lies in a state directory and does not belong there when no supervisor lives and no run.
pub(super) fn strange_files(state: &Path) -> Vec<String> {
    const TOP: [&str; 6] = ["journal", "instance", "supervisor.log", "cache", "staging", "runs"];
    const RUN: [&str; 7] =
        ["stdout", "stderr", "receipt.json", "prepared.json", "ws", "base.git", "changes.patch"];
    const JOURNAL: [&str; 5] = ["journal.redb", "anchor", "lock", "reserve", "snapshots"];
    let strange = |dir: &Path, known: &[&str]| -> Vec<String> {
        let others = names(dir).into_iter().filter(|name| !known.contains(&name.as_str()));
        others.map(|name| format!("{} is left", dir.join(name).display())).collect()
    };
    let mut found = strange(state, &TOP);
    found.extend(strange(&state.join("journal"), &JOURNAL));
    found.extend(strange(&state.join("staging"), &[]));
    found.extend(strange(&state.join("cache/staging"), &[]));
    let runs = state.join("runs");
    for run in names(&runs) {
        found.extend(strange(&runs.join(&run), &RUN));
        found.extend(strange(&runs.join(&run).join("ws"), &["tree"]));
    }
    found
}

/// Whether something is a socket.
pub(super) fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_may_add_objects_and_refs_of_ours_and_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("file", "one");
        write(".git/refs/heads/main", "a");
        write(".git/objects/aa/1", "object");
        let before = picture(dir.path()).unwrap();
        write(".git/objects/aa/2", "new");
        write(".git/refs/atenea/r_1", "b");
        let after = picture(dir.path()).unwrap();
        assert_eq!(differences(&before, &after, true), Vec::<String>::new());
        assert_eq!(differences(&before, &after, false).len(), 3, "a directory and two files");
        write(".git/refs/heads/other", "b");
        write(".git/objects/aa/1", "other");
        write(".git/refs/atenea/r_1.lock", "");
        std::fs::remove_file(dir.path().join("file")).unwrap();
        let found = differences(&before, &picture(dir.path()).unwrap(), true);
        let wanted = [
            ".git/objects/aa/1 has changed",
            "file is gone",
            ".git/refs/heads/other is new",
            ".git/refs/atenea/r_1.lock is a lock",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_does_not_belong_into_a_state_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(dir.path().join(path)).unwrap();
        for place in ["journal", "cache/staging", "staging", "runs/r_1/ws/tree"] {
            make(place);
        }
        assert_eq!(strange_files(dir.path()), Vec::<String>::new());
        for place in ["other", "cache/staging/s-1", "runs/r_1/manifest.json", "runs/r_1/ws/x"] {
            make(place);
        }
        assert_eq!(strange_files(dir.path()).len(), 4);
    }

    #[test]
    fn a_process_is_found_by_where_it_stands_and_by_its_marks() {
        let dir = tempfile::tempdir().unwrap();
        let there = |marks: &[String]| {
            let wanted = Wanted { marks: marks.to_vec(), ..Wanted::default() };
            processes(dir.path(), &wanted).len()
        };
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("60").env("DRILL", "mark-of-a-test").spawn().unwrap();
        // A process in the middle of its exec shows no environment yet.
        let marked = (0..1_000).any(|_| there(&["mark-of-a-test".to_owned()]) == 1);
        let found = (there(&[]), marked);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut child = command.current_dir(dir.path()).spawn().unwrap();
        let stands = there(&[]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((found, stands), ((0, true), 1));
    }
}
