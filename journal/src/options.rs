//! Bounds and tunables. Every number here is a bound of J7 or J9.

/// How a journal is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Largest payload. 256 KiB: events hold digests and counts, never contents.
    pub max_record_bytes: usize,
    /// Most records of one atomic batch.
    pub max_batch_records: usize,
    /// Most payload bytes of one atomic batch.
    pub max_batch_bytes: usize,
    /// Records that may wait for the writer. [`crate::Priority::Cleanup`] may use twice as many.
    pub queue_records: usize,
    /// Payload bytes that may wait for the writer; the same factor applies.
    pub queue_bytes: usize,
    /// Records that go into one commit at most, so that one commit's memory is bounded.
    pub group_records: usize,
    /// Size of the reserve file, and the free space below which only cleanup is appended (J9).
    /// 0 turns the reserve off.
    pub reserve_bytes: u64,
    /// Page cache of the store. Records are read once, in order, so a small one is enough.
    pub cache_bytes: usize,
    /// Largest snapshot.
    pub max_snapshot_bytes: usize,
    /// Newest record schema the caller reads; a journal with a newer one is refused (J8).
    pub schema_supported: u16,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_record_bytes: 256 << 10,
            max_batch_records: 1024,
            max_batch_bytes: 4 << 20,
            queue_records: 4096,
            queue_bytes: 16 << 20,
            group_records: 4096,
            reserve_bytes: 4 << 20,
            cache_bytes: 4 << 20,
            max_snapshot_bytes: 64 << 20,
            schema_supported: u16::MAX,
        }
    }
}
