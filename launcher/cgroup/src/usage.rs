//! What a run used, for its receipt.

use serde::{Deserialize, Serialize};

use crate::dir::{Dir, keyed};
use crate::{Controller, Error, Result, RunGroup};

/// Resource use of a run so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all processes, microseconds.
    pub cpu_usec: u64,
    /// Largest memory use, bytes.
    pub memory_peak_bytes: u64,
    /// Whether the kernel kept the peak of memory; otherwise it is the use at this moment.
    pub memory_peak_exact: bool,
    /// Largest number of tasks.
    pub pids_peak: u64,
    /// Whether the kernel kept the peak of tasks; otherwise it is the number at this moment.
    pub pids_peak_exact: bool,
    /// Forks that the limit of tasks refused.
    pub pids_refused: u64,
}

impl RunGroup {
    /// Reads what the run used so far; before removal, afterwards it is lost.
    ///
    /// # Errors
    /// Whatever cannot be read: unknown is not zero.
    pub fn usage(&self) -> Result<Usage> {
        let v2 = self.members().iter().find(|member| member.v2);
        let v2 =
            v2.ok_or_else(|| Error::NoHierarchy { hierarchy: crate::layout::V2.to_owned() })?;
        // `usage_usec` is kept in every v2 group, also where the controller is on v1.
        let stat = v2.dir.read("cpu.stat")?;
        let cpu_usec = keyed(&stat, "usage_usec")
            .ok_or_else(|| Error::unparsable(v2.dir.file_path("cpu.stat"), &stat))?;

        let memory = self.with(Controller::Memory)?;
        let (kept, now) = if memory.v2 {
            ("memory.peak", "memory.current")
        } else {
            ("memory.max_usage_in_bytes", "memory.usage_in_bytes")
        };
        let (memory_peak_bytes, memory_peak_exact) = peak(&memory.dir, kept, now)?;
        let pids = self.with(Controller::Pids)?;
        let (pids_peak, pids_peak_exact) = peak(&pids.dir, "pids.peak", "pids.current")?;
        let pids_refused = self.fork_refusals()?;
        Ok(Usage {
            cpu_usec,
            memory_peak_bytes,
            memory_peak_exact,
            pids_peak,
            pids_peak_exact,
            pids_refused,
        })
    }
}

fn peak(dir: &Dir, kept: &str, now: &str) -> Result<(u64, bool)> {
    let (file, exact) = if dir.has(kept)? { (kept, true) } else { (now, false) };
    let text = dir.read(file)?;
    let value = text.trim().parse().map_err(|_| Error::unparsable(dir.file_path(file), &text))?;
    Ok((value, exact))
}
