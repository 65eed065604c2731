//! What a person is told about the work of a run: its diff, and what no export carries.

use atenea_core::run::Run;
use atenea_core::{Refusal, RunId};
use atenea_workspace::worker::{Answer, Request};
use atenea_workspace::{RawPath, Refused, Sealed};

use super::host::Inner;
use super::workspace::{Prepared, sealed, unexpected};
use crate::api::types::{ChangesView, DiffView};

/// Largest diff that is shown, bytes.
const DIFF_BYTES_MAX: u64 = 16 << 20;

/// What the run changed, for a reviewer.
pub(super) async fn diff(inner: &Inner, run: &Run) -> Result<DiffView, Refusal> {
    let prepared = Prepared::load(inner, &run.id)?;
    let sealed = sealed(&prepared, &run.id)?;
    let store: RawPath = inner.dirs.base(&run.id).as_path().into();
    let ask = Request::Diff { store: store.clone(), sealed: sealed.clone(), max: DIFF_BYTES_MAX };
    let text = match inner.workers.ask(None, &ask, |_| {}).await? {
        Answer::Diff(text) => text,
        other => return Err(unexpected(&other)),
    };
    let ask = Request::DiffJson { store, sealed: sealed.clone() };
    let files = match inner.workers.ask(None, &ask, |_| {}).await? {
        Answer::DiffFiles(files) => files,
        other => return Err(unexpected(&other)),
    };
    let mut shown = refused_lines(&sealed);
    shown.push_str(&text.text);
    if text.truncated {
        shown.push_str("\n(the rest is left out; export to a ref to see all)\n");
    }
    let changes = files.iter().filter_map(|f| serde_json::to_value(f).ok());
    let refused = sealed.refused.iter().filter_map(refused_entry);
    Ok(DiffView {
        text: shown,
        files: changes.chain(refused).collect(),
        notes: notes(&prepared, &sealed),
        changes: Some(changes_of(&sealed)),
    })
}

/// What an export leaves out, for its answer.
pub(super) struct LeftOut {
    /// The changes, by path and code.
    pub files: Vec<serde_json::Value>,
    /// Whatever else a person may miss.
    pub notes: Vec<String>,
    /// Whether the commit below the exported one holds uncommitted files of the user.
    pub uncommitted_base: bool,
}

/// What an export of this run leaves out.
pub(super) fn left_out(inner: &Inner, run: &RunId, as_patch: bool) -> Result<LeftOut, Refusal> {
    let prepared = Prepared::load(inner, run)?;
    let sealed = sealed(&prepared, run)?;
    let mut all: Vec<String> =
        sealed.left_out(as_patch).map(|refused| format!("left out: {}", line(refused))).collect();
    all.extend(and_more(&sealed).map(|more| format!("left out: {more}")));
    all.extend(notes(&prepared, &sealed));
    Ok(LeftOut {
        files: sealed.left_out(as_patch).filter_map(refused_entry).collect(),
        notes: all,
        uncommitted_base: sealed.uncommitted_base,
    })
}

/// The parts of what a run changed; none before it is sealed.
pub(super) fn changes(inner: &Inner, run: &RunId) -> Option<ChangesView> {
    let prepared = Prepared::load(inner, run).ok()?;
    prepared.sealed.as_ref().map(changes_of)
}

fn changes_of(sealed: &Sealed) -> ChangesView {
    let c = sealed.changes;
    ChangesView {
        files: c.added + c.modified + c.deleted,
        refused: sealed.refused_total,
        ignored: c.ignored,
        refs: sealed.history.total,
    }
}

fn refused_entry(refused: &Refused) -> Option<serde_json::Value> {
    let path = serde_json::to_value(&refused.path).ok()?;
    let mut entry = serde_json::json!({ "path": path, "refused": refused.code });
    if let (Some(why), Some(entry)) = (&refused.why, entry.as_object_mut()) {
        entry.insert("why".to_owned(), why.as_str().into());
    }
    Some(entry)
}

fn line(refused: &Refused) -> String {
    match &refused.why {
        Some(why) => format!("{} ({}: {why})", refused.path.shown(), refused.code),
        None => format!("{} ({})", refused.path.shown(), refused.code),
    }
}

fn and_more(sealed: &Sealed) -> Option<String> {
    let named = u64::try_from(sealed.refused.len()).unwrap_or(u64::MAX);
    let more = sealed.refused_total.saturating_sub(named);
    (more > 0).then(|| format!("and {more} more"))
}

/// What an export leaves out is shown first: it is in no tree, so no diff has it.
fn refused_lines(sealed: &Sealed) -> String {
    let mut lines: String =
        sealed.refused.iter().map(|r| format!("! not exportable: {}\n", line(r))).collect();
    lines.extend(and_more(sealed).map(|more| format!("! {more}\n")));
    lines
}

/// What counts as work of the run and is in no diff and no export.
fn notes(prepared: &Prepared, sealed: &Sealed) -> Vec<String> {
    let mut notes = Vec::new();
    match sealed.changes.ignored {
        0 => {}
        1 => notes.push("1 ignored file changed; it is not exported".to_owned()),
        n => notes.push(format!("{n} ignored files changed; they are not exported")),
    }
    let history = &sealed.history;
    if history.total > 0 {
        let mut names: Vec<String> = history.refs.iter().map(RawPath::shown).collect();
        let named = u64::try_from(names.len()).unwrap_or(u64::MAX);
        if history.total > named {
            names.push(format!("and {} more", history.total - named));
        }
        notes.push(format!(
            "commits, branches and tags made inside are not exported, only the final files: {}",
            names.join(", ")
        ));
    }
    if history.unreadable {
        let text = "the refs of the run's own repository cannot be read; whatever history was made \
                    inside is not exported";
        notes.push(text.to_owned());
    }
    if prepared.other_work && notes.is_empty() {
        let text = "something changed that an export does not carry: below .git, or an empty \
                    directory";
        notes.push(text.to_owned());
    }
    notes
}
