use std::sync::Mutex;

use tokio::io::duplex;
use tokio::sync::Semaphore;

use super::*;
use crate::denial::{Denial, Denials};
use crate::policy::Policy;

/// Sends `bytes`, returns everything that came back and what was reported.
async fn exchange(bytes: &[u8]) -> (Vec<u8>, Vec<Denial>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&log);
    let denials = Denials::new(Arc::new(move |d| sink.lock().unwrap().push(d)));
    let permits = Arc::new(Semaphore::new(1));
    let shared = Arc::new(Shared { policy: Policy::nothing(1), denials, permits });
    let (mut client, server) = duplex(4096);
    let served = tokio::spawn(converse(server, shared));
    client.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    served.await.unwrap();
    let log = log.lock().unwrap().clone();
    (answer, log)
}

fn request(command: u8, kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, command, 0, kind];
    bytes.extend_from_slice(address);
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes
}

fn named(name: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(name.len()).unwrap()];
    bytes.extend_from_slice(name);
    bytes
}

fn reply(code: u8) -> Vec<u8> {
    vec![5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

#[tokio::test(start_paused = true)]
async fn connect_by_name_and_by_address_is_not_allowed_by_ruleset() {
    let loopback = Ipv6Addr::LOCALHOST.octets();
    for (kind, address, subject) in [
        (3, named(b"Example.com"), "example.com:443"),
        (3, named(b"example.com."), "example.com:443"),
        (3, named(b"10.0.0.1"), "10.0.0.1:443"),
        (1, vec![127, 0, 0, 1], "127.0.0.1:443"),
        (4, loopback.to_vec(), "[::1]:443"),
    ] {
        let (answer, log) = exchange(&request(1, kind, &address, 443)).await;
        assert_eq!(answer, reply(2), "{subject}");
        let subject = subject.to_owned();
        assert_eq!(log, [Denial { code: Code::EgressNotGranted, subject, count: 1 }]);
    }
}

#[tokio::test(start_paused = true)]
async fn bind_udp_associate_and_unknown_commands_are_not_supported() {
    for command in [0, 2, 3, 4, 0xff] {
        let (answer, log) = exchange(&request(command, 1, &[1, 2, 3, 4], 80)).await;
        assert_eq!(answer, reply(7), "{command}");
        assert_eq!(log[0].code, Code::EgressBadRequest);
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_conversations_are_closed_without_a_verdict_and_counted_under_one_word() {
    let greeted: &[u8] = &[5, 0];
    for (bytes, answer) in [
        (vec![4, 1, 0, 80, 1, 2, 3, 4, 0], &[][..]),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), &[]),
        (vec![5, 0], &[]),
        (vec![5, 1, 2], &[5, 0xff]),
        (vec![5, 1, 0, 4, 1, 0, 1, 1, 2, 3, 4, 0, 80], greeted),
        (vec![5, 1, 0, 5, 1, 9, 1, 1, 2, 3, 4, 0, 80], greeted),
        (request(1, 9, &[1, 2, 3, 4], 80), greeted),
        (request(1, 1, &[1, 2, 3, 4], 0), greeted),
        (request(1, 3, &named(b""), 80), greeted),
        (request(1, 3, &named(b"a\0b.com"), 80), greeted),
        (request(1, 3, &named(b"a@b.com"), 80), greeted),
        (request(1, 3, &named(b"127.1"), 80), greeted),
        (request(1, 3, &named(b"0x7f000001"), 80), greeted),
        (request(1, 3, &named(b"\xff\xfe"), 80), greeted),
    ] {
        let (got, log) = exchange(&bytes).await;
        assert_eq!(got, answer, "{bytes:?}");
        let subject = "socks".to_owned();
        assert_eq!(log, [Denial { code: Code::EgressBadRequest, subject, count: 1 }], "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_stalls_at_any_byte_is_closed_when_its_time_is_over() {
    let whole = request(1, 3, &named(b"example.com"), 443);
    for length in 0..whole.len() {
        let (answer, log) = exchange(&whole[..length]).await;
        assert!(answer.is_empty() || answer == [5, 0], "{length}: {answer:?}");
        assert_eq!(log[0].code, Code::EgressLimit, "{length}");
    }
}
