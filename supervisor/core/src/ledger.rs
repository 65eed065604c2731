//! Accounts and holds, after the two-phase transfers of accounting systems: a hold sets the worst
//! case aside, settlement spends what was reported, keeps what is unknown and releases the rest.
//! A hold is resolved at most once (B4).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::{Period, Stamp};
use crate::{AccountName, Code, Nanos, Refusal, RunId};

/// One account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Spent and held together never exceed this (B1).
    pub limit: Nanos,
    /// Calendar period of `spent`.
    pub per: Period,
    /// The period that is open, for example `2026-11`; never moves back.
    pub key: String,
    /// Reported spend of the open period.
    pub spent: Nanos,
    /// Sum of all holds, unknown spend included.
    pub held: Nanos,
}

impl Account {
    /// What can still be held.
    pub fn available(&self) -> Nanos {
        let used = self.spent.0.saturating_add(self.held.0);
        Nanos(self.limit.0.saturating_sub(used))
    }
}

/// Money set aside for one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Who pays.
    pub account: AccountName,
    /// What is set aside now.
    pub amount: Nanos,
    /// Settled: only unknown spend is left in `amount` (B6).
    pub settled: bool,
}

/// All accounts and holds.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Accounts by name.
    pub accounts: BTreeMap<AccountName, Account>,
    /// Holds by run; a hold of zero is removed.
    pub holds: BTreeMap<RunId, Hold>,
}

/// The key of the period that `at` lies in, UTC.
pub fn period_key(per: Period, at: Stamp) -> String {
    let millis = i64::try_from(at.wall_ms).unwrap_or(0);
    let stamp = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let date = jiff::tz::Offset::UTC.to_datetime(stamp).date();
    match per {
        Period::Day => format!("{:04}-{:02}-{:02}", date.year(), date.month(), date.day()),
        Period::Month => format!("{:04}-{:02}", date.year(), date.month()),
        Period::Total => "total".to_owned(),
    }
}

impl Ledger {
    /// Whether `amount` can be held in `account` once the period of `at` is open; answers with the
    /// new period's key when it has to be opened first.
    ///
    /// # Errors
    /// `budget.no_account` or `budget.insufficient`.
    pub fn check_hold(
        &self,
        account: &AccountName,
        amount: Nanos,
        at: Stamp,
    ) -> Result<Option<String>, Refusal> {
        let Some(found) = self.accounts.get(account) else {
            let cause =
                format!("there is no budget account {account:?}", account = account.as_str());
            return Err(Refusal::new(Code::BudgetNoAccount, cause)
                .with_help(format!("make it: atenea-sup budget set {account} USD")));
        };
        let key = period_key(found.per, at);
        // Periods never move back: an older key means the wall clock was set back.
        let opens = key > found.key;
        let mut view = found.clone();
        if opens {
            view.spent = Nanos::ZERO;
        }
        // B1, B2: the worst case has to fit before anything is made.
        if amount > view.available() {
            let cause = format!(
                "account {account} has ${} of ${} left (${} spent, ${} held), ${amount} was asked",
                view.available(),
                view.limit,
                view.spent,
                view.held
            );
            return Err(Refusal::new(Code::BudgetInsufficient, cause));
        }
        Ok(opens.then_some(key))
    }

    /// Whether an account can get this limit; answers whether its next period, `key`, has to be
    /// opened first.
    ///
    /// # Errors
    /// `budget.below_used`.
    pub fn check_set(
        &self,
        account: &AccountName,
        limit: Nanos,
        per: Period,
        key: &str,
    ) -> Result<bool, Refusal> {
        let Some(found) = self.accounts.get(account) else { return Ok(false) };
        let opens = found.per == per && *key > *found.key;
        let spent = if opens { Nanos::ZERO } else { found.spent };
        let used = Nanos(spent.0.saturating_add(found.held.0));
        // B1: a limit is never set below what is spent and held.
        if limit < used {
            let cause = format!("${spent} is spent and ${} held of account {account}", found.held);
            let help = format!("set ${used} or more; holds are released when their runs settle");
            return Err(Refusal::new(Code::BudgetBelowUsed, cause).with_help(help));
        }
        Ok(opens)
    }

    pub(crate) fn set(&mut self, name: &AccountName, limit: Nanos, per: Period, key: &str) {
        let account = self.accounts.entry(name.clone()).or_insert_with(|| Account {
            limit,
            per,
            key: key.to_owned(),
            spent: Nanos::ZERO,
            held: Nanos::ZERO,
        });
        account.limit = limit;
        if account.per != per {
            account.per = per;
            account.key = key.to_owned();
        }
    }

    pub(crate) fn open_period(&mut self, name: &AccountName, key: &str) {
        if let Some(account) = self.accounts.get_mut(name)
            && *key > *account.key
        {
            account.key = key.to_owned();
            account.spent = Nanos::ZERO;
        }
    }

    pub(crate) fn hold(&mut self, run: &RunId, name: &AccountName, amount: Nanos) {
        // B4: one hold a run; a repeated event changes nothing.
        if self.holds.contains_key(run) {
            return;
        }
        if let Some(account) = self.accounts.get_mut(name) {
            account.held = Nanos(account.held.0.saturating_add(amount.0));
            let hold = Hold { account: name.clone(), amount, settled: false };
            self.holds.insert(run.clone(), hold);
        }
    }

    /// Resolves a hold: `reported` is spent, `unknown` stays held, the rest is released.
    pub(crate) fn settle(&mut self, run: &RunId, reported: Nanos, unknown: Nanos) {
        let Some(hold) = self.holds.get_mut(run) else { return };
        // B4: at most once.
        if hold.settled {
            return;
        }
        // B3, B6: unknown spend never exceeds the hold and is never taken for zero.
        let kept = unknown.min(hold.amount);
        if let Some(account) = self.accounts.get_mut(&hold.account) {
            let released = Nanos(hold.amount.0.saturating_sub(kept.0));
            account.held = Nanos(account.held.0.saturating_sub(released.0));
            account.spent = Nanos(account.spent.0.saturating_add(reported.0));
        }
        hold.amount = kept;
        hold.settled = true;
        if kept == Nanos::ZERO {
            self.holds.remove(run);
        }
    }

    /// Checks that every account's sum of holds is what its holds add up to.
    ///
    /// # Errors
    /// The account that disagrees, in words.
    pub fn check(&self) -> Result<(), String> {
        for (name, account) in &self.accounts {
            let holds = self.holds.values().filter(|h| h.account == *name);
            let sum: u64 = holds.map(|h| h.amount.0).sum();
            if sum != account.held.0 {
                return Err(format!(
                    "account {name}: holds add up to {sum}, held says {}",
                    account.held.0
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
