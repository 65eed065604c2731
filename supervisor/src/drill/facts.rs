//! What the journal must say, whatever was killed. Read from the records alone with a small ledger of
//! its own, so that a mistake of the state machine is not believed here.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use atenea_core::event::{CleanupStep, Event, ExportTarget, Recorded, Step};
use atenea_core::{Digest, Nanos, Profile, RunId};
use atenea_journal::Holder;

use crate::clock;
use crate::driver::record::decode_record;

/// A record and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) recorded: Recorded,
    pub(super) hash: String,
}

fn holder() -> Holder {
    Holder::this_process("atenea-sup drill", clock::now().wall_ms)
}

/// Reads every record of a journal that nobody holds. One that does not exist yet has none.
///
/// # Errors
/// In words.
pub(super) fn read(journal: &Path) -> Result<Vec<Fact>, String> {
    if !journal.join("journal.redb").exists() {
        return Ok(Vec::new());
    }
    let options = crate::server::journal_options();
    let mut facts = Vec::new();
    let mut unreadable = None;
    atenea_journal::dump(journal, &options, holder(), 1, |record| {
        match decode_record(&record) {
            Ok(Some(recorded)) => facts.push(Fact { recorded, hash: record.hash.to_string() }),
            Ok(None) => {}
            Err(error) => unreadable = Some(error.to_string()),
        }
        ControlFlow::Continue(())
    })
    .map_err(|e| format!("the journal cannot be read: {e}"))?;
    unreadable.map_or(Ok(facts), |error| Err(format!("a record cannot be read: {error}")))
}

/// Verifies a journal that nobody holds.
///
/// # Errors
/// The damage.
pub(super) fn verify(journal: &Path) -> Result<(), String> {
    let options = crate::server::journal_options();
    let report = atenea_journal::verify(journal, &options, holder())
        .map_err(|e| format!("the journal cannot be verified: {e}"))?;
    match report.damage {
        None if report.is_whole() => Ok(()),
        damage => Err(format!("the journal is damaged: {damage:?}")),
    }
}

/// What the records say about one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    pub(super) profile: Option<Profile>,
    pub(super) refused: bool,
    pub(super) workspace_intended: bool,
    pub(super) go: u32,
    pub(super) started: u32,
    pub(super) token: bool,
    pub(super) group: bool,
    pub(super) boundary_ready: bool,
    pub(super) sealed: Option<u64>,
    pub(super) removed: bool,
    pub(super) settled: u32,
    pub(super) receipts: Vec<Digest>,
    pub(super) export: Option<(ExportTarget, Export)>,
    pub(super) discard_intended: bool,
    pub(super) discarded: bool,
}

/// What became of an intent to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Export {
    Intended,
    Done(Option<String>),
    Failed,
}

/// The end of the books.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    limit: Option<Nanos>,
    pub(super) spent: Nanos,
    pub(super) held: BTreeMap<RunId, Nanos>,
    pub(super) traces: BTreeMap<RunId, Trace>,
}

impl Books {
    /// All that is held.
    pub(super) fn held_in_all(&self) -> Nanos {
        Nanos(self.held.values().map(|amount| amount.0).sum())
    }

    /// What can still be held.
    pub(super) fn available(&self) -> Nanos {
        let used = self.spent.checked_add(self.held_in_all()).unwrap_or(Nanos(u64::MAX));
        self.limit.and_then(|limit| limit.checked_sub(used)).unwrap_or(Nanos::ZERO)
    }
}

