//! The one form in which anything is refused: stable code, cause, remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Code;

/// A refusal or failure a person or program can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Refusal {
    /// Stable code; see `docs/errors/`.
    pub code: Code,
    /// What was found, with the values that disagree.
    pub cause: String,
    /// What to do about it; the code's own remedy when nothing more exact is known.
    pub help: String,
}

impl Refusal {
    /// A refusal with the code's own remedy.
    pub fn new(code: Code, cause: impl Into<String>) -> Self {
        Refusal { code, cause: cause.into(), help: code.help().to_owned() }
    }

    /// Replaces the remedy with a more exact one.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}\n  help: {}", self.code, self.cause, self.help)
    }
}
