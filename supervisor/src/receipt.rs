//! Receipts: what a run was, what it was refused, what it cost, what is left. Derived from the
//! durable state alone, so that the supervisor that writes it may be another one than the one that
//! ran it.

use atenea_core::event::CleanupStep;
use atenea_core::run::Run;
use atenea_core::{Digest, Refusal};
use serde_json::{Value, json};

use crate::api::view;
use crate::files;
use crate::layout::{StateDir, Stream};

/// Version of the receipt's schema.
pub const SCHEMA: u32 = 1;

/// The receipt of a settled or refused run; `head` is the journal's hash at its last event.
pub fn make(run: &Run, dirs: &StateDir, head: &str) -> Value {
    let spec = &run.spec;
    let exit = run.exit.map(|exit| view::exit_status(exit, run.cause.as_ref()));
    json!({
        "schema": SCHEMA,
        "supervisor": env!("CARGO_PKG_VERSION"),
        "run": run.id,
        "parent": null,
        "name": spec.name,
        "program": spec.program,
        "owner": spec.owner,
        "manifest": spec.manifest,
        "sealed": spec.sealed,
        "approval": run.approval.map(|seq| json!({ "step": spec.step, "seq": seq })),
        "profile": spec.profile,
        "enforced": spec.profile.is_enforced(),
        "label": if spec.profile.is_enforced() { "sandboxed" } else { "unsandboxed" },
        "boundary": run.boundary,
        "self_test": self_test(run),
        "runtime": "host",
        "limits": spec.limits,
        "usage": usage(run, dirs),
        "budget": {
            "account": spec.budget.as_ref().map(|b| b.account.to_string()),
            "held": run.money.held_at_start.to_string(),
            "reported": run.money.reported.to_string(),
            "unknown": run.money.unknown.to_string(),
            "quality": view::budget(run).quality.unwrap_or_else(|| "none".to_owned()),
            "note": if spec.priced { Value::Null } else { json!("nothing priced was granted; none reported") },
        },
        "denials": run.denials.iter().map(|(c, n)| (c.to_string(), *n)).collect::<std::collections::BTreeMap<_, _>>(),
        "outcome": run.outcome.map(atenea_core::Outcome::as_str),
        "cause": run.cause.as_ref().map(|(code, cause)| json!({ "code": code, "cause": cause })),
        "cancel_reason": run.cancel_reason,
        "exit": exit,
        "client_status": run.client_status(),
        "workspace": {
            "state": run.workspace.as_str(),
            "base_tree": run.base_tree,
            "base_commit": run.base_commit,
            "result_tree": run.result_tree,
            "changed": run.changed,
            "quota": if spec.writable_workspace { "watched" } else { "none" },
        },
        "cleanup": cleanup(run),
        "leftovers": run.leftovers(),
        "times": {
            "requested_ms": run.requested_at.wall_ms,
            "started_ms": run.started_at.map(|at| at.wall_ms),
        },
        "first_seq": run.seq.0,
        "last_seq": run.settled_seq,
        "head": head,
    })
}

fn self_test(run: &Run) -> Value {
    let passed: Vec<&str> =
        run.self_test.iter().filter(|t| !t.refused).map(|t| t.name.as_str()).collect();
    json!({
        "acts": run.self_test.len(),
        "refused": run.self_test.iter().filter(|t| t.refused).count(),
        "succeeded": passed,
    })
}

fn usage(run: &Run, dirs: &StateDir) -> Value {
    let written = |stream| std::fs::metadata(dirs.stream(&run.id, stream)).map_or(0, |m| m.len());
    let kept = written(Stream::Stdout).saturating_add(written(Stream::Stderr));
    json!({
        "cpu_us": run.usage.cpu_us,
        "memory_peak_bytes": run.usage.memory_peak_bytes,
        "pids_peak": run.usage.pids_peak,
        "wall_ms": run.usage.wall_ms,
        "output_bytes": kept,
    })
}

fn cleanup(run: &Run) -> Value {
    let one = |step: &CleanupStep| {
        let state = match run.cleanup.get(step) {
            None => "not needed",
            Some(c) if c.done => "done",
            Some(c) if c.given_up => "given up",
            Some(_) => "open",
        };
        (format!("{step:?}").to_lowercase(), json!(state))
    };
    Value::Object(CleanupStep::ALL.iter().map(one).collect())
}

/// Writes the receipt and gives its digest: BLAKE3 over its RFC 8785 form.
///
/// # Errors
/// `fs.disk_full`, `fs.io`.
pub fn write(run: &Run, dirs: &StateDir, head: &str) -> Result<Digest, Refusal> {
    let receipt = make(run, dirs, head);
    let text = atenea_core::digest::canonical_json(&receipt);
    let digest = Digest::of(text.as_bytes());
    let path = dirs.receipt(&run.id);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|e| files::io_refusal(dir, &e))?;
    }
    files::replace(&path, text.as_bytes())?;
    Ok(digest)
}

/// The receipt as clients get it: with its digest and what happened after it.
///
/// # Errors
/// `fs.io`, or `journal.damaged` when the file is not the one whose digest is in the journal.
pub fn with_amendments(dirs: &StateDir, run: &Run) -> Result<String, Refusal> {
    let path = dirs.receipt(&run.id);
    let text = std::fs::read_to_string(&path).map_err(|e| files::io_refusal(&path, &e))?;
    let digest = Digest::of(text.as_bytes());
    if Some(digest) != run.receipt {
        let cause = format!("the receipt of {} was changed: its digest is {digest}", run.id);
        return Err(Refusal::new(atenea_core::Code::JournalDamaged, cause)
            .with_help("the journal holds the digest of the true one"));
    }
    let receipt: Value = serde_json::from_str(&text)
        .map_err(|e| Refusal::new(atenea_core::Code::FsIo, e.to_string()))?;
    let whole = json!({ "receipt": receipt, "digest": digest, "amendments": run.amendments });
    Ok(whole.to_string())
}
