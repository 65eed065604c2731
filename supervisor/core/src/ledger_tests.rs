use proptest::prelude::*;

use super::*;

fn name() -> AccountName {
    AccountName::parse("default").unwrap()
}

fn run(n: u64) -> RunId {
    RunId::from_random(n)
}

fn ledger(limit: u64) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set(&name(), Nanos(limit), Period::Total, "total");
    ledger
}

#[test]
fn a_hold_that_does_not_fit_is_refused_and_leaves_nothing() {
    // B1 B4
    let mut books = ledger(100);
    books.hold(&run(1), &name(), Nanos(60));
    let before = books.clone();
    let refusal = books.check_hold(&name(), Nanos(41), Stamp::default()).unwrap_err();
    assert_eq!(refusal.code, Code::BudgetInsufficient);
    assert_eq!(books, before);
    assert!(books.check_hold(&name(), Nanos(40), Stamp::default()).is_ok());
}

#[test]
fn a_hold_without_an_account_names_the_remedy() {
    let refusal = Ledger::default().check_hold(&name(), Nanos(1), Stamp::default()).unwrap_err();
    assert_eq!(refusal.code, Code::BudgetNoAccount);
    assert!(refusal.help.contains("budget set default"));
}

#[test]
fn unknown_spend_stays_held_and_a_second_settlement_changes_nothing() {
    // B4 B6
    let mut books = ledger(100);
    books.hold(&run(1), &name(), Nanos(60));
    books.settle(&run(1), Nanos(10), Nanos(20));
    let account = &books.accounts[&name()];
    assert_eq!((account.spent, account.held), (Nanos(10), Nanos(20)));
    let before = books.clone();
    books.settle(&run(1), Nanos(5), Nanos(0));
    assert_eq!(books, before);
}

#[test]
fn a_new_day_forgets_spend_but_not_holds_and_never_moves_back() {
    let day = |d: u64| Stamp { wall_ms: d * 86_400_000, boot_ms: 0 };
    let mut books = Ledger::default();
    books.set(&name(), Nanos(100), Period::Day, &period_key(Period::Day, day(10)));
    books.hold(&run(1), &name(), Nanos(50));
    books.settle(&run(1), Nanos(50), Nanos(0));
    books.hold(&run(2), &name(), Nanos(50));
    assert!(books.check_hold(&name(), Nanos(1), day(10)).is_err());
    let key = books.check_hold(&name(), Nanos(50), day(11)).unwrap().unwrap();
    books.open_period(&name(), &key);
    assert_eq!(books.accounts[&name()].spent, Nanos(0));
    assert_eq!(books.accounts[&name()].held, Nanos(50));
    assert_eq!(books.check_hold(&name(), Nanos(50), day(9)).unwrap(), None);
    books.open_period(&name(), &period_key(Period::Day, day(9)));
    assert_eq!(books.accounts[&name()].key, key);
}

#[test]
fn period_keys_are_utc_calendar_dates() {
    let at = Stamp { wall_ms: 1_795_910_400_000, boot_ms: 0 };
    assert_eq!(period_key(Period::Day, at), "2026-11-29");
    assert_eq!(period_key(Period::Month, at), "2026-11");
    assert_eq!(period_key(Period::Total, at), "total");
}

proptest! {
    // B1 B3: for every sequence of holds and settlements, spent + held <= limit as long as what is
    // reported stays below the hold, and sums agree.
    #[test]
    fn spent_and_held_never_exceed_the_limit(
        limit in 0u64..1_000,
        steps in proptest::collection::vec((0u64..20, 0u64..300, 0u64..300, any::<bool>()), 0..60),
    ) {
        let mut books = ledger(limit);
        for (id, a, b, settles) in steps {
            if settles {
                if let Some(hold) = books.holds.get(&run(id)).filter(|h| !h.settled).cloned() {
                    let reported = a.min(hold.amount.0);
                    let unknown = b.min(hold.amount.0 - reported);
                    let before = books.accounts[&name()].available();
                    books.settle(&run(id), Nanos(reported), Nanos(unknown));
                    prop_assert!(books.accounts[&name()].available() >= before);
                }
            } else if books.check_hold(&name(), Nanos(a), Stamp::default()).is_ok() {
                books.hold(&run(id), &name(), Nanos(a));
            }
            let account = &books.accounts[&name()];
            prop_assert!(account.spent.0 + account.held.0 <= limit);
            prop_assert_eq!(books.check(), Ok(()));
        }
    }
}
