//! The journal as programs see it: verification, sizes, dump.

use atenea_core::Refusal;
use atenea_journal::{Journal, Record, Stats, VerifyReport};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::driver::record;

/// Result of a verification.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct VerifyView {
    /// Whether the journal is whole.
    pub ok: bool,
    /// Records that were checked.
    pub records: u64,
    /// Sequence of the first, when there is one.
    pub first: Option<u64>,
    /// Sequence of the last.
    pub last: u64,
    /// Hash of the last.
    pub head: String,
    /// Records that the anchor covers.
    pub anchored: u64,
    /// Records behind it: committed, not acknowledged.
    pub unanchored: u64,
    /// How often loss was accepted.
    pub epoch: u64,
    /// What is wrong.
    pub damage: Option<String>,
}

/// Result of a verification; `ok` says whether the journal is whole.
pub fn report(report: &VerifyReport) -> VerifyView {
    VerifyView {
        ok: report.is_whole(),
        records: report.records,
        first: report.first,
        last: report.head.seq,
        head: report.head.hash.to_string(),
        anchored: report.anchored,
        unanchored: report.unanchored,
        epoch: report.epoch,
        damage: report.damage.as_ref().map(ToString::to_string),
    }
}

/// Sizes of a journal.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StatsView {
    /// Records in it.
    pub records: u64,
    /// Sequence of the last.
    pub last: u64,
    /// Its file, bytes.
    pub file_bytes: u64,
    /// Keys and frames in it, bytes.
    pub live_bytes: u64,
    /// Pages that hold no record data, bytes.
    pub overhead_bytes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Their size, bytes.
    pub snapshot_bytes: u64,
    /// How often loss was accepted.
    pub epoch: u64,
}

/// Sizes.
pub fn stats(stats: &Stats) -> StatsView {
    StatsView {
        records: stats.records,
        last: stats.last,
        file_bytes: stats.file_bytes,
        live_bytes: stats.live_bytes,
        overhead_bytes: stats.overhead_bytes,
        snapshots: stats.snapshots,
        snapshot_bytes: stats.snapshot_bytes,
        epoch: stats.epoch,
    }
}

/// Every record as one JSON object a line.
///
/// # Errors
/// When a record cannot be read.
pub fn dump(journal: &Journal) -> Result<String, Refusal> {
    let mut out = String::new();
    for found in journal.records(1).map_err(|e| record::refusal(&e))? {
        out.push_str(&line(&found.map_err(|e| record::refusal(&e))?));
    }
    Ok(out)
}

/// One record as a line of JSON.
pub fn line(found: &Record) -> String {
    let object = match record::decode_record(found) {
        Ok(Some(recorded)) => json!({
            "seq": recorded.seq,
            "at": crate::clock::rfc3339(recorded.at.wall_ms),
            "hash": found.hash.to_string(),
            "event": recorded.event,
        }),
        Ok(None) => json!({ "seq": found.seq, "hash": found.hash.to_string(), "epoch": true }),
        Err(error) => json!({ "seq": found.seq, "unreadable": error.to_string() }),
    };
    format!("{object}\n")
}
