//! The control API as programs meet it, without the command line between.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use atenea_sup::api::openapi;
use serde_json::{Value, json};

use crate::support::World;

/// One answer: status, media type, body.
struct Answer {
    status: u16,
    media: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(self.media.ends_with("json"), "{}: {}", self.media, self.body);
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

fn socket(world: &World) -> String {
    let info = world.sup(&["--json", "info"]).ends(0).object();
    info["socket"].as_str().unwrap().to_owned()
}

/// Asks without a chunked answer, which HTTP/1.0 does not know.
fn ask(socket: &str, method: &str, path: &str, body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    let head =
        format!("{method} {path} HTTP/1.0\r\nhost: atenea\r\ncontent-type: application/json\r\n");
    let whole = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    // One piece: an answer that needs no body may come, and the connection end, before a second one.
    stream.write_all(whole.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let media = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    Answer { status, media: media.unwrap_or_default().to_owned(), body: body.to_owned() }
}

/// What in `value` is not as `schema` says: the keywords that the document uses of objects, lists, names
/// and alternatives.
fn misfit(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let pointed = document.pointer(name.trim_start_matches('#'));
        return misfit(document, pointed.expect(name), value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let all: Option<Vec<String>> =
            choices.iter().map(|one| misfit(document, one, value, at)).collect();
        return all.map(|each| each.join(" and "));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = match &schema["type"] {
        Value::String(only) => only == kind,
        Value::Array(any) => any.iter().any(|one| one == kind),
        _ => true,
    };
    if !fits {
        return Some(format!("{at} is {kind}, not {}", schema["type"]));
    }
    match value {
        Value::Array(items) => items
            .iter()
            .filter(|_| schema["items"].is_object())
            .find_map(|item| misfit(document, &schema["items"], item, &format!("{at}[]"))),
        Value::Object(fields) => object_misfit(document, schema, fields, at),
        _ => None,
    }
}

fn object_misfit(
    document: &Value,
    schema: &Value,
    fields: &serde_json::Map<String, Value>,
    at: &str,
) -> Option<String> {
    let required = schema["required"].as_array().into_iter().flatten();
    let missing = required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name));
    if let Some(name) = missing {
        return Some(format!("{at} has no {name}"));
    }
    let known = schema["properties"].as_object();
    fields.iter().find_map(|(name, value)| {
        let at = format!("{at}.{name}");
        match (known.and_then(|known| known.get(name)), &schema["additionalProperties"]) {
            (Some(one), _) | (None, one @ Value::Object(_)) => misfit(document, one, value, &at),
            // Any object at all.
            (None, _) if known.is_none() => None,
            (None, _) => Some(format!("{at} is not in the document")),
        }
    })
}

/// The shape of an answer to `method path`, a path of the document.
fn shape<'a>(document: &'a Value, method: &str, path: &str, status: &str) -> &'a Value {
    let content = &document["paths"][path][method]["responses"][status]["content"];
    let (_, one) = content.as_object().unwrap().iter().next().unwrap();
    &one["schema"]
}

#[test]
fn the_document_of_the_api_is_kept_and_served_as_it_is_made() {
    let made = openapi::document();
    let text = format!("{}\n", serde_json::to_string_pretty(&made).unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == text, "docs/openapi.json is not what the types say; UPDATE_GOLDEN=1 makes it");
    let world = World::new();
    world.sup(&["status"]).ends(0);
    assert_eq!(ask(&socket(&world), "GET", "/v1/openapi.json", "").json(), made);
}

#[test]
fn every_operation_of_the_document_is_served_and_no_reference_leads_nowhere() {
    let document = openapi::document();
    let world = World::new();
    world.sup(&["status"]).ends(0);
    let socket = socket(&world);
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let here = path.replace("{id}", "nobody").replace("{name}", "nobody");
        // A stream that never ends; a query that it refuses is served all the same.
        let here = if here == "/v1/events" { format!("{here}?from=x") } else { here };
        let methods = methods.as_object().unwrap();
        for method in methods.keys().map(|m| m.to_uppercase()) {
            // A body that no operation takes: what takes one refuses it, and nothing is stopped.
            let answer = ask(&socket, &method, &here, "7");
            let unknown = answer.body.contains("api.unsupported");
            assert!(!unknown, "{method} {path}: {}", answer.body);
            asked += 1;
        }
        // Control: a method that is not there is not served.
        let other = ask(&socket, "DELETE", &here, "").json();
        assert_eq!(other["code"], "api.unsupported", "{path}");
    }
    assert!(asked > 20, "{asked}");
    assert!(ask(&socket, "GET", "/v1/nothing", "").body.contains("api.unsupported"));
    let text = document.to_string();
    for name in text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document.pointer(name).is_some(), "{name}");
    }
}

#[test]
fn what_is_answered_has_the_shape_that_the_document_says() {
    let document = openapi::document();
    let world = World::new();
    let run = world.detached(&["--name", "shaped"], "echo out; cat /proc/1/mem; exit 3");
    world.sup(&["wait", &run]).ends(3);
    world.sup(&["budget", "set", "team", "5"]).ends(0);
    let socket = socket(&world);
    let gets = [
        "/v1/runs",
        "/v1/runs/{id}",
        "/v1/runs/{id}/wait",
        "/v1/runs/{id}/receipt",
        "/v1/budgets",
        "/v1/violations",
        "/v1/journal/stats",
        "/v1/info",
        "/v1/health",
        "/v1/doctor",
    ];
    for path in gets {
        let answer = ask(&socket, "GET", &path.replace("{id}", "shaped"), "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let wrong = misfit(&document, shape(&document, "get", path, "200"), &answer.json(), path);
        assert_eq!(wrong, None);
    }
    let verified = ask(&socket, "POST", "/v1/journal/verify", "").json();
    let wanted = shape(&document, "post", "/v1/journal/verify", "200");
    assert_eq!(misfit(&document, wanted, &verified, "verify"), None);
    let refused = ask(&socket, "GET", "/v1/runs/nobody", "");
    assert_eq!((refused.status, refused.media.as_str()), (404, "application/problem+json"));
    let problem = shape(&document, "get", "/v1/runs/{id}", "default");
    assert_eq!(misfit(&document, problem, &refused.json(), "problem"), None);
    let bad = ask(&socket, "GET", "/v1/runs/shaped/logs?follow=perhaps", "");
    assert_eq!((bad.status, &bad.json()["code"]), (400, &json!("api.bad_request")));
    assert_eq!(misfit(&document, problem, &bad.json(), "problem"), None);
    // Control: a field too few, one too many and one of another kind are seen.
    let receipt = ask(&socket, "GET", "/v1/runs/shaped/receipt", "").json();
    let wanted = shape(&document, "get", "/v1/runs/{id}/receipt", "200");
    let broken: [fn(&mut Value); 3] = [
        |r| drop(r["receipt"].as_object_mut().unwrap().remove("budget")),
        |r| r["receipt"]["usage"]["more"] = json!(1),
        |r| r["receipt"]["limits"]["pids"] = json!("many"),
    ];
    for spoil in broken {
        let mut spoilt = receipt.clone();
        spoil(&mut spoilt);
        assert!(misfit(&document, wanted, &spoilt, "receipt").is_some(), "{spoilt}");
    }
}
