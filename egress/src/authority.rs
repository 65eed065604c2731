//! Names, hosts and authorities. Each is parsed once, strictly, into a type; only that type is
//! judged, reported, and (when something can be granted) dialled. Pure: no lookup of any kind.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest name without its final dot (RFC 1035: 255 octets on the wire).
pub const NAME_BYTES: usize = 253;
/// Longest label.
pub const LABEL_BYTES: usize = 63;

/// Why a text is no name, host or authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// Nothing was there.
    #[error("the host is empty")]
    Empty,
    /// A byte that no name has: also NUL, space, `%`, `/`, upper-case is folded before.
    #[error("the host has a byte that is not allowed in names")]
    BadByte,
    /// `@`: user information makes two readings of one authority possible.
    #[error("user information is not allowed")]
    UserInfo,
    /// An empty label, or one over 63 bytes, or with `-` at an end.
    #[error("a label of the name is empty, too long, or begins or ends with '-'")]
    BadLabel,
    /// Over 253 bytes.
    #[error("the name is longer than 253 bytes")]
    TooLong,
    /// An `xn--` label that does not round-trip.
    #[error("an internationalised label is not in its canonical form")]
    BadALabel,
    /// Ends in a number but is no dotted quad: `127.1`, `0x7f.1`, `2130706433`.
    #[error("the host ends in a number but is not a dotted quad")]
    EndsInNumber,
    /// Not an IPv6 address in brackets; zone ids are never taken.
    #[error("the bracketed address is not an IPv6 address")]
    BadAddress,
    /// No `:PORT` where one is needed.
    #[error("the port is missing")]
    NoPort,
    /// Not 1 to 65535 in plain decimal.
    #[error("the port is not a number from 1 to 65535 in plain decimal")]
    BadPort,
}

/// A DNS name in the one form that is compared: lower case, A-labels, no final dot, two or more
/// readings impossible.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Parses a name. One final dot is dropped; letters become lower case.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        let bare = text.strip_suffix('.').unwrap_or(text);
        if bare.is_empty() {
            return Err(AuthorityError::Empty);
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if !bare.bytes().all(plain) {
            return Err(AuthorityError::BadByte);
        }
        if bare.len() > NAME_BYTES {
            return Err(AuthorityError::TooLong);
        }
        let name = bare.to_ascii_lowercase();
        for label in name.split('.') {
            check_label(label)?;
        }
        if ends_in_number(&name) {
            return Err(AuthorityError::EndsInNumber);
        }
        Ok(Name(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_label(label: &str) -> Result<(), AuthorityError> {
    let hyphen = label.starts_with('-') || label.ends_with('-');
    if label.is_empty() || label.len() > LABEL_BYTES || hyphen {
        return Err(AuthorityError::BadLabel);
    }
    if label.starts_with("xn--") {
        let (unicode, valid) = idna::domain_to_unicode(label);
        let back = idna::domain_to_ascii_strict(&unicode);
        if valid.is_err() || unicode.is_ascii() || back.ok().as_deref() != Some(label) {
            return Err(AuthorityError::BadALabel);
        }
    }
    Ok(())
}

/// The rule of the URL standard: the last label is all digits, or `0x` and hex digits. Such a text
/// is an address to some parsers and a name to others.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
    hex || last.bytes().all(|b| b.is_ascii_digit())
}

/// What stands before the port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name.
    Name(Name),
    /// A strict dotted quad.
    V4(Ipv4Addr),
    /// An address that stood in brackets.
    V6(Ipv6Addr),
}

impl Host {
    /// Parses a name, a dotted quad, or an IPv6 address in brackets.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        if text.contains('@') {
            return Err(AuthorityError::UserInfo);
        }
        if let Some(tail) = text.strip_prefix('[') {
            let inner = tail.strip_suffix(']').ok_or(AuthorityError::BadAddress)?;
            return inner.parse().map(Host::V6).map_err(|_| AuthorityError::BadAddress);
        }
        // The standard parser takes exactly four decimal numbers without leading zeros.
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Host::V4(address));
        }
        Name::parse(text).map(Host::Name)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name.as_str()),
            Host::V4(address) => write!(f, "{address}"),
            Host::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// A host and a port: the one form in which a destination exists here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authority {
    /// The host.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

impl Authority {
    /// Parses `HOST:PORT`.
    ///
    /// # Errors
    /// The first rule that does not hold; `NoPort` when there is no port.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        match split_port(text)? {
            (host, Some(port)) => Ok(Authority { host: Host::parse(host)?, port }),
            (host, None) => Host::parse(host).and(Err(AuthorityError::NoPort)),
        }
    }

    /// Parses `HOST` or `HOST:PORT`.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn parse_with_default(text: &str, port: u16) -> Result<Self, AuthorityError> {
        let (host, given) = split_port(text)?;
        Ok(Authority { host: Host::parse(host)?, port: given.unwrap_or(port) })
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), AuthorityError> {
    if text.contains('@') {
        return Err(AuthorityError::UserInfo);
    }
    // In brackets every colon but the one after them belongs to the address.
    let from =
        if text.starts_with('[') { text.find(']').ok_or(AuthorityError::BadAddress)? } else { 0 };
    match text.get(from..).and_then(|tail| tail.find(':')).map(|at| from + at) {
        None => Ok((text, None)),
        Some(at) => {
            let (host, port) = text.split_at(at);
            parse_port(port.strip_prefix(':').unwrap_or("")).map(|port| (host, Some(port)))
        }
    }
}

fn parse_port(text: &str) -> Result<u16, AuthorityError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits || text.starts_with('0') {
        return Err(AuthorityError::BadPort);
    }
    text.parse().map_err(|_| AuthorityError::BadPort)
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
