//! One request to the broker: one connection, one GET, one bounded answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest answer, head and body: grants and budget are a few kilobytes.
const ANSWER_BYTES: u64 = 1024 * 1024;
/// Header lines of an answer.
const ANSWER_FIELDS: usize = 32;
/// Time to connect, and time without a byte of the answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A variable is missing or has another form.
    Environment(String),
    /// No connection, or it broke.
    Unreached(String),
    /// The broker refused.
    Refused { status: u16, code: String, cause: String, help: String },
    /// Something answered that is not the broker of this version.
    NotUnderstood(String),
}

/// Where the broker is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place(SocketAddr);

impl Place {
    /// `http://ADDRESS:PORT`; no name: nothing is looked up.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let address = text.strip_prefix("http://").map(|t| t.strip_suffix('/').unwrap_or(t));
        address.and_then(|a| a.parse().ok()).map(Place).ok_or_else(|| {
            let wanted = "http://ADDRESS:PORT";
            Failure::Environment(format!("ATENEA_BROKER is {text:?}, not {wanted}"))
        })
    }
}

/// Asks for `path` and returns the JSON of a 200.
pub(crate) fn get(place: &Place, token: &str, path: &str) -> Result<Value, Failure> {
    // A line end in the token would become another header.
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Failure::Environment("ATENEA_TOKEN is not a token".to_owned()));
    }
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: atenea\r\nAuthorization: Bearer {token}\r\n\
         Accept: application/json\r\nConnection: close\r\n\r\n"
    );
    let answer = exchange(place, request.as_bytes())
        .map_err(|error| Failure::Unreached(error.to_string()))?;
    understand(&answer)
}

fn exchange(place: &Place, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&place.0, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Parses a whole answer.
fn understand(answer: &[u8]) -> Result<Value, Failure> {
    let odd = |what: &str| Failure::NotUnderstood(what.to_owned());
    let mut fields = [httparse::EMPTY_HEADER; ANSWER_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let length = match head.parse(answer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err(odd("it ends in the middle")),
        Err(error) => return Err(Failure::NotUnderstood(error.to_string())),
    };
    let field = |name: &str| {
        head.headers.iter().find(|f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
    };
    let body = answer.get(length..).unwrap_or(&[]);
    let announced = field("content-length").and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
    if announced != Some(body.len()) {
        return Err(odd("its body is not as long as announced"));
    }
    let status = head.code.unwrap_or(0);
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if status == 200 => Ok(value),
        Ok(value) => refused(status, &value),
        Err(_) => Err(Failure::NotUnderstood(format!("status {status} without a JSON body"))),
    }
}

fn refused(status: u16, body: &Value) -> Result<Value, Failure> {
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    match (text("code"), text("cause"), text("help")) {
        (Some(code), Some(cause), Some(help)) => {
            Err(Failure::Refused { status, code, cause, help })
        }
        _ => Err(Failure::NotUnderstood(format!("status {status} without a code"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_places() {
        let tcp = Place("127.0.0.1:7411".parse().unwrap());
        assert_eq!(Place::parse("http://127.0.0.1:7411").as_ref(), Ok(&tcp));
        assert_eq!(Place::parse("http://127.0.0.1:7411/"), Ok(tcp));
        for bad in ["", "127.0.0.1:7411", "http://localhost:7411", "http://127.0.0.1", "unix:/x"] {
            assert!(matches!(Place::parse(bad), Err(Failure::Environment(_))), "{bad}");
        }
    }

    #[test]
    fn answers_that_are_cut_chunked_or_no_json_are_not_understood() {
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{x",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n{}",
            "SSH-2.0-OpenSSH\r\n",
        ] {
            let got = understand(bad.as_bytes());
            assert!(matches!(got, Err(Failure::NotUnderstood(_))), "{bad:?}: {got:?}");
        }
        let good = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(understand(good.as_bytes()), Ok(serde_json::json!({})), "positive control");
    }

    #[test]
    fn a_token_with_a_line_end_is_never_sent() {
        // Nobody listens on port 0.
        let nowhere = Place("127.0.0.1:0".parse().unwrap());
        for bad in ["", "at_x\r\nX: y", "at x", "ä"] {
            let got = get(&nowhere, bad, "/v1/grants");
            assert!(matches!(got, Err(Failure::Environment(_))), "{bad:?}: {got:?}");
        }
        let got = get(&nowhere, "at_x", "/v1/grants");
        assert!(matches!(got, Err(Failure::Unreached(_))), "positive control: {got:?}");
    }
}
