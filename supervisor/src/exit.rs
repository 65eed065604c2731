//! Exit statuses, in one place.

/// "No": the host cannot enforce, a verification found damage.
pub const NO: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// What was named does not exist.
pub const NOT_FOUND: u8 = 3;
/// Refused.
pub const REFUSED: u8 = 4;
/// Somebody else holds the lock and does not answer.
pub const BUSY: u8 = 5;
/// `run` and `wait`: refused, failed before the command ran, or lost.
pub const RUN_FAILED: u8 = 125;
/// A supervisor whose journal failed (J5).
pub const JOURNAL_FAILED: i32 = 70;
/// A supervisor whose launcher helper died.
pub const HELPER_DIED: i32 = 71;
