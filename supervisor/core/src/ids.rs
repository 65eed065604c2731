//! Identifiers. Each has one constructor that checks its form; none can be made from guest input
//! without passing it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Code, Refusal};

/// Characters of a run id after its prefix: lower-case base 32 without look-alikes (Crockford).
pub const RUN_ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Random characters in a run id: 60 bits, refused on collision by the state machine.
pub const RUN_ID_CHARS: usize = 12;

/// A run: `r_` and twelve characters of Crockford base 32.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// What every id starts with, and no name of a run.
    pub const PREFIX: &str = "r_";

    /// Makes an id of 60 random bits that the driver drew.
    pub fn from_random(bits: u64) -> Self {
        let mut text = String::from(Self::PREFIX);
        for n in 0..RUN_ID_CHARS {
            let five = (bits >> (5 * n)) & 31;
            let index = usize::try_from(five).unwrap_or(0);
            text.push(char::from(RUN_ID_ALPHABET.get(index).copied().unwrap_or(b'0')));
        }
        RunId(text)
    }

    /// Parses a complete id.
    ///
    /// # Errors
    /// `process.no_such_run` when the text has another form.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let tail = text.strip_prefix(Self::PREFIX).unwrap_or("");
        let well_formed =
            tail.len() == RUN_ID_CHARS && tail.bytes().all(|b| RUN_ID_ALPHABET.contains(&b));
        if well_formed {
            Ok(RunId(text.to_owned()))
        } else {
            Err(Refusal::new(Code::ProcessNoSuchRun, format!("{text:?} is not a run id")))
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RunId {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        RunId::parse(&text)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! short_name {
    ($(#[$doc:meta])* $name:ident, $max:expr, $code:expr, $what:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses a name: letters, digits, `.`, `_`, `-` and `/`, not empty, not too long, not
            /// starting with `-` or `.`.
            ///
            /// # Errors
            /// The name's own code with the reason.
            pub fn parse(text: &str) -> Result<Self, Refusal> {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/:".contains(&b);
                let good = !text.is_empty()
                    && text.len() <= $max
                    && text.bytes().all(plain)
                    && !text.starts_with(['-', '.']);
                if good {
                    Ok($name(text.to_owned()))
                } else {
                    Err(Refusal::new($code, format!("{:?} is no {}", text, $what)).with_help(
                        format!("use 1 to {} of: letters, digits, . _ - / :", $max),
                    ))
                }
            }
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl TryFrom<String> for $name {
            type Error = Refusal;
            fn try_from(text: String) -> Result<Self, Refusal> {
                $name::parse(&text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

short_name!(
    /// A name a person gave a run; not unique over time, the newest wins.
    RunName, 64, Code::ManifestBadValue, "run name"
);
short_name!(
    /// A budget account.
    AccountName, 64, Code::BudgetBadAccount, "budget account"
);
short_name!(
    /// What makes a repeated request the same request (B4).
    IdempotencyKey, 128, Code::ManifestBadValue, "idempotency key"
);
short_name!(
    /// A step of a workflow, which a person approves.
    StepName, 128, Code::ManifestBadValue, "step of a workflow"
);

/// The kernel's boot id: identities of processes mean nothing in another boot (R1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BootId(pub String);

/// One life of the supervisor: 1 for the first start of a journal, then counted up.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct Generation(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_survives_text_and_refuses_other_forms() {
        let id = RunId::from_random(0x0123_4567_89ab_cdef);
        assert_eq!(RunId::parse(id.as_str()).unwrap(), id);
        for bad in
            ["", "r_", "r_0123456789a", "r_0123456789abc", "x_0123456789ab", "r_0123456789aI"]
        {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_refuse_options_paths_and_control_characters() {
        assert!(RunName::parse("workflow-42/step_3").is_ok());
        for bad in ["", "-x", ".hidden", "a b", "a\nb", "ä", &"x".repeat(65)] {
            assert!(RunName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
