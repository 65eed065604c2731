use std::str::FromStr;

use hickory_proto::op::Query;
use hickory_proto::rr::{DNSClass, RecordType};
use proptest::prelude::*;

use super::*;

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
    message
}

fn reply_of(bytes: &[u8]) -> Message {
    Message::from_vec(&answer(bytes).reply.expect("an answer")).unwrap()
}

/// E3
#[test]
fn every_type_of_every_name_is_refused_with_the_question_repeated() {
    use RecordType::*;
    for kind in [A, AAAA, HTTPS, SVCB, ANY, TXT, MX, NS, SOA, PTR, SRV, CNAME, NULL, AXFR] {
        for name in ["example.com.", "LocalHost.", ".", "169.254.169.254.", "a.b.c.internal."] {
            let bytes = query(name, kind).to_vec().unwrap();
            let reply = reply_of(&bytes);
            assert_eq!(reply.metadata.response_code, ResponseCode::Refused, "{name} {kind}");
            assert_eq!(reply.metadata.id, 0x1234);
            assert_eq!(reply.metadata.message_type, MessageType::Response);
            assert!(reply.metadata.recursion_desired);
            assert_eq!(reply.queries, query(name, kind).queries);
            assert!(reply.answers.is_empty() && reply.authorities.is_empty());
            assert_eq!(answer(&bytes).code, Code::EgressDnsRefused);
        }
    }
}

#[test]
fn edns_is_answered_with_edns_and_no_answer_is_longer_than_its_query() {
    for name in ["example.com.", "a.", "."] {
        let mut message = query(name, RecordType::A);
        let plain = message.to_vec().unwrap();
        let mut edns = Edns::new();
        edns.set_max_payload(4096).set_version(0).set_dnssec_ok(true);
        message.set_edns(edns);
        let bytes = message.to_vec().unwrap();
        for bytes in [plain, bytes.clone()] {
            assert!(answer(&bytes).reply.unwrap().len() <= bytes.len());
        }
        let reply = reply_of(&bytes);
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
        assert_eq!(reply.edns.expect("EDNS in the answer").max_payload(), UDP_PAYLOAD);
    }
}

#[test]
fn the_subject_is_the_name_in_lower_case_escaped_and_bounded() {
    for (name, subject) in [
        ("Secret.EXAMPLE.com.", "secret.example.com"),
        (".", "."),
        ("xn--mnchen-3ya.de.", "xn--mnchen-3ya.de"),
    ] {
        let bytes = query(name, RecordType::A).to_vec().unwrap();
        assert_eq!(answer(&bytes).subject, subject);
    }
    let odd = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x06a.\x1b[\n\xff\x03com\0\0\x01\0\x01";
    assert_eq!(answer(odd).subject, "a\\\\x2e\\x1b[\\n\\xff.com");
    let mut long = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0".to_vec();
    for _ in 0..3 {
        long.push(63);
        long.extend_from_slice(&[0xff; 63]);
    }
    long.extend_from_slice(b"\0\0\x01\0\x01");
    let answer = answer(&long);
    assert_eq!(answer.code, Code::EgressDnsRefused);
    assert!(answer.subject.len() <= LIMITS.subject_bytes);
}

#[test]
fn what_is_no_query_with_one_question_gets_no_answer() {
    let good = query("example.com.", RecordType::A).to_vec().unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let mut two = query("a.example.", RecordType::A);
    two.add_query(Query::query(Name::from_str("b.example.").unwrap(), RecordType::A));
    for bytes in [
        vec![],
        good[..11].to_vec(),
        with(2, 0x80),                 // a response
        with(2, 0x28),                 // opcode UPDATE
        with(2, 0x20),                 // opcode NOTIFY
        with(5, 0),                    // no question
        two.to_vec().unwrap(),         // two questions
        vec![0; LIMITS.dns_bytes + 1], // too long
    ] {
        let answer = answer(&bytes);
        assert_eq!(answer, Answer::malformed(None), "{bytes:?}");
    }
    assert!(answer(&good).reply.is_some(), "positive control");
}

#[test]
fn a_query_that_does_not_parse_gets_a_bare_formerr() {
    let good = query("example.com.", RecordType::A).to_vec().unwrap();
    let mut cut = good.clone();
    cut.truncate(good.len() - 3);
    let mut lying = good.clone();
    lying[11] = 9; // nine additional records announced, none there
    let looped = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\xc0\x0c\0\x01\0\x01".to_vec();
    let bare = good[..12].to_vec();
    for bytes in [cut, lying, looped, bare] {
        let answer = answer(&bytes);
        assert_eq!(answer.code, Code::EgressBadRequest);
        let reply = answer.reply.expect("FORMERR");
        assert_eq!(reply, [0x12, 0x34, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn other_classes_and_update_records_are_refused_too() {
    let mut message = query("version.bind.", RecordType::TXT);
    message.queries[0].set_query_class(DNSClass::CH);
    let reply = reply_of(&message.to_vec().unwrap());
    assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
}

proptest! {
    #[test]
    fn no_bytes_panic_and_no_answer_is_longer(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Some(reply) = answer(&bytes).reply {
            prop_assert!(reply.len() <= bytes.len() && reply.len() >= HEADER_BYTES);
        }
    }

    #[test]
    fn no_body_after_a_good_header_panics_or_amplifies(
        tail in prop::collection::vec(any::<u8>(), 0..600),
        counts in any::<[u8; 6]>(),
    ) {
        let mut bytes = b"\x12\x34\x01\x00\0\x01".to_vec();
        bytes.extend_from_slice(&counts.map(|c| c & 3));
        bytes.extend_from_slice(&tail);
        let answer = answer(&bytes);
        prop_assert!(answer.subject.len() <= LIMITS.subject_bytes);
        if let Some(reply) = answer.reply {
            prop_assert!(reply.len() <= bytes.len());
        }
    }
}
