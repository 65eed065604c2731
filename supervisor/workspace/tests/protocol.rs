//! The worker: typed requests in JSON lines, one answer each, progress in between.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use atenea_core::Code;
use atenea_workspace::worker::{Answer, Request, Response, serve};
use atenea_workspace::{RawPath, SnapshotOptions};
use support::bench;

fn ask(requests: &[Request]) -> Vec<Response> {
    let mut input = Vec::new();
    for request in requests {
        input.extend(serde_json::to_vec(request).unwrap());
        input.push(b'\n');
    }
    answers(&input)
}

fn answers(input: &[u8]) -> Vec<Response> {
    let mut output = Vec::new();
    serve(input, &mut output).unwrap();
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn a_snapshot_over_the_protocol_reports_progress_and_ends_with_its_answer() {
    let bench = bench().repository();
    for n in 0..600 {
        bench.write(format!("many/{n}"), n.to_string());
    }
    let path = RawPath::from(bench.project.clone());
    let found = ask(&[Request::Inspect { path, state_dir: None }]);
    let [Response::Done(Answer::Source(source))] = &found[..] else { panic!("{found:?}") };
    let request = Request::Snapshot {
        source: source.clone(),
        cache: bench.cache.clone().into(),
        options: SnapshotOptions::default(),
    };
    let all = ask(&[request.clone(), request]);
    let done: Vec<_> =
        all.iter().filter(|line| matches!(line, Response::Done(Answer::Snapshot(_)))).collect();
    assert_eq!(done.len(), 2);
    let progress: Vec<u64> = all
        .iter()
        .filter_map(|line| match line {
            Response::Progress(progress) => Some(progress.done),
            _ => None,
        })
        .collect();
    assert!(progress.len() >= 4 && progress.contains(&605), "{progress:?}");
}

#[test]
fn a_refusal_keeps_its_code_and_the_worker_goes_on() {
    let bench = bench();
    let missing = RawPath::from(bench.path().join("missing"));
    let there = RawPath::from(bench.project.clone());
    let inspect = |path| Request::Inspect { path, state_dir: None };
    let all = ask(&[inspect(missing), inspect(there)]);
    let [Response::Refused(refusal), Response::Done(_)] = &all[..] else { panic!("{all:?}") };
    assert_eq!(refusal.code, Code::FsNotFound);
}

#[test]
fn a_line_that_is_no_request_is_refused() {
    for bad in [&b"{}\n"[..], b"nonsense\n", b"{\"op\":\"unknown\"}\n", b"\n", b"{\"op\":"] {
        let all = answers(bad);
        let [Response::Refused(refusal)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(refusal.code, Code::ApiBadRequest);
    }
    assert_eq!(answers(b""), []);
}
