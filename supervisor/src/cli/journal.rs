//! `journal …`: asks the supervisor that holds it; when nobody does, opens it here.

use std::ops::ControlFlow;

use atenea_core::{Code, Refusal};
use atenea_journal::{Holder, Options, Record};
use hyper::Method;

use super::args::{Global, JournalCommand};
use super::output::{Output, print_all, print_bytes};
use super::{Done, connect};
use crate::driver::record::refusal;
use crate::{clock, journal_view};

pub(super) async fn journal(global: &Global, output: &Output, command: JournalCommand) -> Done {
    let client = connect::existing(global).await.ok();
    match (command, client) {
        (JournalCommand::Verify, Some(client)) => {
            let view: serde_json::Value =
                client.give(Method::POST, "/v1/journal/verify", &(), None).await?;
            Ok(show(output, &view))
        }
        (JournalCommand::Verify, None) => {
            let dir = dir(global)?;
            let report =
                atenea_journal::verify(&dir, &options(), holder()).map_err(|e| refusal(&e))?;
            Ok(show(output, &serde_json::json!(journal_view::report(&report))))
        }
        (JournalCommand::Stats, Some(client)) => {
            let view: serde_json::Value = client.get("/v1/journal/stats").await?;
            Ok(show(output, &view))
        }
        (JournalCommand::Stats, None) => {
            let stats = atenea_journal::stats(&dir(global)?, &options(), holder())
                .map_err(|e| refusal(&e))?;
            Ok(show(output, &serde_json::json!(journal_view::stats(&stats))))
        }
        (JournalCommand::Dump, Some(client)) => {
            print_bytes(&client.get_bytes("/v1/journal/dump").await?);
            Ok(0)
        }
        (JournalCommand::Dump, None) => {
            let shown = |record: Record| {
                print_all(&journal_view::line(&record));
                ControlFlow::Continue(())
            };
            atenea_journal::dump(&dir(global)?, &options(), holder(), 1, shown)
                .map_err(|e| refusal(&e))?;
            Ok(0)
        }
        (JournalCommand::Recover { .. }, Some(_)) => {
            Err(Refusal::new(Code::JournalLocked, "a supervisor runs on this journal")
                .with_help("a journal that is in use needs no recovery"))
        }
        (JournalCommand::Recover { .. }, None) => recover(global, output),
    }
}

fn recover(global: &Global, output: &Output) -> Done {
    let recovered = atenea_journal::recover_accept_loss(
        &dir(global)?,
        &options(),
        holder(),
        "accepted by a person",
    )
    .map_err(|e| refusal(&e))?;
    if output.json {
        output.object(&serde_json::json!({
            "epoch": recovered.epoch,
            "survived": recovered.survived.seq,
            "lost": recovered.lost,
            "damage": recovered.damage.to_string(),
            "kept": recovered.kept,
        }));
        return Ok(0);
    }
    let lost = recovered.lost.map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
    output.say(&format!(
        "epoch {} begins after record {}; {lost} records are lost ({})",
        recovered.epoch, recovered.survived.seq, recovered.damage
    ));
    if let Some(kept) = &recovered.kept {
        output.say(&format!("the old store is kept in {}", kept.display()));
    }
    Ok(0)
}

fn show(output: &Output, view: &serde_json::Value) -> u8 {
    if output.json {
        output.object(view);
    } else if let Some(fields) = view.as_object() {
        for (name, value) in fields {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            output.data(&format!("{name:<16} {text}\n"));
        }
    }
    let whole = view.get("ok").and_then(serde_json::Value::as_bool).unwrap_or(true);
    if whole { 0 } else { crate::exit::NO }
}

/// The journal's directory; refused when there is none, so that a wrong `--state-dir` is not taken
/// for an empty journal.
fn dir(global: &Global) -> Result<std::path::PathBuf, Refusal> {
    let dir = connect::place(global)?.dirs.journal();
    if dir.is_dir() {
        return Ok(dir);
    }
    Err(Refusal::new(Code::FsNotFound, format!("there is no journal in {}", dir.display())))
}

fn options() -> Options {
    crate::server::journal_options()
}

fn holder() -> Holder {
    Holder::this_process("atenea-sup journal", clock::now().wall_ms)
}
