//! The endpoint over real sockets.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use atenea_broker::{
    BindError, Denial, Endpoint, EndpointHandle, LIMITS, Listeners, Question, Token, TokenTable,
};
use atenea_core::{Code, Generation, RunId};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

type Log = Arc<Mutex<Vec<Denial>>>;

struct Run {
    handle: EndpointHandle,
    tokens: Arc<TokenTable>,
    token: Token,
    tcp: SocketAddr,
    log: Log,
}

const NOW: Generation = Generation(9);

fn run() -> Run {
    let tcp = StdTcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let listeners = Listeners { tcp: tcp.into() };
    let tokens = Arc::new(TokenTable::new(NOW));
    let id = RunId::from_random(1);
    let token = tokens.mint(&id, NOW).unwrap();
    let log = Log::default();
    let into = Arc::clone(&log);
    let handle = Endpoint::bind(
        id,
        listeners,
        Arc::clone(&tokens),
        Arc::new(|question| match question {
            Question::Grants => json!({"profile": "read", "network": []}),
            _ => json!({"usd_held": "1.50", "usd_reported": "0"}),
        }),
        Arc::new(move |denial| into.lock().unwrap().push(denial)),
    )
    .unwrap();
    Run { handle, tokens, token, tcp: address, log }
}

impl Run {
    /// A request with the run's token.
    fn get(&self, path: &str) -> String {
        self.with("GET", path, &format!("Authorization: Bearer {}\r\n", self.token.expose()))
    }

    fn with(&self, method: &str, path: &str, fields: &str) -> String {
        format!("{method} {path} HTTP/1.1\r\nHost: broker\r\n{fields}Connection: close\r\n\r\n")
    }

    async fn ask(&self, request: &str) -> (u16, String, String) {
        converse(TcpStream::connect(self.tcp).await.unwrap(), request).await
    }

    fn counted(&self, code: Code, subject: &str) -> u64 {
        let log = self.log.lock().unwrap();
        log.iter().filter(|d| d.code == code && d.subject == subject).map(|d| d.count).sum()
    }
}