/// Reads the books and finds what must not be in any prefix of them.
pub(super) fn books(facts: &[Fact]) -> (Books, Vec<String>) {
    let mut books = Books::default();
    let mut found = Vec::new();
    for Fact { recorded: Recorded { seq, event, .. }, .. } in facts {
        let before = books.available();
        let mut wrong = |what: &str| found.push(format!("record {seq}: {what}"));
        money(&mut books, event, &mut wrong);
        if let Some(run) = event.run() {
            order(books.traces.entry(run.clone()).or_default(), event, &mut wrong);
        }
        let used = books.spent.checked_add(books.held_in_all());
        if books.limit.is_some_and(|limit| used.is_none_or(|used| used > limit)) {
            wrong("B1: spent and held are more than the limit");
        }
        // B3: only the settlement of a run or a new limit makes money available.
        let gives = matches!(event, Event::RunSettled { .. } | Event::BudgetSet { .. });
        if books.available() > before && !gives {
            wrong("B3: money became available without a settlement");
        }
    }
    (books, found)
}

fn money(books: &mut Books, event: &Event, wrong: &mut impl FnMut(&str)) {
    match event {
        Event::BudgetSet { limit, .. } => books.limit = Some(*limit),
        Event::BudgetHeld { run, amount, .. } => {
            let twice = books.held.insert(run.clone(), *amount).is_some();
            if twice {
                wrong("B4: a run holds money twice");
            }
        }
        Event::RunSettled { run, reported, unknown, .. } => {
            let Some(held) = books.held.get_mut(run) else { return };
            if unknown.checked_add(*reported).is_none_or(|sum| sum > *held) {
                wrong("B1: more is settled than was held");
            }
            *held = *unknown;
            books.spent = books.spent.checked_add(*reported).unwrap_or(Nanos(u64::MAX));
        }
        _ => {}
    }
}

/// Steps of one run that must not come before others.
fn order(trace: &mut Trace, event: &Event, wrong: &mut impl FnMut(&str)) {
    match event {
        Event::RunRequested { spec, .. } => trace.profile = Some(spec.profile),
        Event::RunRefused { .. } => trace.refused = true,
        Event::StepIntended { step: Step::Workspace, .. } => trace.workspace_intended = true,
        Event::StepIntended { step: Step::Go, .. } => {
            trace.go += 1;
            if trace.profile.is_some_and(Profile::is_enforced) && !trace.boundary_ready {
                wrong("S1: the agent is started before its boundary is there");
            }
            if trace.go > 1 {
                wrong("R3: an agent is started a second time");
            }
        }
        Event::BoundaryReady { .. } => trace.boundary_ready = true,
        Event::AgentStarted { .. } => trace.started += 1,
        Event::CleanupDone { step: CleanupStep::Token, .. } => trace.token = true,
        Event::CleanupDone { step, .. } if !trace.token => {
            wrong(&format!("C2: cleanup of {step:?} is done before the token is revoked"));
            trace.group |= *step == CleanupStep::Group;
        }
        Event::CleanupDone { step: CleanupStep::Group, .. } => trace.group = true,
        _ => order_of_ends(trace, event, wrong),
    }
}

fn order_of_ends(trace: &mut Trace, event: &Event, wrong: &mut impl FnMut(&str)) {
    match event {
        Event::WorkspaceSealed { changed, .. } => {
            trace.sealed = Some(*changed);
            if !trace.group {
                wrong("C1: a workspace is sealed while a process may write to it");
            }
        }
        Event::WorkspaceRemoved { .. } => {
            trace.removed = true;
            if trace.go > 0 {
                wrong("C4: a workspace is removed that an agent may have written to");
            }
        }
        Event::RunSettled { .. } => {
            trace.settled += 1;
            if !trace.group {
                wrong("C1: a hold is resolved while a process may live");
            }
            if trace.settled > 1 {
                wrong("B4: a hold is resolved twice");
            }
        }
        Event::ReceiptIssued { digest, .. } => {
            trace.receipts.push(*digest);
            if trace.settled == 0 && !trace.refused {
                wrong("a receipt is issued before the settlement");
            }
        }
        Event::ExportIntended { target, .. } => {
            trace.export = Some((target.clone(), Export::Intended));
        }
        Event::Exported { target, commit, .. } => {
            trace.export = Some((target.clone(), Export::Done(commit.clone())));
        }
        Event::ExportFailed { .. } => {
            if let Some((_, export)) = &mut trace.export {
                *export = Export::Failed;
            }
        }
        Event::DiscardIntended { .. } => trace.discard_intended = true,
        Event::Discarded { .. } => {
            trace.discarded = true;
            if !trace.discard_intended {
                wrong("C4: a workspace is discarded that nobody gave up");
            }
        }
        _ => {}
    }
}

