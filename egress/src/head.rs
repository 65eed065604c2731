//! Strict request heads of the explicit proxy. A head that two parsers could read differently is
//! refused before anything in it is believed. Pure: bytes in, one request or one reason out.

use crate::authority::{Authority, AuthorityError};
use crate::limits::LIMITS;

/// What the client asked the proxy for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRequest {
    /// CONNECT, or a request in absolute form.
    pub form: Form,
    /// The destination; the same in the target and in Host (E2).
    pub authority: Authority,
    /// The method is HEAD: an answer has no body.
    pub is_head: bool,
}

/// The two forms of request a proxy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `CONNECT host:port`.
    Connect,
    /// `METHOD http://host/…`.
    Absolute,
}

/// Why a head is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// A line ends in a bare LF, or a CR stands alone.
    #[error("a line does not end in CR LF")]
    BareLineEnd,
    /// A control byte in the head.
    #[error("the head has a control byte")]
    ControlByte,
    /// A header line begins with a space: obsolete folding.
    #[error("a header line is folded")]
    Folded,
    /// The parser refuses it.
    #[error("the head is no HTTP/1 request head")]
    Syntax,
    /// More header lines than the bound.
    #[error("the head has too many header lines")]
    TooManyFields,
    /// `GET /path`: meant for an origin server, not for a proxy.
    #[error("the request is in origin form; this is a proxy, it takes CONNECT and absolute form")]
    OriginForm,
    /// Absolute form with another scheme than http.
    #[error("the scheme is not http; use CONNECT for anything else")]
    Scheme,
    /// Target or Host is no authority.
    #[error("{place} is not an authority: {reason}")]
    Authority {
        /// `the request target` or `Host`.
        place: &'static str,
        /// Which rule.
        reason: AuthorityError,
    },
    /// HTTP/1.1 without Host, or Host twice.
    #[error("there must be exactly one Host")]
    HostCount,
    /// Target and Host name different destinations (E2).
    #[error("the request target names {target} but Host names {host}")]
    HostDiffers {
        /// What the target names.
        target: Authority,
        /// What Host names.
        host: Authority,
    },
    /// The length of the body can be read in two ways, or a CONNECT has one.
    #[error("the length of the body is not clear")]
    BodyLength,
}

/// Where the head ends in `bytes`: just after the first empty line, bare line ends counted as line
/// ends so that a malformed head is found, not waited for.
pub fn end_of(bytes: &[u8]) -> Option<usize> {
    let mut line_start = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte != b'\n' {
            continue;
        }
        let line = bytes.get(line_start..at).unwrap_or(&[]);
        if line_start > 0 && (line.is_empty() || line == b"\r") {
            return Some(at + 1);
        }
        line_start = at + 1;
    }
    None
}

/// Parses one whole head.
///
/// # Errors
/// The first rule that does not hold.
pub fn parse(head: &[u8]) -> Result<ProxyRequest, HeadError> {
    check_bytes(head)?;
    let mut fields = [httparse::EMPTY_HEADER; LIMITS.head_fields];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyFields),
        _ => return Err(HeadError::Syntax),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(HeadError::Syntax);
    };
    let (form, authority) = parse_target(method, target)?;
    check_host(request.headers, &authority, minor)?;
    check_body_length(request.headers, form, minor)?;
    Ok(ProxyRequest { form, authority, is_head: method == "HEAD" })
}

/// The rules a tolerant parser lets pass: empty lines in front, line ends, folding, control bytes.
fn check_bytes(head: &[u8]) -> Result<(), HeadError> {
    if head.starts_with(b"\r\n") {
        return Err(HeadError::Syntax);
    }
    let mut before = 0;
    for (at, byte) in head.iter().enumerate() {
        let after = head.get(at + 1).copied();
        match *byte {
            b'\n' if before != b'\r' => return Err(HeadError::BareLineEnd),
            b'\r' if after != Some(b'\n') => return Err(HeadError::BareLineEnd),
            b'\n' if matches!(after, Some(b' ' | b'\t')) => return Err(HeadError::Folded),
            b'\r' | b'\n' | b'\t' => {}
            control if control.is_ascii_control() => return Err(HeadError::ControlByte),
            _ => {}
        }
        before = *byte;
    }
    Ok(())
}

fn parse_target(method: &str, target: &str) -> Result<(Form, Authority), HeadError> {
    let bad = |reason| HeadError::Authority { place: "the request target", reason };
    if method == "CONNECT" {
        return Ok((Form::Connect, Authority::parse(target).map_err(bad)?));
    }
    if target.starts_with('/') || target == "*" {
        return Err(HeadError::OriginForm);
    }
    let (scheme, rest) = target.split_once("://").ok_or(HeadError::OriginForm)?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HeadError::Scheme);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    Ok((Form::Absolute, Authority::parse_with_default(authority, 80).map_err(bad)?))
}

/// E2: one destination. HTTP/1.0 may leave Host out; then the target alone counts.
fn check_host(
    fields: &[httparse::Header<'_>],
    target: &Authority,
    minor: u8,
) -> Result<(), HeadError> {
    let hosts: Vec<&[u8]> = values(fields, "host").collect();
    let value = match hosts.as_slice() {
        [] if minor == 0 => return Ok(()),
        [one] => *one,
        _ => return Err(HeadError::HostCount),
    };
    let bad = |reason| HeadError::Authority { place: "Host", reason };
    let text = std::str::from_utf8(value).map_err(|_| bad(AuthorityError::BadByte))?;
    // A Host without port means the port of the target: 80 is left out by every client, 443 after
    // CONNECT by some.
    let host = Authority::parse_with_default(text, target.port).map_err(bad)?;
    if host == *target {
        Ok(())
    } else {
        Err(HeadError::HostDiffers { target: target.clone(), host })
    }
}

fn check_body_length(
    fields: &[httparse::Header<'_>],
    form: Form,
    minor: u8,
) -> Result<(), HeadError> {
    let lengths: Vec<&[u8]> = values(fields, "content-length").collect();
    let codings: Vec<&[u8]> = values(fields, "transfer-encoding").collect();
    let digits = |v: &[u8]| (1..=18).contains(&v.len()) && v.iter().all(u8::is_ascii_digit);
    let clear = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => true,
        ([length], []) => form == Form::Absolute && digits(length),
        ([], [coding]) => {
            form == Form::Absolute && minor == 1 && coding.eq_ignore_ascii_case(b"chunked")
        }
        _ => false,
    };
    if clear { Ok(()) } else { Err(HeadError::BodyLength) }
}

fn values<'h>(
    fields: &'h [httparse::Header<'h>],
    name: &'static str,
) -> impl Iterator<Item = &'h [u8]> {
    fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|f| f.value)
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
