//! The control API as a program meets it: plain HTTP on the socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::support::World;

/// Longer than any answer takes; a read that meets it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends a request without a body; the answer, line by line, with its head.
fn asks(world: &World, path: &str, more: &str) -> BufReader<UnixStream> {
    let info = world.sup(&["--json", "info"]).ends(0).object();
    let mut stream = UnixStream::connect(info["socket"].as_str().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n").unwrap();
    BufReader::new(stream)
}

/// A whole answer.
fn answer(world: &World, path: &str) -> String {
    let mut text = String::new();
    asks(world, path, "").read_to_string(&mut text).unwrap();
    text
}

/// The next event of a stream.
fn event(stream: &mut impl BufRead) -> (String, Value) {
    let (mut id, mut line) = (String::new(), String::new());
    loop {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream has ended");
        if let Some(found) = line.strip_prefix("id: ") {
            id = found.trim().to_owned();
        }
        if let Some(found) = line.strip_prefix("data: ") {
            return (id, serde_json::from_str(found).unwrap());
        }
    }
}

/// The kind of an event.
fn kind(event: &Value) -> String {
    match &event["event"] {
        Value::String(name) => name.clone(),
        other => other.as_object().unwrap().keys().next().unwrap().clone(),
    }
}

#[test]
fn events_are_sent_from_any_place_live_and_again_after_the_last_one_seen() {
    let world = World::new();
    world.sup(&["status"]).ends(0);
    let mut all = asks(&world, "/v1/events?from=1", "");
    let (id, first) = event(&mut all);
    assert_eq!((id.as_str(), kind(&first).as_str()), ("1", "SupervisorStarted"));
    // What happens later comes by itself, in order, without a gap.
    let run = world.detached(&[], "exit 3");
    let mut seq = 1;
    let ended = loop {
        let (id, found) = event(&mut all);
        seq += 1;
        assert_eq!(id, seq.to_string(), "{found}");
        if kind(&found) == "ReceiptIssued" {
            break found;
        }
    };
    assert_eq!(ended["run"], run.as_str());
    // A client that comes again goes on where it was, whatever it asked for at first.
    let mut again = asks(&world, "/v1/events?from=1", "Last-Event-ID: 1\r\n");
    assert_eq!(event(&mut again).0, "2");
    // Of one run only.
    let mut one = asks(&world, &format!("/v1/events?from=1&run={run}"), "");
    assert_eq!(kind(&event(&mut one).1), "RunRequested");
    // E4: no argument, no variable.
    assert!(!answer(&world, "/v1/journal/dump").contains("exit 3"));
}

#[test]
fn an_open_event_stream_does_not_keep_a_supervisor_from_stopping() {
    let world = World::new();
    world.sup(&["status"]).ends(0);
    let mut stream = asks(&world, "/v1/events?from=1", "");
    assert_eq!(event(&mut stream).0, "1");
    world.sup(&["stop"]).ends(0);
    let mut rest = String::new();
    // What was recorded of the stop may still come; then the stream ends.
    stream.read_to_string(&mut rest).unwrap();
}

#[test]
fn metrics_count_runs_money_and_events_and_say_nothing_of_what_ran() {
    let world = World::new();
    world.sup(&["budget", "set", "team", "5"]).ends(0);
    world.shell(&["--name", "secret-name"], "exit 3").ends(3);
    world.sup(&["run", "--budget", "1", "--", "true"]).ends(125);
    let text = answer(&world, "/metrics");
    assert!(text.contains("text/plain; version=0.0.4"), "{text}");
    for line in [
        "atenea_runs{state=\"ended\"} 2",
        "atenea_runs_ended{outcome=\"exited\"} 1",
        "atenea_runs_ended{outcome=\"refused\"} 1",
        "atenea_budget_limit_nanousd{account=\"team\"} 5000000000",
        "atenea_runs_stuck 0",
        "atenea_journal_failed 0",
        "# TYPE atenea_events_total counter",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let events: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("atenea_events_total "))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(events > 20, "{events}");
    assert!(!text.contains("secret-name") && !text.contains("exit 3"), "{text}");
}