/// What every run must have come to when a recovery is over.
pub(super) fn unfinished(books: &Books) -> Vec<String> {
    let mut found = Vec::new();
    for (run, trace) in &books.traces {
        let mut wrong = |what: &str| found.push(format!("{run}: {what}"));
        if trace.receipts.len() != 1 {
            wrong(&format!("R1: it has {} receipts", trace.receipts.len()));
        }
        if !trace.refused && trace.settled != 1 {
            wrong(&format!("R1: it was settled {} times", trace.settled));
        }
        if matches!(trace.export, Some((_, Export::Intended))) {
            wrong("R1: its export is neither done nor refused");
        }
        if trace.discard_intended && !trace.discarded {
            wrong("R1: its workspace is not discarded yet");
        }
        if books.held.get(run).is_some_and(|held| *held != Nanos::ZERO) {
            wrong("B7: nothing priced was granted, and money is still held");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use atenea_core::AccountName;
    use atenea_core::event::{Period, Quality, Stamp};

    fn run() -> RunId {
        RunId::parse("r_000000000001").unwrap()
    }

    fn found(events: Vec<Event>) -> Vec<String> {
        let fact = |(at, event): (usize, Event)| {
            let seq = u64::try_from(at).unwrap() + 1;
            let recorded = Recorded { seq, at: Stamp::default(), event };
            Fact { recorded, hash: String::new() }
        };
        books(&events.into_iter().enumerate().map(fact).collect::<Vec<_>>()).1
    }

    fn held(usd: u64) -> Vec<Event> {
        let account = AccountName::parse("default").unwrap();
        vec![
            Event::BudgetSet {
                account: account.clone(),
                limit: Nanos(5),
                per: Period::Total,
                key: String::new(),
            },
            Event::BudgetHeld { run: run(), account, amount: Nanos(usd) },
        ]
    }

    fn settled() -> Event {
        let (reported, unknown) = (Nanos::ZERO, Nanos::ZERO);
        Event::RunSettled { run: run(), reported, unknown, quality: Quality::None }
    }

    fn cleaned(step: CleanupStep) -> Event {
        Event::CleanupDone { run: run(), step }
    }

    #[test]
    fn an_orderly_run_has_no_finding() {
        let mut events = held(2);
        events.extend([cleaned(CleanupStep::Token), cleaned(CleanupStep::Group), settled()]);
        assert_eq!(found(events), Vec::<String>::new());
    }

    #[test]
    fn a_hold_that_is_resolved_before_the_group_is_gone_is_found() {
        let mut events = held(2);
        events.push(settled());
        assert_eq!(found(events), ["record 3: C1: a hold is resolved while a process may live"]);
    }

    #[test]
    fn more_money_than_there_is_and_a_second_settlement_are_found() {
        assert_eq!(found(held(6)), ["record 2: B1: spent and held are more than the limit"]);
        let mut events = held(2);
        events.extend([cleaned(CleanupStep::Token), cleaned(CleanupStep::Group)]);
        events.extend([settled(), settled()]);
        assert_eq!(found(events), ["record 6: B4: a hold is resolved twice"]);
    }

    #[test]
    fn a_group_that_is_removed_before_the_token_is_found() {
        let found = found(vec![cleaned(CleanupStep::Group)]);
        assert_eq!(found, ["record 1: C2: cleanup of Group is done before the token is revoked"]);
    }

    #[test]
    fn a_run_without_an_end_is_found() {
        let books = Books {
            traces: BTreeMap::from([(run(), Trace::default())]),
            held: BTreeMap::from([(run(), Nanos(2))]),
            ..Books::default()
        };
        assert_eq!(unfinished(&books).len(), 3, "{:?}", unfinished(&books));
    }
}
