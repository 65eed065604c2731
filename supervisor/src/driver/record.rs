//! Between the state machine and the journal: encoding of events, the fold at start, snapshots.

use atenea_core::event::{Event, Recorded, Stamp};
use atenea_core::{Code, Refusal, State, apply};
use atenea_journal::{
    DecodeError, Journal, JournalError, KIND_EPOCH, NewRecord, Record, decode, encode,
};
use serde::{Deserialize, Serialize};

/// Records of one append; the journal's bound is larger.
const CHUNK_RECORDS: usize = 512;
/// Version of a snapshot's content. A snapshot of another version is passed over (J6).
pub const SNAPSHOT_SCHEMA: u16 = 1;

/// What is stored of a [`Recorded`]: its sequence is the frame's.
#[derive(Serialize, Deserialize)]
struct Stored<E> {
    at: Stamp,
    event: E,
}

/// Encodes events as journal records, in chunks that the journal takes.
///
/// # Errors
/// The event that cannot be encoded, in words.
pub fn encode_all(events: &[Recorded]) -> Result<Vec<Vec<NewRecord>>, String> {
    let one = |recorded: &Recorded| {
        let stored = Stored { at: recorded.at, event: &recorded.event };
        let payload = encode(&stored).map_err(|e| format!("event {}: {e}", recorded.seq))?;
        Ok(NewRecord { kind: recorded.event.kind(), schema: Event::SCHEMA, payload })
    };
    events.chunks(CHUNK_RECORDS).map(|chunk| chunk.iter().map(one).collect()).collect()
}

/// Decodes one record; `None` for the journal's own records.
///
/// # Errors
/// When the payload is no event of this version.
pub fn decode_record(record: &Record) -> Result<Option<Recorded>, DecodeError> {
    if record.kind == KIND_EPOCH {
        return Ok(None);
    }
    let stored: Stored<Event> = decode(record.payload())?;
    Ok(Some(Recorded { seq: record.seq, at: stored.at, event: stored.event }))
}

/// Folds the journal from its newest usable snapshot. Effects of the past are void: recovery makes
/// its own.
///
/// # Errors
/// A refusal when a record cannot be read: no sweep may run on "I could not read it".
pub fn fold(journal: &Journal) -> Result<State, Refusal> {
    let mut state = snapshot_state(journal).unwrap_or_default();
    let records = journal.records(state.seq + 1).map_err(|e| refusal(&e))?;
    for record in records {
        let record = record.map_err(|e| refusal(&e))?;
        let decoded = decode_record(&record).map_err(|e| {
            Refusal::new(Code::JournalDamaged, format!("record {} is no event: {e}", record.seq))
        })?;
        match decoded {
            Some(recorded) => drop(apply(&mut state, &recorded)),
            None => state.seq = record.seq,
        }
    }
    Ok(state)
}

fn snapshot_state(journal: &Journal) -> Option<State> {
    let snapshot = journal.latest_snapshot_if(|s| s.schema == SNAPSHOT_SCHEMA)?;
    let state: State = decode(&snapshot.bytes).ok()?;
    // J6: one that does not say what its name says is no snapshot.
    (state.seq == snapshot.seq).then_some(state)
}

/// Keeps a snapshot of a durable state.
///
/// # Errors
/// In words; none of them harms the journal.
pub fn put_snapshot(journal: &Journal, state: &State) -> Result<(), String> {
    let head = journal.head();
    if head.seq != state.seq {
        return Err(format!("the state is at {}, the journal at {}", state.seq, head.seq));
    }
    let bytes = encode(state).map_err(|e| e.to_string())?;
    journal.put_snapshot(head, SNAPSHOT_SCHEMA, bytes).map_err(|e| e.to_string())
}

/// A full disk as the refusal of an admission (J9).
///
/// # Errors
/// `fs.disk_full`, or `journal.io` when the disk cannot be asked.
pub fn space_refusal(asked: Result<(), JournalError>) -> Result<(), Refusal> {
    asked.map_err(|error| {
        let refusal = refusal(&error);
        // Nothing was lost: it is an append that fails, not a look, that ends the supervisor (J5).
        if refusal.code == Code::JournalIo {
            let help = "see that the journal is in its place; runs that live go on, new ones are \
                        refused until it is";
            return refusal.with_help(help);
        }
        refusal
    })
}

/// A journal error as people see it.
pub fn refusal(error: &JournalError) -> Refusal {
    let code = match error {
        JournalError::Locked { .. } => Code::JournalLocked,
        JournalError::StoreMissing { .. }
        | JournalError::Emptied { .. }
        | JournalError::Truncated { .. }
        | JournalError::Replaced { .. }
        | JournalError::WrongEpoch { .. }
        | JournalError::AnchorMissing { .. } => Code::JournalTruncated,
        JournalError::AnchorDamaged | JournalError::Damaged(_) => Code::JournalDamaged,
        JournalError::Newer { .. } => Code::JournalNewer,
        JournalError::RecordTooLarge { .. } | JournalError::BatchTooLarge { .. } => {
            Code::JournalTooLarge
        }
        JournalError::DiskFull { .. } => Code::FsDiskFull,
        _ => Code::JournalIo,
    };
    let refusal = Refusal::new(code, error.to_string());
    match error {
        JournalError::NothingLost => {
            refusal.with_help("the journal is whole; nothing is to be done")
        }
        _ => refusal,
    }
}
