use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio::io::duplex;
use tokio::sync::Semaphore;

use super::*;
use crate::denial::{Denial, Denials};
use crate::policy::Policy;

type Log = Arc<Mutex<Vec<Denial>>>;

fn shared() -> (Arc<Shared>, Log) {
    let log = Log::default();
    let sink = Arc::clone(&log);
    let denials = Denials::new(Arc::new(move |d| sink.lock().unwrap().push(d)));
    let permits = Arc::new(Semaphore::new(1));
    (Arc::new(Shared { policy: Policy::nothing(1), denials, permits }), log)
}

/// Sends `request`, keeps the sending side open, returns the whole answer and what was reported.
async fn exchange(request: &[u8]) -> (String, Vec<Denial>) {
    let (shared, log) = shared();
    let (mut client, server) = duplex(256 * 1024);
    let served = tokio::spawn(converse(server, shared));
    client.write_all(request).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    served.await.unwrap();
    let log = log.lock().unwrap().clone();
    (answer, log)
}

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test(start_paused = true)]
async fn connect_is_refused_with_a_body_that_names_code_host_port_and_remedy() {
    let (answer, log) =
        exchange(b"CONNECT Example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(answer.contains("\r\nX-Atenea-Code: egress.not_granted\r\n"), "{answer}");
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    let body = body(&answer);
    assert_eq!(body["code"], "egress.not_granted");
    assert_eq!(body["host"], "example.com");
    assert_eq!(body["port"], 443);
    assert_eq!(body["help"], Code::EgressNotGranted.help());
    let subject = "example.com:443".to_owned();
    assert_eq!(log, [Denial { code: Code::EgressNotGranted, subject, count: 1 }]);
}

#[tokio::test(start_paused = true)]
async fn absolute_form_is_refused_the_same_way_and_head_gets_no_body() {
    let (answer, log) =
        exchange(b"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(body(&answer)["port"], 80);
    assert_eq!(log[0].subject, "a.example:80");
    let (answer, _) =
        exchange(b"HEAD http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn origin_form_and_malformed_heads_get_400_and_are_counted_under_one_word() {
    for request in [
        &b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"[..],
        b"GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\nHost: a.example:443\n\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n",
    ] {
        let (answer, log) = exchange(request).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert_eq!(body(&answer)["code"], "egress.bad_request");
        let subject = "proxy".to_owned();
        assert_eq!(log, [Denial { code: Code::EgressBadRequest, subject, count: 1 }]);
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_after_the_head_are_never_parsed_as_a_second_request() {
    let one = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";
    let two = "CONNECT hidden.example:443 HTTP/1.1\r\nHost: hidden.example:443\r\n\r\n";
    let (answer, log) = exchange(format!("{one}{two}").as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].subject, "a.example:443");
}

#[tokio::test(start_paused = true)]
async fn a_head_over_its_bounds_gets_431_and_one_at_the_bound_does_not() {
    let padded = |bytes: usize| {
        let front = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nX: ";
        let fill = bytes - front.len() - 4;
        format!("{front}{}\r\n\r\n", "y".repeat(fill))
    };
    let (answer, _) = exchange(padded(LIMITS.head_bytes).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let (answer, log) = exchange(padded(LIMITS.head_bytes + 1).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(log[0].code, Code::EgressLimit);
    let fields = "X: y\r\n".repeat(LIMITS.head_fields + 1);
    let (answer, _) = exchange(format!("CONNECT a.b:1 HTTP/1.0\r\n{fields}\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_drips_is_answered_408_when_its_time_is_over() {
    let (shared, log) = shared();
    let (mut client, server) = duplex(1024);
    let served = tokio::spawn(converse(server, shared));
    let begun = tokio::time::Instant::now();
    client.write_all(b"CONNECT a.example:443 HTTP/1.1\r\nX: ").await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(client);
    let drip = tokio::spawn(async move {
        while writer.write_all(b"y").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut answer = String::new();
    reader.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(body(&answer)["code"], "egress.limit");
    served.await.unwrap();
    let lasted = begun.elapsed();
    assert!(lasted <= LIMITS.head_time + LIMITS.linger_time + Duration::from_secs(1), "{lasted:?}");
    assert_eq!(log.lock().unwrap()[0].code, Code::EgressLimit);
    drip.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_its_answer_is_let_go() {
    let (shared, _log) = shared();
    let (mut client, server) = duplex(64);
    let served = tokio::spawn(converse(server, shared));
    client.write_all(b"CONNECT a.b:1 HTTP/1.0\r\n\r\n").await.unwrap();
    served.await.unwrap();
    let mut left = Vec::new();
    client.read_to_end(&mut left).await.unwrap();
    assert_eq!(left.len(), 64);
}
