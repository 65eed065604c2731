//! `doctor`: what the supervisor's probe found.

use serde_json::Value;

use super::args::Global;
use super::output::Output;
use super::{Done, connect};
use crate::api::types::Info;

pub(super) async fn doctor(global: &Global, output: &Output) -> Done {
    let found = connect::found(global).await?;
    let mut view: Value = found.client.get("/v1/doctor").await?;
    if !found.started {
        // It was started elsewhere, perhaps: with other control groups, another PATH, other limits.
        let info: Info = found.client.get("/v1/info").await?;
        if let Some(fields) = view.as_object_mut() {
            fields.insert("answered_by".to_owned(), serde_json::json!({ "pid": info.pid }));
        }
        output.say(&format!(
            "this is what supervisor {} found when it was started, perhaps from another shell or \
             before a change; to look anew from here: {program} stop, then {program} doctor",
            info.pid,
            program = output.program
        ));
    }
    if output.json {
        output.object(&view);
    } else {
        for row in view.get("features").and_then(Value::as_array).into_iter().flatten() {
            output.data(&lines(row));
        }
    }
    let enforceable = view.get("enforceable").and_then(Value::as_bool);
    Ok(if enforceable == Some(true) { 0 } else { crate::exit::NO })
}

/// One feature; what is missing with its code and remedy.
fn lines(row: &Value) -> String {
    let field = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default();
    let line = format!("{:<9} {:<24} {}", field("state"), field("name"), field("detail"));
    let mut text = format!("{}\n", line.trim_end());
    match (field("code"), field("help")) {
        ("", _) => {}
        (code, "") => text.push_str(&format!("          {code}\n")),
        (code, help) => text.push_str(&format!("          {code}: {help}\n")),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_its_code_and_remedy_and_what_was_not_tried_says_so() {
        let row = serde_json::json!({ "state": "missing", "name": "pidfd", "detail": "ENOSYS",
            "code": "host.no_pidfd", "help": "use another kernel" });
        let text = "missing   pidfd                    ENOSYS\n          \
                    host.no_pidfd: use another kernel\n";
        assert_eq!(lines(&row), text);
        let row = serde_json::json!({ "state": "not tried", "name": "sandbox", "detail": "",
            "code": null, "help": "" });
        assert_eq!(lines(&row), "not tried sandbox\n");
    }
}
