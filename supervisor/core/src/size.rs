//! Quantities people write: `2GiB`, `30m`, `1.5` CPUs, `256` processes.
//!
//! Each type holds the exact value and has one canonical text, so that two spellings of the same
//! quantity are the same manifest and have the same digest.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The largest integer that JSON numbers hold exactly (RFC 8785): larger ones would change on the
/// way through a canonical digest.
pub const INTEGER_MAX: u64 = (1 << 53) - 1;
/// The longest duration: a hundred years of 365 days. Sums with a boot clock stay far below 2⁶³.
pub const DURATION_MS_MAX: u64 = 100 * 365 * 24 * 3_600_000;
/// The least CPU share: the kernel's smallest quota is 1 ms in a period of 100 ms.
pub const CPU_MILLIS_MIN: u64 = 10;
/// The largest CPU share that is believed: 4096 CPUs.
pub const CPU_MILLIS_MAX: u64 = 4_096_000;
/// Longer texts are no quantity; also bounds what an error message repeats.
const TEXT_MAX: usize = 64;

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// The text has another form.
    #[error("{text:?} is not {what}: {why}")]
    Form {
        /// What was written.
        text: String,
        /// What was wanted.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The value is zero or negative.
    #[error("{text} is not positive: a limit of nothing allows nothing")]
    NotPositive {
        /// What was written.
        text: String,
    },
    /// The value is outside of what can be enforced.
    #[error("{text} is outside {min} to {max}")]
    OutOfRange {
        /// What was written.
        text: String,
        /// Least value.
        min: String,
        /// Largest value.
        max: String,
    },
}

fn form(text: &str, what: &'static str, why: &'static str) -> QuantityError {
    QuantityError::Form { text: text.chars().take(TEXT_MAX).collect(), what, why }
}

/// Digits with at most nine decimals as a number of 10⁻⁹.
fn decimal_nanos(text: &str) -> Option<u128> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || whole.len() > 20 || decimals.len() > 9 {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = format!("{decimals:0<9}").parse().ok()?;
    Some(whole * 1_000_000_000 + fraction)
}

/// Units of sizes. Letters alone are binary, as container tools and systemd read them.
const SIZE_UNITS: [(&str, u64); 15] = [
    ("B", 1),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("KB", 1_000),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("T", 1 << 40),
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("", 1),
];

/// A number of bytes, never zero: `2GiB`, `1.5 MiB`, `500MB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    /// A size of `bytes`; `None` for zero and for more than [`INTEGER_MAX`].
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        if bytes == 0 || bytes > INTEGER_MAX { None } else { Some(Size(bytes)) }
    }

    /// The bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Parses a number and a unit; no unit means bytes.
    ///
    /// # Errors
    /// When the text has another form, is zero, is no whole number of bytes or is too large.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        const WHAT: &str = "a size";
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        if number.is_empty() && text.starts_with('-') {
            return Err(QuantityError::NotPositive { text: text.chars().take(TEXT_MAX).collect() });
        }
        let nanos = decimal_nanos(number)
            .ok_or_else(|| form(text, WHAT, "write a number and a unit, for example 2GiB"))?;
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let factor = SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| u128::from(*factor))
            .ok_or_else(|| form(text, WHAT, "units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"))?;
        let out_of_range = || QuantityError::OutOfRange {
            text: text.to_owned(),
            min: "1B".into(),
            max: Size(INTEGER_MAX).to_string(),
        };
        let scaled = nanos.checked_mul(factor).ok_or_else(out_of_range)?;
        if !scaled.is_multiple_of(1_000_000_000) {
            return Err(form(text, WHAT, "it is no whole number of bytes"));
        }
        if scaled == 0 {
            return Err(QuantityError::NotPositive { text: text.to_owned() });
        }
        u64::try_from(scaled / 1_000_000_000)
            .ok()
            .and_then(Size::from_bytes)
            .ok_or_else(out_of_range)
    }
}

impl fmt::Display for Size {
    /// The largest binary unit that divides the value: `2GiB`, `1536MiB`, `1000B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1024)]
        {
            if self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// A positive number of milliseconds: `30m`, `1h 30m`, `500ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(u64);

impl Millis {
    /// A duration of `ms`; `None` for zero and for more than [`DURATION_MS_MAX`].
    pub const fn from_ms(ms: u64) -> Option<Self> {
        if ms == 0 || ms > DURATION_MS_MAX { None } else { Some(Millis(ms)) }
    }

    /// The milliseconds.
    pub const fn ms(self) -> u64 {
        self.0
    }

    /// Parses numbers with units: `ms`, `s`, `m`, `h`, `d` and the longer names.
    ///
    /// # Errors
    /// When the text has another form, is zero, is no whole number of milliseconds or too long.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        const WHAT: &str = "a duration";
        if text.trim_start().starts_with('-') {
            return Err(QuantityError::NotPositive { text: text.chars().take(TEXT_MAX).collect() });
        }
        if text.len() > TEXT_MAX {
            return Err(form(text, WHAT, "it is too long"));
        }
        let duration: Duration = humantime::parse_duration(text).map_err(|_| {
            form(text, WHAT, "write a number and a unit, for example 30m or 1h 30m")
        })?;
        if duration.is_zero() {
            return Err(QuantityError::NotPositive { text: text.to_owned() });
        }
        if !duration.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(form(text, WHAT, "it is no whole number of milliseconds"));
        }
        u64::try_from(duration.as_millis()).ok().and_then(Millis::from_ms).ok_or_else(|| {
            QuantityError::OutOfRange {
                text: text.to_owned(),
                min: "1ms".into(),
                max: Millis(DURATION_MS_MAX).to_string(),
            }
        })
    }
}

