//! Progress of long steps: counted, never timed.

use serde::{Deserialize, Serialize};

/// How far a step has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files done.
    pub done: u64,
    /// Files in all; 0 while it is not known.
    pub total: u64,
    /// Bytes read so far.
    pub bytes: u64,
}

/// Something that is told how far a step has come.
pub trait Report {
    /// Called every few hundred files and every few megabytes.
    fn report(&mut self, progress: Progress);
}

impl<F: FnMut(Progress)> Report for F {
    fn report(&mut self, progress: Progress) {
        self(progress);
    }
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Report for NoProgress {
    fn report(&mut self, _: Progress) {}
}

/// Files between two reports: a report costs a line on a pipe.
const EVERY_FILES: u64 = 256;
/// Bytes between two reports.
const EVERY_BYTES: u64 = 8 << 20;

/// Counts and reports now and then.
pub(crate) struct Meter<'a> {
    to: &'a mut dyn Report,
    now: Progress,
    told: Progress,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(to: &'a mut dyn Report, total: usize) -> Self {
        let now = Progress { total: total as u64, ..Progress::default() };
        to.report(now);
        Meter { to, now, told: now }
    }

    pub(crate) fn bytes(&mut self, bytes: usize) {
        self.now.bytes += bytes as u64;
        if self.now.bytes - self.told.bytes >= EVERY_BYTES {
            self.tell();
        }
    }

    pub(crate) fn file(&mut self) {
        self.now.done += 1;
        if self.now.done - self.told.done >= EVERY_FILES {
            self.tell();
        }
    }

    pub(crate) fn finish(mut self) -> Progress {
        self.tell();
        self.now
    }

    fn tell(&mut self) {
        self.told = self.now;
        self.to.report(self.now);
    }
}
