//! Limits of one run, written through `cgroups-rs` and read back.
//!
//! `cgroups-rs` is used for the values only. Its controllers are made for `/proc/self/fd/N` of the
//! directory we hold open, never for a path. Not used: `Cgroup::new` and the builder (they write into
//! every ancestor's `cgroup.subtree_control`), `procs` and `tasks` (a read error becomes an empty
//! list or pid 0), `kill` (refuses hybrid hosts), `delete` (by path, without comparing), `apply`
//! (it ignores errors of some files).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use serde::{Deserialize, Serialize};

use crate::dir::Dir;
use crate::{Controller, Error, Result};

/// CPU, memory and tasks of one run; none is "unlimited".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU bandwidth in thousandths of a CPU.
    pub cpu_millis: u64,
    /// Memory, with swap and tmpfs files, bytes.
    pub memory_bytes: u64,
    /// Tasks (processes and threads).
    pub pids: u64,
}

/// The kernel refuses a quota below one millisecond, so small limits need the longest period.
const PERIOD_US: u64 = 100_000;
const PERIOD_LONG_US: u64 = 1_000_000;
const CPU_MILLIS_SHORT_MIN: u64 = 10;
/// Above any machine; keeps the quota inside what the kernel can multiply.
const CPU_MILLIS_MAX: u64 = 10_000_000;
/// `PID_MAX_LIMIT` of the kernel.
const PIDS_MAX: u64 = 4 << 20;

impl Limits {
    pub(crate) fn check(&self) -> Result<()> {
        let within = |what, value: u64, max: u64| {
            if value == 0 || value > max { Err(Error::BadLimit { what, value }) } else { Ok(()) }
        };
        within("cpu", self.cpu_millis, CPU_MILLIS_MAX)?;
        within("memory", self.memory_bytes, i64::MAX.unsigned_abs())?;
        within("pids", self.pids, PIDS_MAX)
    }

    /// Quota and period in microseconds.
    fn bandwidth(&self) -> (u64, u64) {
        let period =
            if self.cpu_millis < CPU_MILLIS_SHORT_MIN { PERIOD_LONG_US } else { PERIOD_US };
        (self.cpu_millis * (period / 1000), period)
    }
}

/// Sets every limit that the hierarchy of `dir` has a controller for.
pub(crate) fn set(dir: &Dir, v2: bool, controllers: &[Controller], limits: &Limits) -> Result<()> {
    let target = Target { dir, v2 };
    controllers.iter().try_for_each(|controller| match controller {
        Controller::Cpu => target.set_cpu(limits),
        Controller::Memory => target.set_memory(limits),
        Controller::Pids => target.set_pids(limits),
    })
}

struct Target<'a> {
    dir: &'a Dir,
    v2: bool,
}