impl fmt::Display for Millis {
    /// The largest unit that divides the value: `30m`, `90m`, `1500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
            if self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}ms", self.0)
    }
}

/// CPU bandwidth in thousandths of a CPU, written as a number of CPUs: `2`, `0.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u64);

impl Cpus {
    /// A share of `millis`; `None` below [`CPU_MILLIS_MIN`] and above [`CPU_MILLIS_MAX`].
    pub const fn from_millis(millis: u64) -> Option<Self> {
        if millis < CPU_MILLIS_MIN || millis > CPU_MILLIS_MAX { None } else { Some(Cpus(millis)) }
    }

    /// Thousandths of a CPU.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Parses a decimal number of CPUs with at most three decimals.
    ///
    /// # Errors
    /// When the text has another form or the value cannot be enforced.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        const WHAT: &str = "a number of CPUs";
        if text.starts_with('-') {
            return Err(QuantityError::NotPositive { text: text.chars().take(TEXT_MAX).collect() });
        }
        let nanos =
            decimal_nanos(text).ok_or_else(|| form(text, WHAT, "write for example 2 or 0.5"))?;
        if nanos == 0 {
            return Err(QuantityError::NotPositive { text: text.to_owned() });
        }
        if !nanos.is_multiple_of(1_000_000) {
            return Err(form(text, WHAT, "at most three decimals are kept"));
        }
        u64::try_from(nanos / 1_000_000).ok().and_then(Cpus::from_millis).ok_or_else(|| {
            QuantityError::OutOfRange {
                text: text.to_owned(),
                min: Cpus(CPU_MILLIS_MIN).to_string(),
                max: Cpus(CPU_MILLIS_MAX).to_string(),
            }
        })
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1_000 {
            0 => write!(f, "{}", self.0 / 1_000),
            rest => {
                let decimals = format!("{rest:03}");
                write!(f, "{}.{}", self.0 / 1_000, decimals.trim_end_matches('0'))
            }
        }
    }
}

/// A positive integer that JSON holds exactly: processes, calls, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(u64);

impl Count {
    /// A count; `None` for zero and for more than [`INTEGER_MAX`].
    pub const fn new(value: u64) -> Option<Self> {
        if value == 0 || value > INTEGER_MAX { None } else { Some(Count(value)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    fn from_i128(value: i128) -> Result<Self, QuantityError> {
        if value <= 0 {
            return Err(QuantityError::NotPositive { text: value.to_string() });
        }
        u64::try_from(value).ok().and_then(Count::new).ok_or_else(|| QuantityError::OutOfRange {
            text: value.to_string(),
            min: "1".into(),
            max: INTEGER_MAX.to_string(),
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Reads a quantity written as text; a number that is zero or negative is told apart from one
/// that merely lacks its unit.
struct TextVisitor<T>(&'static str, fn(&str) -> Result<T, QuantityError>);

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        match value {
            0 => Err(E::custom(QuantityError::NotPositive { text: "0".into() })),
            _ => Err(E::invalid_type(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        match value {
            ..=0 => Err(E::custom(QuantityError::NotPositive { text: value.to_string() })),
            _ => Err(E::invalid_type(Unexpected::Signed(value), &self)),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        if value <= 0.0 {
            return Err(E::custom(QuantityError::NotPositive { text: value.to_string() }));
        }
        Err(E::invalid_type(Unexpected::Float(value), &self))
    }
}

struct CpusVisitor;

impl Visitor<'_> for CpusVisitor {
    type Value = Cpus;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of CPUs such as 2.0")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Cpus, E> {
        Cpus::parse(&value.to_string()).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Cpus, E> {
        Cpus::parse(&value.to_string()).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Cpus, E> {
        // The shortest text of a float is what was written, so no rounding is decided here.
        Cpus::parse(&value.to_string()).map_err(E::custom)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a positive whole number")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Count, E> {
        Count::from_i128(value.into()).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Count, E> {
        Count::from_i128(value.into()).map_err(E::custom)
    }
}

macro_rules! as_text {
    ($name:ident, $what:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextVisitor($what, $name::parse))
            }
        }
    };
}

as_text!(Size, "a size as text, for example \"2GiB\"");
as_text!(Millis, "a duration as text, for example \"30m\"");

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // At most 22 bits: exact up to the last of its three decimals.
        let millis = u32::try_from(self.0).unwrap_or(u32::MAX);
        serializer.serialize_f64(f64::from(millis) / 1_000.0)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CpusVisitor)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

#[cfg(test)]
#[path = "size/tests.rs"]
mod tests;
