//! Which token belongs to which run. One table is one life of the supervisor: a token of an
//! earlier generation is unknown here by construction (T1).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use atenea_core::{Generation, RunId};
use subtle::{Choice, ConstantTimeEq};

use crate::token::{Token, TokenHash, has_form};

/// Why no token was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MintError {
    /// The run belongs to another life of the supervisor.
    #[error("the run is of generation {asked}, this supervisor is generation {current}")]
    OtherGeneration {
        /// Of the run.
        asked: u64,
        /// Of this table.
        current: u64,
    },
    /// There is one already; a second would make the first one live on unseen.
    #[error("run {run} has a token already")]
    HasToken {
        /// Which run.
        run: RunId,
    },
    /// The kernel gave no random bytes.
    #[error("no random bytes for the token of run {run}")]
    NoRandom {
        /// Which run.
        run: RunId,
        /// Why.
        source: getrandom::Error,
    },
}

/// Why a presented token is refused. The guest is told the same for all but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Nothing was presented.
    #[error("no token was presented")]
    Missing,
    /// Not the form of a token, or several different ones.
    #[error("what was presented is no token")]
    Malformed,
    /// A valid token of another run: it was carried from one run into another.
    #[error("the token is that of another run")]
    Foreign,
    /// Forged, revoked, or of an earlier generation.
    #[error("the token is not valid")]
    Unknown,
}

/// The live tokens of one supervisor life.
#[derive(Debug)]
pub struct TokenTable {
    generation: Generation,
    hashes: Mutex<BTreeMap<RunId, TokenHash>>,
}

impl TokenTable {
    /// An empty table for this life of the supervisor.
    pub fn new(generation: Generation) -> Self {
        TokenTable { generation, hashes: Mutex::new(BTreeMap::new()) }
    }

    /// Makes the token of a run and keeps its hash.
    ///
    /// # Errors
    /// The run is of another generation or has a token, or there are no random bytes.
    pub fn mint(&self, run: &RunId, generation: Generation) -> Result<Token, MintError> {
        // T1: a token is of one generation.
        if generation != self.generation {
            let (asked, current) = (generation.0, self.generation.0);
            return Err(MintError::OtherGeneration { asked, current });
        }
        let token =
            Token::draw().map_err(|source| MintError::NoRandom { run: run.clone(), source })?;
        let mut hashes = self.lock();
        if hashes.contains_key(run) {
            return Err(MintError::HasToken { run: run.clone() });
        }
        hashes.insert(run.clone(), token.hash());
        Ok(token)
    }

    /// Whether `presented` is the live token of the run that owns the listener it came through.
    /// Takes the same time for every text that has the form of a token: each live hash is compared
    /// whole, whatever was found before (T1). That the run is the listener's is T2.
    ///
    /// # Errors
    /// Why it is not.
    pub fn verify(&self, presented: &[u8], run_of_listener: &RunId) -> Result<(), TokenError> {
        if presented.is_empty() {
            return Err(TokenError::Missing);
        }
        if !has_form(presented) {
            return Err(TokenError::Malformed);
        }
        let hash = TokenHash::of(presented);
        let (mut own, mut other) = (Choice::from(0), Choice::from(0));
        for (run, live) in self.lock().iter() {
            let equal = live.ct_eq(&hash);
            // Run ids are no secret.
            if run == run_of_listener {
                own |= equal;
            } else {
                other |= equal;
            }
        }
        match (bool::from(own), bool::from(other)) {
            (true, _) => Ok(()),
            (false, true) => Err(TokenError::Foreign),
            (false, false) => Err(TokenError::Unknown),
        }
    }

