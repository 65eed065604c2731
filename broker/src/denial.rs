//! What was refused, as counts. Subjects are words of this crate, never the guest's, so the table
//! is bounded by construction (E6) and holds nothing a guest sent (E4).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atenea_core::Code;

use crate::LIMITS;

/// Refusals of one kind since the last report of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Why.
    pub code: Code,
    /// What was asked for or what was wrong: one of this crate's fixed words.
    pub subject: &'static str,
    /// How many since the last report; reports of one kind add up to the total.
    pub count: u64,
}

/// Where denials go. It is called from the tasks of the endpoint and must not block.
pub type DenialSink = Arc<dyn Fn(Denial) + Send + Sync>;

/// Counts refusals of one run and reports them: the first of a kind at once, repeats at a flush.
pub(crate) struct Denials {
    sink: DenialSink,
    table: Mutex<BTreeMap<(Code, &'static str), u64>>,
}

impl Denials {
    pub(crate) fn new(sink: DenialSink) -> Self {
        Denials { sink, table: Mutex::new(BTreeMap::new()) }
    }

    /// Counts one refusal.
    pub(crate) fn record(&self, code: Code, subject: &'static str) {
        let first = {
            let mut table = self.lock();
            match table.get_mut(&(code, subject)) {
                Some(pending) => {
                    *pending = pending.saturating_add(1);
                    false
                }
                None => table.insert((code, subject), 0).is_none(),
            }
        };
        // The sink runs outside the lock.
        if first {
            (self.sink)(Denial { code, subject, count: 1 });
        }
    }

    /// Reports every repeat that was not reported yet.
    pub(crate) fn flush(&self) {
        let due: Vec<Denial> = self
            .lock()
            .iter_mut()
            .filter(|(_, pending)| **pending > 0)
            .map(|(&(code, subject), pending)| Denial {
                code,
                subject,
                count: std::mem::take(pending),
            })
            .collect();
        for denial in due {
            (self.sink)(denial);
        }
    }

    /// Flushes at intervals that double: the number of reports grows with the logarithm of the
    /// run's time (E6).
    pub(crate) async fn flush_at_intervals(&self) {
        let mut pause = LIMITS.denial_flush;
        loop {
            tokio::time::sleep(pause).await;
            self.flush();
            pause = pause.saturating_mul(2);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Code, &'static str), u64>> {
        // A count is whole after every statement, so a poisoned lock holds good data.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
