//! The only place that reads a clock. Everything else gets the time as a value.

use atenea_core::BootId;
use atenea_core::event::Stamp;

/// The time now: wall clock for people, boot clock for deadlines.
pub fn now() -> Stamp {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Stamp { wall_ms: millis(wall), boot_ms: millis(boot) }
}

fn millis(at: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(at.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(nanos / 1_000_000)
}

/// The kernel's boot id.
///
/// # Errors
/// When procfs cannot be read.
pub fn boot_id() -> std::io::Result<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BootId(text.trim().to_owned()))
}

/// Wall time as RFC 3339 with seconds, UTC.
pub fn rfc3339(wall_ms: u64) -> String {
    let millis = i64::try_from(wall_ms).unwrap_or(0);
    let stamp = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    stamp.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A length of time for people: `1.2s`, `3m05s`, `2h03m`.
pub fn human_ms(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..60 => format!("{seconds}.{}s", (ms % 1_000) / 100),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, (seconds % 3_600) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(rfc3339(1_795_910_400_000), "2026-11-29T00:00:00Z");
        assert_eq!(human_ms(1_250), "1.2s");
        assert_eq!(human_ms(185_000), "3m05s");
        assert_eq!(human_ms(7_380_000), "2h03m");
    }
}
