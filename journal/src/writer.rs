//! The one writer thread: drains the queue into one commit, moves the anchor, then answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::anchor::{Anchor, AnchorFile};
use crate::error::JournalError;
use crate::frame::{Frame, Head, RecordHash};
use crate::journal::Shared;
use crate::queue::{Appended, Pending};
use crate::store::Meta;

/// What only the writer thread owns.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) anchor: AnchorFile,
    pub(crate) meta: Meta,
    pub(crate) head: Head,
}

impl Writer {
    /// Runs until the queue is closed and empty, or a commit fails.
    pub(crate) fn run(mut self) {
        // In a build that unwinds, a panic here must not leave callers waiting. Nothing is reused
        // afterwards, so unwind safety does not matter. With panic=abort the process is gone.
        if catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.stop("the writer thread panicked");
        }
    }

    fn serve(&mut self) {
        while let Some(group) = self.shared.queue.take_group(self.shared.options.group_records) {
            match self.write(&group) {
                Ok(places) => {
                    for (pending, place) in group.into_iter().zip(places) {
                        (pending.done)(Ok(place));
                    }
                }
                Err(error) => {
                    // J5: never retried; whether the group is durable is learnt by reopening.
                    let cause = describe(&error);
                    let waiting = self.shared.queue.poison(&cause);
                    for pending in group {
                        (pending.done)(Err(JournalError::CommitFailed { cause: cause.clone() }));
                    }
                    refuse(waiting, &cause);
                    return;
                }
            }
        }
    }

    /// One group: one commit, one anchor write. Returns the place of each batch.
    fn write(&mut self, group: &[Pending]) -> Result<Vec<Appended>, JournalError> {
        let mut frames = Vec::new();
        let mut places = Vec::with_capacity(group.len());
        let mut head = self.head;
        let mut schema = self.meta.schema;
        let first = head.seq + 1;
        for pending in group {
            let first = head.seq + 1;
            for record in &pending.batch {
                let seq = head.seq + 1;
                let frame = Frame {
                    schema: record.schema,
                    kind: record.kind,
                    seq,
                    prev: head.hash,
                    payload: &record.payload,
                };
                let stored = frame.to_bytes();
                head = Head { seq, hash: RecordHash::of(&stored) };
                schema = schema.max(record.schema);
                frames.push(stored);
            }
            places.push(Appended { first, last: head.seq, hash: head.hash });
        }
        let meta = Meta { schema, ..self.meta };
        let changed = (meta != self.meta).then_some(meta);
        // J9: cancel and cleanup may need the reserve for this very commit.
        self.shared.space.make_room(frames.iter().map(Vec::len).sum());
        let gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.store.commit(first, &frames, changed)?;
        // J3: after the commit, before anybody is told.
        let anchor = Anchor::new(head, meta.epoch);
        self.anchor.advance(anchor)?;
        drop(gate);
        self.head = head;
        self.meta = meta;
        *self.shared.anchored.lock().unwrap_or_else(PoisonError::into_inner) = anchor;
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        Ok(places)
    }

    fn stop(&self, cause: &str) {
        refuse(self.shared.queue.poison(cause), cause);
    }
}

fn refuse(waiting: Vec<Pending>, cause: &str) {
    for pending in waiting {
        (pending.done)(Err(JournalError::Poisoned { cause: cause.to_owned() }));
    }
}

/// The error with its causes, since the text is all that every caller of the group gets.
fn describe(error: &JournalError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
