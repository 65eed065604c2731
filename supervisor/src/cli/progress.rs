//! How far the preparation of a workspace is, without flooding a log.

use super::output::Output;
use crate::api::types::Progress;
use crate::clock;

/// Least time between two lines where nothing redraws them, milliseconds.
const PAUSE_MS: u64 = 5_000;

/// Progress of the workspace; the supervisor starts to report it after a second.
#[derive(Default)]
pub(super) struct ProgressLine {
    shown: bool,
    last: Option<Last>,
}

/// The last line where lines stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    at_ms: u64,
    tenth: Option<u64>,
}

impl ProgressLine {
    pub(super) fn show(&mut self, output: &Output, progress: Option<Progress>) {
        match progress {
            Some(progress) => {
                if !output.interactive && !self.is_due(progress, clock::now().boot_ms) {
                    return;
                }
                let Progress { files, total, bytes } = progress;
                let of = total.map_or_else(String::new, |t| format!(" of {t}"));
                let mib = bytes >> 20;
                output.progress(&format!("preparing workspace: {files}{of} files, {mib} MiB"));
                self.shown = true;
            }
            None if self.shown => {
                output.progress_done();
                self.shown = false;
            }
            None => {}
        }
    }

    /// Whether a line that stays is due: when some time has passed, and another tenth is done where
    /// that can be said.
    fn is_due(&mut self, progress: Progress, now_ms: u64) -> bool {
        let tenths = |total| progress.files.saturating_mul(10).checked_div(total);
        let tenth = progress.total.and_then(tenths);
        let due = self.last.is_none_or(|last| {
            let waited = now_ms.saturating_sub(last.at_ms) >= PAUSE_MS;
            waited && (tenth.is_none() || tenth != last.tenth)
        });
        if due {
            self.last = Some(Last { at_ms: now_ms, tenth });
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_a_line_for_each_tenth_and_never_two_within_the_pause() {
        let mut line = ProgressLine::default();
        let mut due = |files, total, now| line.is_due(Progress { files, total, bytes: 0 }, now);
        assert!(due(1, Some(100), 0));
        // Another tenth, too early; later, the same tenth.
        assert!(!due(20, Some(100), PAUSE_MS - 1));
        assert!(due(20, Some(100), PAUSE_MS));
        assert!(!due(29, Some(100), 10 * PAUSE_MS));
        assert!(due(30, Some(100), 10 * PAUSE_MS));
        // Nobody knows how many there are.
        assert!(!due(30, None, 10 * PAUSE_MS + 1));
        assert!(due(30, None, 11 * PAUSE_MS));
    }
}
