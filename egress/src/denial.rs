//! What was refused, as counts. A guest that is refused a million times costs one table entry and
//! a handful of reports (E6); what it chose as a name is escaped and cut before anyone sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atenea_core::Code;

use crate::LIMITS;

/// The subject under which refusals are counted when the table of a run is full.
pub const OTHER: &str = "other";

/// Refusals of one kind since the last report of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Why.
    pub code: Code,
    /// `host:port`, a query name, or a fixed word; printable ASCII, at most 255 bytes.
    pub subject: String,
    /// How many since the last report; reports of one kind add up to the total.
    pub count: u64,
}

/// Where denials go. It is called from the tasks of the boundary and must not block.
pub type DenialSink = Arc<dyn Fn(Denial) + Send + Sync>;

/// Counts refusals of one run and reports them: the first of a kind at once, repeats at a flush.
pub(crate) struct Denials {
    sink: DenialSink,
    table: Mutex<BTreeMap<(Code, String), u64>>,
}

impl Denials {
    pub(crate) fn new(sink: DenialSink) -> Self {
        Denials { sink, table: Mutex::new(BTreeMap::new()) }
    }

    /// Counts one refusal.
    pub(crate) fn record(&self, code: Code, subject: &[u8]) {
        if let Some(denial) = self.count(code, subject) {
            (self.sink)(denial);
        }
    }

    /// Counts and returns what must be reported now. The sink runs outside the lock.
    fn count(&self, code: Code, subject: &[u8]) -> Option<Denial> {
        let mut key = (code, escape(subject));
        let mut table = self.lock();
        // E6: at most `denial_keys` entries, then one more per code.
        if !table.contains_key(&key) && table.len() >= LIMITS.denial_keys {
            OTHER.clone_into(&mut key.1);
        }
        if let Some(pending) = table.get_mut(&key) {
            *pending = pending.saturating_add(1);
            return None;
        }
        table.insert(key.clone(), 0);
        Some(Denial { code: key.0, subject: key.1, count: 1 })
    }

    /// Reports every repeat that was not reported yet.
    pub(crate) fn flush(&self) {
        let due: Vec<Denial> = self
            .lock()
            .iter_mut()
            .filter(|(_, pending)| **pending > 0)
            .map(|((code, subject), pending)| Denial {
                code: *code,
                subject: subject.clone(),
                count: std::mem::take(pending),
            })
            .collect();
        for denial in due {
            (self.sink)(denial);
        }
    }

    /// Flushes at intervals that double: the number of reports of one kind grows with the logarithm
    /// of the run's time, so the journal is bounded too (E6).
    pub(crate) async fn flush_at_intervals(&self) {
        let mut pause = LIMITS.denial_flush;
        loop {
            tokio::time::sleep(pause).await;
            self.flush();
            pause = pause.saturating_mul(2);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Code, String), u64>> {
        // A count is whole after every statement, so a poisoned lock holds good data.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Printable ASCII, nothing that a terminal or a log could interpret, at most `subject_bytes`.
pub fn escape(subject: &[u8]) -> String {
    const CUT: &str = "...";
    let mut text = String::new();
    for byte in subject {
        let one = std::ascii::escape_default(*byte);
        if text.len() + one.len() > LIMITS.subject_bytes - CUT.len() {
            text.push_str(CUT);
            break;
        }
        text.extend(one.map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<Denial>>>;

    fn denials() -> (Denials, Log) {
        let log = Log::default();
        let sink = Arc::clone(&log);
        (Denials::new(Arc::new(move |d| sink.lock().unwrap().push(d))), log)
    }

    #[test]
    fn the_first_of_a_kind_is_reported_at_once_and_repeats_at_the_flush() {
        let (denials, log) = denials();
        for _ in 0..5 {
            denials.record(Code::EgressNotGranted, b"a.example:443");
        }
        denials.record(Code::EgressDnsRefused, b"a.example:443");
        assert_eq!(log.lock().unwrap().iter().map(|d| d.count).collect::<Vec<_>>(), [1, 1]);
        denials.flush();
        denials.flush();
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 3);
        assert_eq!((log[2].code, log[2].count), (Code::EgressNotGranted, 4));
    }

    /// E6
    #[test]
    fn a_hundred_thousand_different_names_cost_a_bounded_table_and_bounded_reports() {
        let (denials, log) = denials();
        for n in 0..100_000_u32 {
            denials.record(Code::EgressDnsRefused, format!("{n}.evil.example").as_bytes());
        }
        denials.record(Code::EgressNotGranted, b"late.example:443");
        denials.flush();
        let log = log.lock().unwrap();
        assert_eq!(denials.lock().len(), LIMITS.denial_keys + 2);
        assert_eq!(log.len(), LIMITS.denial_keys + 3);
        assert_eq!(log.iter().map(|d| d.count).sum::<u64>(), 100_001);
        assert!(log.iter().any(|d| d.code == Code::EgressNotGranted && d.subject == OTHER));
    }

    #[tokio::test(start_paused = true)]
    async fn a_month_of_one_refusal_a_minute_makes_fewer_than_thirty_reports() {
        let (denials, log) = denials();
        let month = std::time::Duration::from_secs(30 * 24 * 3600);
        let steady = async {
            loop {
                denials.record(Code::EgressNotGranted, b"a.example:443");
                tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            }
        };
        let _ = tokio::time::timeout(month, async {
            tokio::join!(steady, denials.flush_at_intervals())
        })
        .await;
        let reports = log.lock().unwrap().len();
        assert!((10..30).contains(&reports), "{reports}");
    }

    #[test]
    fn subjects_are_printable_and_bounded_whatever_the_guest_chose() {
        assert_eq!(escape(b"a\x1b[2J\n\xff'"), "a\\x1b[2J\\n\\xff\\'");
        for byte in [0_u8, b'a', b'\n', 0xff] {
            let text = escape(&vec![byte; 100_000]);
            assert!(text.len() <= LIMITS.subject_bytes && text.ends_with("..."), "{}", text.len());
            assert!(text.bytes().all(|b| b.is_ascii_graphic()));
        }
    }
}
