//! Money as integer nano-dollars (10⁻⁹ USD): no floating point, no rounding in the ledger.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Code, Refusal};

/// Nano-dollars in one dollar.
pub const NANOS_PER_USD: u64 = 1_000_000_000;
/// The largest amount a person may write: a million dollars. Sums of 2⁶⁴ nanos stay far away.
pub const USD_MAX: u64 = 1_000_000;

/// An amount of money in nano-dollars, never negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Nothing.
    pub const ZERO: Nanos = Nanos(0);

    /// Parses a decimal number of dollars with at most nine decimals, such as `1.50`.
    ///
    /// # Errors
    /// `budget.bad_amount` for signs, exponents, empty parts, more decimals, or more than
    /// [`USD_MAX`].
    pub fn parse_usd(text: &str) -> Result<Self, Refusal> {
        let bad = |why: &str| {
            Refusal::new(Code::BudgetBadAmount, format!("{text:?} is not an amount: {why}"))
                .with_help("write dollars with at most nine decimals, for example 1.50")
        };
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) {
            return Err(bad("only digits and one point are allowed"));
        }
        if decimals.len() > 9 {
            return Err(bad("more than nine decimals"));
        }
        let usd: u64 = whole.parse().map_err(|_| bad("too large"))?;
        if usd > USD_MAX {
            return Err(bad("more than a million dollars"));
        }
        let fraction: u64 = format!("{decimals:0<9}").parse().map_err(|_| bad("bad decimals"))?;
        Ok(Nanos(usd * NANOS_PER_USD + fraction))
    }

    /// Sum; `None` on overflow.
    pub fn checked_add(self, other: Nanos) -> Option<Nanos> {
        self.0.checked_add(other.0).map(Nanos)
    }

    /// Difference; `None` below zero.
    pub fn checked_sub(self, other: Nanos) -> Option<Nanos> {
        self.0.checked_sub(other.0).map(Nanos)
    }
}

impl fmt::Display for Nanos {
    /// Dollars with as many decimals as are needed, at least none: `1.5`, `0`, `0.000000001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usd, rest) = (self.0 / NANOS_PER_USD, self.0 % NANOS_PER_USD);
        match rest {
            0 => write!(f, "{usd}"),
            _ if rest % 10_000_000 == 0 => write!(f, "{usd}.{:02}", rest / 10_000_000),
            _ => write!(f, "{usd}.{}", format!("{rest:09}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_parse_exactly_and_print_what_was_parsed() {
        for (text, nanos, shown) in [
            ("1.50", 1_500_000_000, "1.50"),
            ("0", 0, "0"),
            ("0.000000001", 1, "0.000000001"),
            ("1000000", 1_000_000 * NANOS_PER_USD, "1000000"),
        ] {
            let parsed = Nanos::parse_usd(text).unwrap();
            assert_eq!(parsed, Nanos(nanos));
            assert_eq!(parsed.to_string(), shown);
        }
    }

    #[test]
    fn amounts_that_are_not_plain_decimals_are_refused() {
        for bad in
            ["", "-1", "+1", "1e3", "1,5", ".5", "1.", "0x1", "1000001", "1.0000000001", "NaN"]
        {
            assert_eq!(Nanos::parse_usd(bad).unwrap_err().code, Code::BudgetBadAmount, "{bad}");
        }
    }
}
