use std::sync::Mutex;
use std::time::Duration;

use atenea_core::Generation;
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::denial::Denial;
use crate::token::Token;

type Log = Arc<Mutex<Vec<Denial>>>;

struct Served {
    client: DuplexStream,
    task: JoinHandle<()>,
    token: Token,
    log: Log,
}

/// One connection whose pipe holds `capacity` bytes, and an answer of `answer` bytes or more.
fn served(capacity: usize, answer: usize) -> Served {
    let (run, now) = (RunId::from_random(1), Generation(1));
    let tokens = Arc::new(TokenTable::new(now));
    let token = tokens.mint(&run, now).unwrap();
    let log = Log::default();
    let into = Arc::clone(&log);
    let state = Arc::new(State {
        run,
        tokens,
        record: Arc::new(move |_| "x".repeat(answer).into()),
        denials: Denials::new(Arc::new(move |d| into.lock().unwrap().push(d))),
        connections: Arc::new(Semaphore::new(1)),
        requests: Semaphore::new(1),
    });
    let (client, server) = duplex(capacity);
    let task = tokio::spawn(serve_connection(server, state));
    Served { client, task, token, log }
}

fn request(token: &Token, line: &str, fields: &str) -> String {
    format!(
        "{line} HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {}\r\n{fields}\r\n",
        token.expose()
    )
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_sends_nothing_or_half_a_head_is_closed_when_the_time_is_over() {
    for sent in ["", "GET /v1/gr", "GET /v1/grants HTTP/1.1\r\nHost: b\r\n"] {
        let mut served = served(4096, 0);
        let begun = Instant::now();
        served.client.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        served.client.read_to_end(&mut answer).await.unwrap();
        served.task.await.unwrap();
        assert!(begun.elapsed() >= LIMITS.header_time, "{:?}", begun.elapsed());
        assert!(begun.elapsed() < LIMITS.header_time + Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_drips_does_not_get_more_time() {
    let served = served(4096, 0);
    let begun = Instant::now();
    let (mut reader, mut writer) = tokio::io::split(served.client);
    writer.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
    let drip = tokio::spawn(async move {
        while writer.write_all(b"y").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut answer = Vec::new();
    reader.read_to_end(&mut answer).await.unwrap();
    assert!(begun.elapsed() < LIMITS.header_time + Duration::from_secs(1));
    drip.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_used_again_and_closed_when_idle_between_requests() {
    let mut served = served(4096, 0);
    let text = request(&served.token, "GET /v1/grants", "");
    for _ in 0..2 {
        served.client.write_all(text.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let mut length = 0;
        while !answer[..length].ends_with(b"\"\"\n") {
            length += served.client.read(&mut answer[length..]).await.unwrap();
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    let begun = Instant::now();
    let mut rest = Vec::new();
    served.client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty() && begun.elapsed() >= LIMITS.header_time);
    assert!(served.log.lock().unwrap().is_empty(), "idling is no offence");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_answered_408() {
    let mut served = served(4096, 0);
    let text = request(&served.token, "POST /mcp", "Content-Length: 10\r\n");
    served.client.write_all(text.as_bytes()).await.unwrap();
    served.client.write_all(b"12345").await.unwrap();
    let mut answer = String::new();
    served.client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("x-atenea-code: broker.limit"), "{answer}");
    let log = served.log.lock().unwrap();
    assert_eq!((log[0].code, log[0].subject), (Code::BrokerLimit, "body time"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_byte_of_its_answer_is_let_go() {
    let mut served = served(256, 100_000);
    let begun = Instant::now();
    let text = request(&served.token, "GET /v1/grants", "");
    served.client.write_all(text.as_bytes()).await.unwrap();
    served.task.await.unwrap();
    assert!(begun.elapsed() >= LIMITS.write_time, "{:?}", begun.elapsed());
    assert!(begun.elapsed() < LIMITS.write_time + LIMITS.header_time, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_all_of_its_answer() {
    let mut served = served(256, 20_000);
    let text = request(&served.token, "GET /v1/grants", "Connection: close\r\n");
    served.client.write_all(text.as_bytes()).await.unwrap();
    let mut scrap = [0; 256];
    let mut total = 0;
    loop {
        tokio::time::sleep(LIMITS.write_time / 2).await;
        match served.client.read(&mut scrap).await.unwrap() {
            0 => break,
            count => total += count,
        }
    }
    assert!(total > 20_000, "{total}");
}

/// E4
#[tokio::test(start_paused = true)]
async fn nothing_a_guest_sends_is_in_a_denial_or_an_answer() {
    let mut served = served(65536, 0);
    let text = "POST /mcp/SECRET?q=SECRET HTTP/1.1\r\nHost: SECRET\r\n\
                Authorization: Bearer SECRET\r\nX-SECRET: SECRET\r\nConnection: close\r\n\
                Content-Length: 6\r\n\r\nSECRET";
    served.client.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    served.client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let log = format!("{:?}", served.log.lock().unwrap());
    assert!(!answer.contains("SECRET") && !log.contains("SECRET"), "{answer} {log}");
}

#[tokio::test(start_paused = true)]
async fn the_first_refusal_is_reported_at_once_and_repeats_in_few_reports() {
    let log = Log::default();
    let into = Arc::clone(&log);
    let denials = Denials::new(Arc::new(move |d| into.lock().unwrap().push(d)));
    let day = Duration::from_secs(24 * 3600);
    let steady = async {
        loop {
            denials.record(Code::BrokerBadToken, "token missing");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let both = async { tokio::join!(steady, denials.flush_at_intervals()) };
    let _ = timeout(day, both).await;
    denials.flush();
    let log = log.lock().unwrap();
    assert_eq!(log[0].count, 1);
    assert!((5..30).contains(&log.len()), "E6: {} reports", log.len());
    let total: u64 = log.iter().map(|d| d.count).sum();
    assert!((86_399..=86_401).contains(&total), "{total}");
}