    /// Forgets the token of a run: from here on nothing verifies for it (C2). Doing it again
    /// changes nothing.
    pub fn revoke(&self, run: &RunId) {
        self.lock().remove(run);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, TokenHash>> {
        // One insert or remove is one statement: a poisoned lock holds good data.
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Generation = Generation(4);

    fn run(n: u64) -> RunId {
        RunId::from_random(n)
    }

    fn verify(table: &TokenTable, token: &Token, run: &RunId) -> Result<(), TokenError> {
        table.verify(token.expose().as_bytes(), run)
    }

    /// T1
    #[test]
    fn a_token_is_valid_for_its_run_until_it_is_revoked_and_for_no_other_run() {
        let table = TokenTable::new(NOW);
        let (a, b) = (table.mint(&run(1), NOW).unwrap(), table.mint(&run(2), NOW).unwrap());
        assert_eq!(verify(&table, &a, &run(1)), Ok(()));
        assert_eq!(verify(&table, &b, &run(2)), Ok(()));
        assert_eq!(verify(&table, &a, &run(2)), Err(TokenError::Foreign));
        assert_eq!(verify(&table, &a, &run(3)), Err(TokenError::Foreign));
        table.revoke(&run(1));
        table.revoke(&run(1));
        assert_eq!(verify(&table, &a, &run(1)), Err(TokenError::Unknown));
        assert_eq!(verify(&table, &b, &run(2)), Ok(()), "the other run keeps its token");
    }

    /// T1
    #[test]
    fn forged_malformed_and_missing_tokens_are_refused_with_their_reason() {
        let table = TokenTable::new(NOW);
        let token = table.mint(&run(1), NOW).unwrap();
        let text = token.expose();
        let last = if text.ends_with('0') { "1" } else { "0" };
        let forged = format!("{}{last}", &text[..text.len() - 1]);
        for (presented, reason) in [
            (String::new(), TokenError::Missing),
            ("secret".to_owned(), TokenError::Malformed),
            (text.to_uppercase(), TokenError::Malformed),
            (format!("{text} "), TokenError::Malformed),
            (forged, TokenError::Unknown),
            (Token::draw().unwrap().expose().to_owned(), TokenError::Unknown),
        ] {
            assert_eq!(table.verify(presented.as_bytes(), &run(1)), Err(reason), "{presented}");
        }
        assert_eq!(verify(&table, &token, &run(1)), Ok(()), "positive control");
    }

    /// T1
    #[test]
    fn a_token_of_an_earlier_generation_is_unknown_and_none_can_be_made_for_one() {
        let before = TokenTable::new(Generation(3));
        let old = before.mint(&run(1), Generation(3)).unwrap();
        let table = TokenTable::new(NOW);
        assert_eq!(verify(&table, &old, &run(1)), Err(TokenError::Unknown));
        for other in [Generation(3), Generation(5)] {
            let error = table.mint(&run(1), other).unwrap_err();
            assert!(matches!(error, MintError::OtherGeneration { current: 4, .. }), "{error}");
        }
        let new = table.mint(&run(1), NOW).unwrap();
        assert_eq!(verify(&table, &old, &run(1)), Err(TokenError::Unknown));
        assert_eq!(verify(&table, &new, &run(1)), Ok(()));
    }

    #[test]
    fn a_run_has_one_token_and_a_new_one_only_after_the_old_was_revoked() {
        let table = TokenTable::new(NOW);
        let first = table.mint(&run(1), NOW).unwrap();
        let error = table.mint(&run(1), NOW).unwrap_err();
        assert!(matches!(error, MintError::HasToken { .. }), "{error}");
        table.revoke(&run(1));
        let second = table.mint(&run(1), NOW).unwrap();
        assert_eq!(verify(&table, &first, &run(1)), Err(TokenError::Unknown));
        assert_eq!(verify(&table, &second, &run(1)), Ok(()));
    }

    /// T1: comparison goes through `subtle`; a derived or hand-written equality of hashes would let
    /// one write `==` instead. The source itself is the evidence.
    #[test]
    fn hashes_have_no_equality_but_the_constant_time_one() {
        let source = include_str!("token.rs");
        let (product, _) = source.split_once("#[cfg(test)]").unwrap();
        assert!(product.contains("impl ConstantTimeEq for TokenHash"));
        assert!(
            !product.contains("PartialEq for") && !product.contains("derive(Clone, Copy, Part")
        );
        let table = include_str!("table.rs");
        let (product, _) = table.split_once("#[cfg(test)]").unwrap();
        assert!(product.contains("live.ct_eq(&hash)"));
    }
}
