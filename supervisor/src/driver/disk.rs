//! The accountant of a writable workspace on disk: where the host gives no hard quota to a run, its
//! growth is looked at, and a run that grew beyond its limit is killed. Receipts say `watched`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atenea_core::input::Observation;
use atenea_core::{Code, Refusal, RunId};

use super::host::Inner;

/// Pause between two looks, at least. A look that takes long makes the pause longer, so that looking
/// never takes more than a tenth of a core.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Pause between two glances at the free space of the whole disk, which cost one system call.
const GLANCE: Duration = Duration::from_millis(25);
/// What a file or directory counts at least, bytes: empty ones fill a disk too.
const ENTRY_BYTES_MIN: u64 = 4_096;
/// Directories that wait to be read; deeper or wider growth than this is over any limit.
const PENDING_MAX: usize = 4_000_000;

/// Looks until it is dropped or the run is over its limit.
pub(super) async fn watch(inner: Arc<Inner>, run: RunId, limit: u64) {
    let dir = inner.dirs.workspace(&run);
    let Some(base) = measure(dir.clone()).await else { return };
    let mut pause = PAUSE_MIN;
    loop {
        wait(&dir, pause, limit).await;
        let began = crate::clock::now().boot_ms;
        let Some(now) = measure(dir.clone()).await else { continue };
        let took = crate::clock::now().boot_ms.saturating_sub(began);
        pause = PAUSE_MIN.max(Duration::from_millis(took.saturating_mul(9)));
        let grown = now.saturating_sub(base);
        if grown > limit {
            let cause = format!("the workspace grew by {grown} bytes, the limit is {limit}");
            let refusal = Refusal::new(Code::LimitDisk, cause);
            inner.observe(Observation::LimitExceeded { run, refusal }).await;
            return;
        }
    }
}

/// Waits for the next look: sooner when the disk as a whole fills up faster than the run may.
async fn wait(dir: &Path, pause: Duration, limit: u64) {
    let free = || {
        let stat = rustix::fs::statvfs(dir).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    };
    let before = free();
    let mut waited = Duration::ZERO;
    while waited < pause {
        tokio::time::sleep(GLANCE).await;
        waited += GLANCE;
        if let (Some(before), Some(now)) = (before, free())
            && before.saturating_sub(now) > limit / 2
        {
            return;
        }
    }
}

async fn measure(dir: PathBuf) -> Option<u64> {
    tokio::task::spawn_blocking(move || size_of(&dir)).await.ok()
}

/// Bytes on disk below a directory. What disappears while it is looked at counts nothing; links are
/// not followed. Too many directories count as infinitely large.
fn size_of(dir: &Path) -> u64 {
    let mut total: u64 = 0;
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let bytes = meta.blocks().saturating_mul(512).max(ENTRY_BYTES_MIN);
            total = total.saturating_add(bytes);
            if meta.is_dir() {
                if pending.len() >= PENDING_MAX {
                    return u64::MAX;
                }
                pending.push(entry.path());
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_files_count_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        let before = size_of(dir.path());
        assert_eq!(before, ENTRY_BYTES_MIN);
        for n in 0..100 {
            std::fs::File::create(dir.path().join(n.to_string())).unwrap();
        }
        assert_eq!(size_of(dir.path()), before + 100 * ENTRY_BYTES_MIN);
    }
}
