//! The boot clock, for bounds of waiting only: nothing recorded comes from here.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since boot, time asleep included.
pub(super) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000)
}
