//! The exclusive lock and the name of its holder (J4).

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fs4::{FileExt, TryLockError};
use serde::{Deserialize, Serialize};

use crate::error::JournalError;
use crate::fsio;

const FILE: &str = "lock";
/// How often the lock of a dead holder is tried, every [`RETRY`]: a fork ends in a moment, on a busy machine in a second.
const TRIES_MAX: u32 = 2_000;
const RETRY: Duration = Duration::from_millis(1);
/// A lock file is one short line; more is not read.
const MAX_BYTES: u64 = 4096;

/// How far the holder got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It opens the store, or reads it for the first time.
    Opening,
    /// It works; set by [`crate::Journal::set_holder`].
    Running,
    /// It closed the journal.
    Closed,
}

/// Who holds the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id of the holder.
    pub pid: u32,
    /// Generation of the supervisor, learnt after the journal was opened.
    #[serde(default)]
    pub generation: Option<u64>,
    /// When the holder started, in milliseconds of the wall clock; shown, never compared.
    pub started_unix_ms: u64,
    /// What it is, for people.
    #[serde(default)]
    pub program: String,
}

impl Holder {
    /// This process, started at `started_unix_ms`.
    pub fn this_process(program: impl Into<String>, started_unix_ms: u64) -> Self {
        Holder {
            pid: std::process::id(),
            generation: None,
            started_unix_ms,
            program: program.into(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)?;
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        if let Some(generation) = self.generation {
            write!(f, ", generation {generation}")?;
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Content {
    #[serde(flatten)]
    holder: Holder,
    phase: Phase,
}

/// The held lock. Dropping it releases it; the file stays.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    holder: Holder,
    phase: Phase,
}

impl Lock {
    /// Takes the lock of `dir` before anything else is touched, then names `holder` in it.
    /// Also returns what the last holder left.
    ///
    /// A process that the last holder had just forked has a copy of its descriptor until it executes its own program,
    /// and the lock with it (flock(2)): a holder that was killed is waited for, for two seconds at most.
    // J4: the lock is the first effect; a refusal changes nothing and names the holder.
    pub(crate) fn take(
        dir: &Path,
        holder: Holder,
    ) -> Result<(Self, Option<(Holder, Phase)>), JournalError> {
        let path = dir.join(FILE);
        let mut tries = 0;
        let mut file = loop {
            let file = fsio::open_rw(&path, true)?;
            match FileExt::try_lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let holder = read(&file).map(|c| c.holder);
                    if tries < TRIES_MAX && holder.as_ref().is_some_and(|h| is_dead(h.pid)) {
                        tries += 1;
                        pause();
                        continue;
                    }
                    return Err(JournalError::Locked { dir: dir.to_owned(), holder });
                }
                Err(TryLockError::Error(e)) => return Err(JournalError::io("lock", &path)(e)),
            }
            if is_at(&file, &path)? {
                break file;
            }
        };
        let previous = read(&file).map(|c| (c.holder, c.phase));
        write(&mut file, &holder, Phase::Opening).map_err(JournalError::io("write", &path))?;
        Ok((Lock { file, path, holder, phase: Phase::Opening }, previous))
    }

    /// Names another holder, or the same in another phase.
    pub(crate) fn set(&mut self, holder: Holder, phase: Phase) -> Result<(), JournalError> {
        write(&mut self.file, &holder, phase).map_err(JournalError::io("write", &self.path))?;
        self.holder = holder;
        self.phase = phase;
        Ok(())
    }

    /// The holder and phase that were last written.
    pub(crate) fn holder(&self) -> (&Holder, Phase) {
        (&self.holder, self.phase)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if thread::panicking() {
            // As under panic=abort: the phase stays what it was when the panic came.
            return;
        }
        // Only told to people.
        let _ = write(&mut self.file, &self.holder, Phase::Closed);
        // Also for the copies of the descriptor that a process being forked right now has. If it fails, closing does it.
        let _ = FileExt::unlock(&self.file);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "that another process executes its program has no event"
)]
fn pause() {
    thread::sleep(RETRY);
}

/// Whether a process has ended, also when nobody has reaped it.
fn is_dead(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name in parentheses may hold anything (proc_pid_stat(5)).
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Whether `path` still names the locked file: a removed lock file guards nothing.
fn is_at(file: &File, path: &Path) -> Result<bool, JournalError> {
    let held = file.metadata().map_err(JournalError::io("examine", path))?;
    match path.symlink_metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(JournalError::io("examine", path)(e)),
    }
}

fn read(mut file: &File) -> Option<Content> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(text.lines().next()?).ok()
}

/// One write call of one line, then the rest is cut, so that a reader in between still sees a
/// whole first line.
fn write(file: &mut File, holder: &Holder, phase: Phase) -> std::io::Result<()> {
    let mut line = serde_json::to_string(&Content { holder: holder.clone(), phase })?;
    line.push('\n');
    file.seek(SeekFrom::Start(0))?;
    file.write_all(line.as_bytes())?;
    file.set_len(line.len() as u64)
}
