//! SOCKS5 (RFC 1928), no authentication: the listener is the identity of the run. CONNECT is judged
//! and refused with "not allowed by ruleset", every other command with "not supported"; anything
//! malformed is closed without an answer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use atenea_core::Code;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::accept::Shared;
use crate::authority::{Authority, Host};
use crate::policy::Verdict;
use crate::{LIMITS, Name};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const COMMAND_NOT_SUPPORTED: u8 = 7;

/// Why a conversation ended without a verdict.
enum Ended {
    /// The peer went away or sent less than it announced.
    Gone,
    /// It said something that is not SOCKS5.
    Malformed,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Ended::Gone
    }
}

/// Answers one connection.
pub(crate) async fn converse<S>(mut stream: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match timeout(LIMITS.socks_time, talk(&mut stream, &shared)).await {
        Ok(Ok(()) | Err(Ended::Gone)) => {}
        Ok(Err(Ended::Malformed)) => shared.denials.record(Code::EgressBadRequest, b"socks"),
        Err(_) => shared.denials.record(Code::EgressLimit, b"socks time"),
    }
}

async fn talk<S>(stream: &mut S, shared: &Shared) -> Result<(), Ended>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    greet(stream).await?;
    let [version, command, reserved, kind] = read_array(stream).await?;
    if version != VERSION || reserved != 0 {
        return Err(Ended::Malformed);
    }
    let destination = read_destination(stream, kind).await?;
    let answer = if command == CONNECT {
        match shared.policy.judge(&destination) {
            Verdict::NotGranted => {
                let subject = destination.to_string();
                shared.denials.record(Code::EgressNotGranted, subject.as_bytes());
                NOT_ALLOWED
            }
        }
    } else {
        shared.denials.record(Code::EgressBadRequest, b"socks command");
        COMMAND_NOT_SUPPORTED
    };
    // Bound address 0.0.0.0:0: there is none.
    stream.write_all(&[VERSION, answer, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    stream.shutdown().await?;
    Ok(())
}

async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> Result<(), Ended> {
    let [version, count] = read_array(stream).await?;
    if version != VERSION || count == 0 {
        return Err(Ended::Malformed);
    }
    let mut methods = vec![0; usize::from(count)];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(Ended::Malformed);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    Ok(())
}

/// Destination address and port. A name is parsed as strictly as anywhere else; a dotted quad in
/// the place of a name is an address.
async fn read_destination<S: AsyncRead + Unpin>(
    stream: &mut S,
    kind: u8,
) -> Result<Authority, Ended> {
    let host = match kind {
        1 => Host::V4(Ipv4Addr::from(read_array::<4, S>(stream).await?)),
        4 => Host::V6(Ipv6Addr::from(read_array::<16, S>(stream).await?)),
        3 => {
            let mut name = vec![0; usize::from(stream.read_u8().await?)];
            stream.read_exact(&mut name).await?;
            let text = std::str::from_utf8(&name).map_err(|_| Ended::Malformed)?;
            match text.parse::<Ipv4Addr>() {
                Ok(address) => Host::V4(address),
                Err(_) => Host::Name(Name::parse(text).map_err(|_| Ended::Malformed)?),
            }
        }
        _ => return Err(Ended::Malformed),
    };
    match stream.read_u16().await? {
        0 => Err(Ended::Malformed),
        port => Ok(Authority { host, port }),
    }
}

async fn read_array<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "socks_tests.rs"]
mod tests;
