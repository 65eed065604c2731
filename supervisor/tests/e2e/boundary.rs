//! What a run gets from the listeners inside its boundary: a refusal with a code, which is recorded.

use crate::support::{Out, World};

/// Runs bash in a run named `curious`.
#[track_caller]
fn bash(world: &World, script: &str) -> Out {
    world.sup(&["run", "--name", "curious", "--", "bash", "-c", script])
}

/// Code and detail of each violation of the run.
#[track_caller]
fn violations(world: &World) -> Vec<(String, String)> {
    let rows = world.sup(&["--json", "violations", "curious"]).ends(0).json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(&row["code"]), text(&row["detail"]))).collect()
}

fn one(code: &str, detail: &str) -> Vec<(String, String)> {
    vec![(code.to_owned(), detail.to_owned())]
}

#[test]
fn the_proxy_refuses_a_plain_request_and_never_forwards_what_it_carries() {
    let world = World::new();
    let ask = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://example.com/secret-path HTTP/1.1\\r\\n\
        Host: example.com\\r\\n\\r\\n' >&3; cat <&3";
    let out = bash(&world, ask);
    assert!(out.out.starts_with("HTTP/1.1 403"), "{out:?}");
    assert!(out.err.contains("refused: egress.not_granted x1"), "{out:?}");
    assert_eq!(violations(&world), one("egress.not_granted", "example.com:80"));
    // E4: what was asked for is recorded, its content is not.
    assert!(!world.sup(&["journal", "dump"]).ends(0).out.contains("secret-path"));
}

#[test]
fn socks_refuses_with_the_reply_for_a_rule() {
    let world = World::new();
    let ask = "exec 3<>/dev/tcp/127.0.0.1/1080; printf '\\5\\1\\0' >&3; head -c 2 <&3 | od -An -tu1; \
        printf '\\5\\1\\0\\3\\13example.com\\1\\273' >&3; head -c 10 <&3 | od -An -tu1";
    let out = bash(&world, ask).ends(0);
    let bytes: Vec<&str> = out.out.split_whitespace().collect();
    assert_eq!(bytes[..4], ["5", "0", "5", "2"], "{out:?}");
    assert_eq!(violations(&world), one("egress.not_granted", "example.com:443"));
}

#[test]
fn a_name_is_refused_before_anybody_outside_could_see_it() {
    let world = World::new();
    let out = bash(&world, "getent hosts example.com || echo no answer");
    assert!(out.out.contains("no answer"), "{out:?}");
    let rows = violations(&world);
    assert!(!rows.is_empty());
    let asked = ("egress.dns_refused".to_owned(), "example.com".to_owned());
    assert!(rows.iter().all(|row| *row == asked), "{rows:?}");
    // Its own name needs nobody.
    world.shell(&[], "getent hosts localhost").ends(0);
}

#[test]
fn the_broker_takes_the_token_of_the_run_and_no_other() {
    let world = World::new();
    let ask = "ask() { exec 3<>/dev/tcp/127.0.0.1/7411; printf 'GET /v1/none HTTP/1.1\\r\\nHost: b\\r\\n\
        Authorization: Bearer %s\\r\\nConnection: close\\r\\n\\r\\n' \"$1\" >&3; head -n 1 <&3; }; \
        ask at_0000; ask \"$ATENEA_TOKEN\"; echo \"$ATENEA_TOKEN\"";
    let out = bash(&world, ask).ends(0);
    let lines: Vec<&str> = out.out.lines().map(str::trim_end).collect();
    assert_eq!(lines[0], "HTTP/1.1 401 Unauthorized");
    assert!(!lines[1].contains(" 401 "), "its own token is not known: {lines:?}");
    let codes: Vec<String> = violations(&world).into_iter().map(|(code, _)| code).collect();
    assert!(codes.contains(&"broker.bad_token".to_owned()), "{codes:?}");
    // T1, E4: the token of a run that has ended opens nothing, and is written down nowhere.
    let token = lines[2];
    assert!(token.starts_with("at_"), "{lines:?}");
    let old = ask.replace("at_0000", token);
    let again = world.sup(&["run", "--", "bash", "-c", &old]).ends(0);
    assert!(again.out.starts_with("HTTP/1.1 401"), "{again:?}");
    let grep = std::process::Command::new("grep")
        .args(["-rlF", token])
        .arg(world.state())
        .args(["--exclude=stdout"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&grep.stdout), "", "the token is in a file");
}

#[test]
fn a_full_writable_place_stops_the_writer_and_a_full_workspace_ends_the_run() {
    let world = World::new();
    let script = "head -c 3000000 /dev/zero > /tmp/x; stat -c %s /tmp/x";
    assert_eq!(world.shell(&["--disk", "1MiB"], script).ends(0).out, "1048576\n");
    let options = ["--profile", "workspace-write", "--disk", "1MiB"];
    // No single file is over the limit: together they are.
    let out = world
        .shell(&options, "for i in 1 2 3 4; do head -c 900000 /dev/zero > big$i; done; sleep 1000");
    out.ends(137).says("limit.disk");
    assert_eq!(world.last()["outcome"], "limit");
}