/// Status, head, body.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    request: &str,
) -> (u16, String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn code_of(body: &str) -> Value {
    serde_json::from_str::<Value>(body).unwrap()["code"].clone()
}

/// T2
#[tokio::test]
async fn grants_and_budget_are_what_the_record_of_the_run_says_by_both_listeners() {
    let run = run();
    let (status, head, body) = run.ask(&run.get("/v1/grants")).await;
    assert_eq!((status, body.as_str()), (200, "{\"network\":[],\"profile\":\"read\"}\n"), "{head}");
    let (status, _, body) = run.ask(&run.get("/v1/budget?run=r_other")).await;
    assert_eq!((status, body.as_str()), (200, "{\"usd_held\":\"1.50\",\"usd_reported\":\"0\"}\n"));
    for name in ["X-Api-Key", "x-goog-api-key"] {
        let fields = format!("{name}: {}\r\nX-Atenea-Run: r_other\r\n", run.token.expose());
        assert_eq!(run.ask(&run.with("GET", "/v1/grants", &fields)).await.0, 200, "{name}");
    }
    run.handle.close().await;
    assert!(run.log.lock().unwrap().is_empty());
}

/// T1
#[tokio::test]
async fn missing_forged_foreign_old_and_revoked_tokens_get_401_and_are_recorded() {
    let run = run();
    let foreign = run.tokens.mint(&RunId::from_random(2), NOW).unwrap();
    let forged = Token::draw().unwrap();
    let old = TokenTable::new(Generation(8)).mint(run.handle.run(), Generation(8)).unwrap();
    let good = run.token.expose().to_owned();
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for (fields, subject) in [
        (String::new(), "token missing"),
        (bearer(foreign.expose()), "token of another run"),
        (bearer(forged.expose()), "token not valid"),
        (bearer(old.expose()), "token not valid"),
        (bearer("at_short"), "token malformed"),
        (bearer(&good.to_uppercase()), "token malformed"),
        (format!("Authorization: Basic {good}\r\n"), "token malformed"),
        (format!("{}X-Api-Key: {}\r\n", bearer(&good), forged.expose()), "token malformed"),
        (format!("{}{}", bearer(forged.expose()), bearer(&good)), "token malformed"),
    ] {
        let before = run.counted(Code::BrokerBadToken, subject);
        for path in ["/v1/grants", "/mcp", "/llm/anthropic/v1/messages", "/nosuch"] {
            let (status, head, body) = run.ask(&run.with("GET", path, &fields)).await;
            assert_eq!((status, code_of(&body)), (401, "broker.bad_token".into()), "{fields}");
            assert!(head.contains("x-atenea-code: broker.bad_token"), "{head}");
            assert!(head.contains("www-authenticate: bearer"), "{head}");
            assert!(!body.contains("at_"), "{body}");
        }
        if before == 0 {
            assert_eq!(run.counted(Code::BrokerBadToken, subject), 1, "{subject}");
        }
    }
    assert_eq!(run.ask(&run.get("/v1/grants")).await.0, 200, "positive control");
    run.tokens.revoke(run.handle.run());
    let (status, _, body) = run.ask(&run.get("/v1/grants")).await;
    assert_eq!((status, code_of(&body)), (401, "broker.bad_token".into()));
    let log = Arc::clone(&run.log);
    run.handle.close().await;
    let counts = log.lock().unwrap().iter().map(|d| d.count).sum::<u64>();
    assert_eq!(counts, 9 * 4 + 1);
    assert!(log.lock().unwrap().iter().all(|d| d.code == Code::BrokerBadToken));
}

#[tokio::test]
async fn tools_models_and_later_operations_are_not_granted_and_unknown_paths_are_not_there() {
    let run = run();
    for (path, status, code, subject) in [
        ("/mcp", 403, Code::BrokerNotGranted, "/mcp"),
        ("/mcp/x", 403, Code::BrokerNotGranted, "/mcp"),
        ("/llm/anthropic/v1/messages", 403, Code::BrokerNotGranted, "/llm"),
        ("/llm", 403, Code::BrokerNotGranted, "/llm"),
        ("/v1/progress", 403, Code::BrokerNotGranted, "/v1/progress"),
        ("/v1/usage", 403, Code::BrokerNotGranted, "/v1/usage"),
        ("/v1/runs", 403, Code::BrokerNotGranted, "/v1/runs"),
        ("/llmx", 404, Code::BrokerBadRequest, "path"),
        ("/v1/grants/", 404, Code::BrokerBadRequest, "path"),
        ("/v1/../v1/grants", 404, Code::BrokerBadRequest, "path"),
        ("/v1/%67rants", 404, Code::BrokerBadRequest, "path"),
        ("/", 404, Code::BrokerBadRequest, "path"),
    ] {
        let before = run.counted(code, subject);
        let (got, head, body) = run.ask(&run.get(path)).await;
        assert_eq!((got, code_of(&body)), (status, code.as_str().into()), "{path}");
        assert!(head.contains(&format!("x-atenea-code: {code}")), "{head}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["help"], code.help());
        assert!(before > 0 || run.counted(code, subject) == 1, "{path}");
    }
    let bearer = format!("Authorization: Bearer {}\r\n", run.token.expose());
    for method in ["POST", "PUT", "DELETE", "TRACE", "OPTIONS"] {
        let (got, head, body) = run.ask(&run.with(method, "/v1/grants", &bearer)).await;
        assert_eq!((got, code_of(&body)), (405, "broker.bad_request".into()), "{method}");
        assert!(head.contains("allow: get, head"), "{head}");
    }
    run.handle.close().await;
}

#[tokio::test]
async fn bodies_headers_and_targets_are_bounded_each_with_the_code() {
    let run = run();
    let bearer = format!("Authorization: Bearer {}\r\n", run.token.expose());
    let post = |fields: &str| run.with("POST", "/mcp", &format!("{bearer}{fields}"));
    let sized = |n: usize| post(&format!("Content-Length: {n}\r\n")) + &"x".repeat(n);
    assert_eq!(run.ask(&sized(LIMITS.body_bytes)).await.0, 403, "at the bound");
    let over = post(&format!("Content-Length: {}\r\n", LIMITS.body_bytes + 1));
    let chunk = format!("{:x}\r\n{}\r\n", LIMITS.body_bytes + 1, "x".repeat(LIMITS.body_bytes + 1));
    let chunked = post("Transfer-Encoding: chunked\r\n") + &chunk;
    let long = run.with("GET", "/v1/grants", &format!("{bearer}X: {}\r\n", "y".repeat(16 * 1024)));
    let lines = format!("{bearer}{}", "X: y\r\n".repeat(LIMITS.header_fields));
    let many = run.with("GET", "/v1/grants", &lines);
    let target = run.get(&format!("/v1/grants?{}", "z".repeat(LIMITS.target_bytes)));
    for (request, status, subject) in [
        (over, 413, "body"),
        (chunked, 413, "body"),
        (long, 431, "header"),
        (many, 431, "header"),
        (target, 414, "target"),
    ] {
        let (got, head, body) = run.ask(&request).await;
        assert_eq!((got, code_of(&body)), (status, "broker.limit".into()), "{subject}");
        assert!(head.contains("connection: close"), "{head}");
        assert!(run.counted(Code::BrokerLimit, subject) >= 1, "{subject}");
    }
    let huge = "y".repeat(100 * 1024);
    let mut stream = TcpStream::connect(run.tcp).await.unwrap();
    let _ = stream.write_all(run.with("GET", "/", &format!("X: {huge}\r\n")).as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "));
    assert_eq!(run.ask(&run.get("/v1/grants")).await.0, 200, "others are served");
    run.handle.close().await;
}

#[tokio::test]
async fn requests_over_the_bound_get_503_and_places_come_back() {
    let run = run();
    let bearer = format!("Authorization: Bearer {}\r\n", run.token.expose());
    let waits = format!("{bearer}Content-Length: 2\r\nExpect: 100-continue\r\n");
    let mut waiting = Vec::new();
    for _ in 0..LIMITS.requests {
        let mut stream = TcpStream::connect(run.tcp).await.unwrap();
        stream.write_all(run.with("POST", "/mcp", &waits).as_bytes()).await.unwrap();
        // The broker reads the body now: the request is in work.
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).await.unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        waiting.push(stream);
    }
    let (status, _, body) = run.ask(&run.get("/v1/grants")).await;
    assert_eq!((status, code_of(&body)), (503, "broker.limit".into()));
    for stream in &mut waiting {
        stream.write_all(b"{}").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    assert_eq!(run.ask(&run.get("/v1/grants")).await.0, 200);
    run.handle.close().await;
}

#[tokio::test]
async fn connections_over_the_bound_are_reset_and_garbage_ends_only_its_own_connection() {
    let run = run();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(run.tcp).await.unwrap();
        stream.write_all(b"\xff\x00garbage\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    assert_eq!(run.counted(Code::BrokerBadRequest, "request"), 1);
    let mut idle = Vec::new();
    let error = loop {
        let mut stream = TcpStream::connect(run.tcp).await.unwrap();
        // Answered or reset: both say that the connection was accepted.
        if let Err(error) = stream.write_all(b"GET /x HTTP/1.1\r\nHost: b\r\n\r\n").await {
            break error;
        }
        match stream.read_u8().await {
            Ok(_) => idle.push(stream),
            Err(error) => break error,
        }
        assert!(idle.len() <= LIMITS.connections);
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    assert_eq!(idle.len(), LIMITS.connections);
    assert_eq!(run.counted(Code::BrokerLimit, "connections"), 1);
    drop(idle);
    run.handle.close().await;
    let error = TcpStream::connect(run.tcp).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn only_a_listening_tcp_socket_on_loopback_is_served() {
    let tokens = Arc::new(TokenTable::new(NOW));
    let bind = |tcp| {
        let record = Arc::new(|_| json!({}));
        let run = RunId::from_random(1);
        Endpoint::bind(run, Listeners { tcp }, Arc::clone(&tokens), record, Arc::new(|_| {}))
    };
    let directory = tempfile::tempdir().unwrap();
    let unix = UnixListener::bind(directory.path().join("a.sock")).unwrap();
    let error = bind(unix.into()).unwrap_err();
    assert!(matches!(error, BindError::WrongKind { role: "tcp" }), "{error}");
    let public = StdTcpListener::bind("0.0.0.0:0").unwrap().into();
    assert!(matches!(bind(public).unwrap_err(), BindError::NotLoopback));
}
