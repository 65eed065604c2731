//! The client against a real endpoint.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::net::TcpListener;
use std::sync::Arc;

use atenea_broker::{Endpoint, EndpointHandle, Listeners, Question, TokenTable};
use atenea_core::{Generation, RunId};
use tokio::process::Command;

struct Run {
    handle: EndpointHandle,
    tokens: Arc<TokenTable>,
    token: String,
    tcp: String,
}

fn run() -> Run {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", tcp.local_addr().unwrap());
    let listeners = Listeners { tcp: tcp.into() };
    let (id, now) = (RunId::from_random(1), Generation(1));
    let tokens = Arc::new(TokenTable::new(now));
    let token = tokens.mint(&id, now).unwrap().expose().to_owned();
    let record = Arc::new(|question| match question {
        Question::Grants => serde_json::json!({"profile": "read"}),
        _ => serde_json::json!({"usd_held": "1.50"}),
    });
    let handle =
        Endpoint::bind(id, listeners, Arc::clone(&tokens), record, Arc::new(|_| {})).unwrap();
    Run { handle, tokens, token, tcp: address }
}

async fn guest(arguments: &[&str], broker: &str, token: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_atenea-guest"))
        .args(arguments)
        .env_clear()
        .env("ATENEA_BROKER", broker)
        .env("ATENEA_TOKEN", token)
        .output()
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn grants_and_budget_are_printed_as_json() {
    let run = run();
    let (status, out, err) = guest(&["grants"], &run.tcp, &run.token).await;
    assert_eq!((status, out.as_str()), (0, "{\"profile\":\"read\"}\n"), "{err}");
    let (status, out, err) = guest(&["budget"], &run.tcp, &run.token).await;
    assert_eq!((status, out.as_str()), (0, "{\"usd_held\":\"1.50\"}\n"), "{err}");
    run.handle.close().await;
}

#[tokio::test]
async fn a_refusal_exits_4_with_its_code_and_never_shows_the_token() {
    let run = run();
    run.tokens.revoke(run.handle.run());
    let (status, out, err) = guest(&["grants"], &run.tcp, &run.token).await;
    assert_eq!((status, out.as_str()), (4, ""));
    assert!(err.starts_with("error[broker.bad_token]: "), "{err}");
    assert!(!err.contains(&run.token), "{err}");
    run.handle.close().await;
    let (status, _, err) = guest(&["grants"], &run.tcp, &run.token).await;
    assert_eq!(status, 5, "{err}");
}

#[tokio::test]
async fn wrong_usage_exits_2_and_help_exits_0() {
    for arguments in [&[][..], &["nosuch"], &["grants", "x"]] {
        let (status, _, err) = guest(arguments, "http://127.0.0.1:1", "at_x").await;
        assert_eq!(status, 2, "{err}");
    }
    let (status, _, err) = guest(&["grants"], "127.0.0.1:1", "at_x").await;
    assert_eq!(status, 2, "{err}");
    let (status, out, _) = guest(&["--help"], "", "").await;
    assert_eq!(status, 0);
    for word in ["grants", "budget", "ATENEA_BROKER", "ATENEA_TOKEN", "Exit status"] {
        assert!(out.contains(word), "{word}");
    }
}
