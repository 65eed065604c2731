//! The journal as programs see it: verification, sizes, dump.

use atenea_core::Refusal;
use atenea_journal::{Journal, Record, Stats, VerifyReport};
use serde_json::{Value, json};

use crate::driver::record;

/// Result of a verification; `ok` says whether the journal is whole.
pub fn report(report: &VerifyReport) -> Value {
    json!({
        "ok": report.is_whole(),
        "records": report.records,
        "first": report.first,
        "last": report.head.seq,
        "head": report.head.hash.to_string(),
        "anchored": report.anchored,
        "unanchored": report.unanchored,
        "epoch": report.epoch,
        "damage": report.damage.as_ref().map(ToString::to_string),
    })
}

/// Sizes.
pub fn stats(stats: &Stats) -> Value {
    json!({
        "records": stats.records,
        "last": stats.last,
        "file_bytes": stats.file_bytes,
        "live_bytes": stats.live_bytes,
        "overhead_bytes": stats.overhead_bytes,
        "snapshots": stats.snapshots,
        "snapshot_bytes": stats.snapshot_bytes,
        "epoch": stats.epoch,
    })
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