impl Target<'_> {
    /// What `cgroups-rs` takes for the directory: our held descriptor.
    fn point(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_fd().as_raw_fd()))
    }

    fn set_cpu(&self, limits: &Limits) -> Result<()> {
        let (quota, period) = limits.bandwidth();
        let cpu = CpuController::new(self.point(), PathBuf::new(), self.v2);
        let signed = to_signed("cpu", quota)?;
        if self.v2 {
            let value = format!("{quota} {period}");
            self.put("cpu.max", &value, || {
                cpu.set_cfs_quota_and_period(Some(signed), Some(period))
            })?;
            return self.confirm("cpu.max", &value, |found| found == value);
        }
        self.put("cpu.cfs_period_us", &period.to_string(), || cpu.set_cfs_period(period))?;
        self.put("cpu.cfs_quota_us", &quota.to_string(), || cpu.set_cfs_quota(signed))?;
        self.confirm("cpu.cfs_period_us", &period.to_string(), |found| {
            found.parse() == Ok(period)
        })?;
        self.confirm("cpu.cfs_quota_us", &quota.to_string(), |found| found.parse() == Ok(quota))
    }

    fn set_memory(&self, limits: &Limits) -> Result<()> {
        let memory = MemController::new(self.point(), PathBuf::new(), self.v2);
        let bytes = limits.memory_bytes;
        let signed = to_signed("memory", bytes)?;
        let text = bytes.to_string();
        // The kernel rounds down to pages; more than what was asked is not in force.
        let at_most = |found: &str| found.parse::<u64>().is_ok_and(|value| value <= bytes);
        if self.v2 {
            self.put("memory.max", &text, || memory.set_limit(signed))?;
            self.confirm("memory.max", &text, at_most)?;
            // Without swap accounting the file is absent; that bounds only a host without swap.
            if self.dir.has("memory.swap.max")? || host_swaps() {
                self.put("memory.swap.max", "0", || memory.set_memswap_limit(0))?;
                self.confirm("memory.swap.max", "0", |found| found == "0")?;
            }
            // `cgroups-rs` has no call for this file.
            return self.write("memory.oom.group", "1");
        }
        self.put("memory.limit_in_bytes", &text, || memory.set_limit(signed))?;
        self.confirm("memory.limit_in_bytes", &text, at_most)?;
        if self.dir.has("memory.memsw.limit_in_bytes")? {
            self.put("memory.memsw.limit_in_bytes", &text, || memory.set_memswap_limit(signed))?;
            self.confirm("memory.memsw.limit_in_bytes", &text, at_most)
        } else {
            // Without swap accounting a v1 group stays out of swap only by this.
            self.put("memory.swappiness", "0", || memory.set_swappiness(0))?;
            self.confirm("memory.swappiness", "0", |found| found == "0")
        }
    }

    fn set_pids(&self, limits: &Limits) -> Result<()> {
        let pids = PidController::new(self.point(), PathBuf::new(), self.v2);
        let signed = to_signed("pids", limits.pids)?;
        let text = limits.pids.to_string();
        self.put("pids.max", &text, || pids.set_pid_max(MaxValue::Value(signed)))?;
        self.confirm("pids.max", &text, |found| found == text)
    }

    /// One limit through `cgroups-rs`. The file is looked for first, because the library would
    /// try to create a missing one and report that as a lack of permission.
    fn put(
        &self,
        file: &'static str,
        value: &str,
        set: impl FnOnce() -> cgroups_rs::fs::error::Result<()>,
    ) -> Result<()> {
        if !self.dir.has(file)? {
            return Err(self.not_set(file, value, io::ErrorKind::NotFound.into()));
        }
        set().map_err(|error| self.not_set(file, value, io_cause(&error)))
    }

    fn write(&self, file: &'static str, value: &str) -> Result<()> {
        self.dir.write(file, value).map_err(|source| self.not_set(file, value, source))?;
        self.confirm(file, value, |found| found == value)
    }

    fn not_set(&self, file: &str, value: &str, source: io::Error) -> Error {
        Error::LimitNotSet { file: self.dir.file_path(file), value: value.to_owned(), source }
    }

    /// Reads a limit back: a value that was accepted but is not in force is no limit.
    fn confirm(&self, file: &str, asked: &str, holds: impl Fn(&str) -> bool) -> Result<()> {
        let text = self.dir.read(file)?;
        let found = text.trim();
        if holds(found) {
            return Ok(());
        }
        let found = found.to_owned();
        Err(Error::LimitDiffers { file: self.dir.file_path(file), asked: asked.to_owned(), found })
    }
}

/// Whether any swap is in use; "cannot tell" counts as yes.
fn host_swaps() -> bool {
    match std::fs::read_to_string("/proc/swaps") {
        Ok(text) => text.lines().count() > 1,
        Err(e) => e.kind() != io::ErrorKind::NotFound,
    }
}

fn to_signed(what: &'static str, value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::BadLimit { what, value })
}

/// The system error below an error of the library.
fn io_cause(error: &cgroups_rs::fs::error::Error) -> io::Error {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(code) = inner.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = inner.source();
    }
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cpu_limits_use_a_period_whose_quota_the_kernel_accepts() {
        let of = |cpu_millis| Limits { cpu_millis, memory_bytes: 1, pids: 1 }.bandwidth();
        assert_eq!(of(1), (1_000, 1_000_000));
        assert_eq!(of(9), (9_000, 1_000_000));
        assert_eq!(of(10), (1_000, 100_000));
        assert_eq!(of(2_500), (250_000, 100_000));
    }

    #[test]
    fn a_limit_of_zero_or_beyond_the_kernel_is_refused() {
        let good = Limits { cpu_millis: 1, memory_bytes: 1, pids: 1 };
        assert!(good.check().is_ok());
        for bad in [
            Limits { cpu_millis: 0, ..good },
            Limits { memory_bytes: 0, ..good },
            Limits { pids: 0, ..good },
            Limits { memory_bytes: u64::MAX, ..good },
            Limits { pids: u64::MAX, ..good },
            Limits { cpu_millis: u64::MAX, ..good },
        ] {
            assert!(matches!(bad.check(), Err(Error::BadLimit { .. })), "{bad:?}");
        }
    }
    #[test]
    fn a_limit_that_is_accepted_but_not_in_force_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("pids.max"), "max\n").unwrap();
        let dir = Dir::open_mount(root.path()).unwrap();
        let target = Target { dir: &dir, v2: false };
        let differs = target.confirm("pids.max", "7", |found| found == "7");
        let Err(Error::LimitDiffers { asked, found, .. }) = differs else { panic!("{differs:?}") };
        assert_eq!((asked.as_str(), found.as_str()), ("7", "max"));
    }
}
