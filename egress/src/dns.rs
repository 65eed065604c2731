//! The DNS stub, one message at a time. It has no resolver, so no name of a guest leaves the
//! machine (E3): a name that is not granted is REFUSED, and nothing is granted in this version.
//! Pure: bytes in, an answer and a denial out. An answer is never longer than its query.

use atenea_core::Code;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::Name;

use crate::LIMITS;

/// Bytes of a DNS header.
const HEADER_BYTES: usize = 12;
/// What the stub says it can take by UDP; the smallest size everyone can send.
const UDP_PAYLOAD: u16 = 512;

/// What becomes of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is sent back; nothing when the message is no query at all.
    pub reply: Option<Vec<u8>>,
    /// Why it was refused.
    pub code: Code,
    /// The name asked for in lower case, escaped, without its final dot; else a fixed word.
    pub subject: String,
}

impl Answer {
    fn malformed(reply: Option<Vec<u8>>) -> Self {
        Answer { reply, code: Code::EgressBadRequest, subject: "dns".to_owned() }
    }
}

/// Answers one message.
pub fn answer(bytes: &[u8]) -> Answer {
    // Only a query with one question gets an answer: an answer to an answer could make a loop.
    if bytes.len() > LIMITS.dns_bytes || !is_single_query(bytes) {
        return Answer::malformed(None);
    }
    let parsed = Message::from_vec(bytes).ok();
    let Some((query, question)) = parsed.as_ref().and_then(|m| m.queries.first().map(|q| (m, q)))
    else {
        return Answer::malformed(Some(header_only(bytes, ResponseCode::FormErr)));
    };
    let name = text_of(question.name());
    let reply = refuse(query, bytes);
    Answer { reply: Some(reply), code: Code::EgressDnsRefused, subject: name }
}

/// QR 0, opcode QUERY, QDCOUNT 1.
fn is_single_query(bytes: &[u8]) -> bool {
    match bytes {
        [_, _, flags, _, 0, 1, ..] if bytes.len() >= HEADER_BYTES => flags & 0b1111_1000 == 0,
        _ => false,
    }
}

fn refuse(query: &Message, bytes: &[u8]) -> Vec<u8> {
    let mut reply = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.response_code = ResponseCode::Refused;
    reply.add_queries(query.queries.iter().cloned());
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD);
        reply.set_edns(edns);
    }
    match reply.to_vec() {
        Ok(reply) if reply.len() <= bytes.len() => reply,
        // A question that only fits when compressed: the header says it all.
        _ => header_only(bytes, ResponseCode::Refused),
    }
}

/// Twelve bytes: id and RD of the query, the code, no sections.
fn header_only(query: &[u8], code: ResponseCode) -> Vec<u8> {
    let byte = |at: usize| query.get(at).copied().unwrap_or(0);
    let recursion_desired = byte(2) & 1;
    let mut reply = vec![byte(0), byte(1), 0x80 | recursion_desired, code.low()];
    reply.resize(HEADER_BYTES, 0);
    reply
}

/// Labels joined by dots; a byte that would be ambiguous in that form is escaped.
fn text_of(name: &Name) -> String {
    let mut bytes = Vec::new();
    for label in name.iter() {
        if !bytes.is_empty() {
            bytes.push(b'.');
        }
        for byte in label {
            match byte.to_ascii_lowercase() {
                b'.' => bytes.extend_from_slice(b"\\x2e"),
                // Escaped with all other bytes that cannot be printed.
                other => bytes.push(other),
            }
        }
    }
    if bytes.is_empty() { ".".to_owned() } else { crate::denial::escape(&bytes) }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
