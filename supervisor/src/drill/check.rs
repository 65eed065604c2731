//! Everything that must hold after a kill and after the recovery from it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use atenea_core::digest::canonical_json;
use atenea_core::event::ExportTarget;
use atenea_core::{Digest, Nanos, Profile, Refusal, RunId};
use hyper::Method;
use serde_json::Value;

use crate::api::types::{AccountView, RunStatus};
use crate::cli::client::{Client, run_path};

use super::case::Case;
use super::facts::{self, Books, Export, Fact, Trace};
use super::look::{self, Picture, Wanted};
use super::play::{Seen, wait};
use super::scene::{Scene, git};
use super::story::{Act, FILE, Setting, WORK};

/// What a supervisor that has recovered says.
#[derive(Default)]
pub(super) struct Said {
    receipts: BTreeMap<RunId, Value>,
    account: Option<AccountView>,
}

/// Asks a supervisor that has recovered; waits until every run is over.
///
/// # Errors
/// What it refuses to say.
pub(super) async fn ask(client: &Client, found: &mut Vec<String>) -> Result<Said, Refusal> {
    let mut said = Said::default();
    let runs: Vec<RunStatus> = client.get("/v1/runs").await?;
    for run in &runs {
        let status = wait(client, &run.run).await?;
        if status.stuck.is_some() || !status.leftovers.is_empty() {
            found.push(format!(
                "{}: left {:?}, stuck {:?}",
                run.run, status.leftovers, status.stuck
            ));
        }
        let receipt = client.get(&run_path(run.run.as_str(), "/receipt")?).await?;
        said.receipts.insert(run.run.clone(), receipt);
    }
    let verified: Value = client.give(Method::POST, "/v1/journal/verify", &(), None).await?;
    if verified.get("ok").and_then(Value::as_bool) != Some(true) {
        found.push(format!("the journal is damaged: {verified}"));
    }
    said.account = Some(client.get("/v1/budgets/default").await?);
    Ok(said)
}

/// What of runs and of dead supervisors is still there: nobody has to be asked.
pub(super) async fn left(scene: &Scene, wanted: &Wanted) -> Vec<String> {
    let work = scene.work();
    look::until_gone(|| look::processes(&work, wanted)).await
}

/// Control groups of runs that are there although every run is over.
pub(super) fn groups_of_runs(scene: &Scene) -> Vec<String> {
    match look::groups(&instance(scene)) {
        Ok(groups) => shown("group", &groups.runs),
        Err(error) => vec![error],
    }
}

fn shown(what: &str, paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| format!("{what} {} is left", path.display())).collect()
}

fn instance(scene: &Scene) -> String {
    let text = std::fs::read_to_string(scene.place.dirs.instance()).unwrap_or_default();
    text.trim().to_owned()
}

/// Makes directories of an instance, for a positive control. Gives their paths.
pub(super) fn plant_groups(scene: &Scene) -> Vec<PathBuf> {
    let Ok(layout) = atenea_reaper::Layout::detect() else { return Vec::new() };
    let name = format!("atenea-{}", instance(scene));
    let dirs = layout.own_groups().into_iter().map(|own| own.join(&name));
    dirs.filter(|dir| std::fs::create_dir(dir).is_ok()).collect()
}

/// The host when the last supervisor has stopped in order.
pub(super) async fn host(scene: &Scene, wanted: &Wanted) -> Vec<String> {
    let root = scene.root();
    let mut found = look::until_gone(|| look::processes(&root, wanted)).await;
    match look::groups(&instance(scene)) {
        Ok(groups) => {
            found.extend(shown("group", &groups.runs));
            found.extend(shown("group", &groups.instances));
        }
        Err(error) => found.push(error),
    }
    found.extend(look::mounts(&root).unwrap_or_else(|error| vec![error]));
    if look::is_socket(&scene.place.socket) {
        found.push(format!("socket {} is left", scene.place.socket.display()));
    }
    found.extend(look::strange_files(scene.place.dirs.root()));
    found
}

/// Records at each kill and at the end.
pub(super) struct Course<'a> {
    pub(super) case: &'a Case,
    pub(super) seen: &'a Seen,
    pub(super) said: &'a Said,
    /// The base before everything.
    pub(super) before: &'a Picture,
    /// What was durable when each supervisor was dead.
    pub(super) durable: &'a [Vec<Fact>],
    /// All records.
    pub(super) facts: &'a [Fact],
}

impl Course<'_> {
    /// Journal, ledger, receipts, workspaces, base and exports.
    pub(super) fn check(&self, scene: &Scene) -> Vec<String> {
        let (books, mut found) = facts::books(self.facts);
        found.extend(facts::unfinished(&books));
        found.extend(self.durability(&books));
        found.extend(self.money(&books));
        for (run, trace) in &books.traces {
            found.extend(self.receipt(run, trace));
            found.extend(self.workspace(scene, run, trace));
            found.extend(self.export(scene, run, trace));
        }
        found.extend(self.base(scene));
        found
    }

    /// J1, J2: what was durable stays, in its order; what was acknowledged was durable.
    fn durability(&self, books: &Books) -> Vec<String> {
        let mut found = Vec::new();
        for (at, durable) in self.durable.iter().enumerate() {
            if !self.facts.starts_with(durable) {
                found.push(format!("J1: records of start {} were lost or changed", at + 1));
            }
        }
        let lost = self.seen.runs.iter().filter(|run| !books.traces.contains_key(*run));
        found.extend(lost.map(|run| format!("J1: {run} was acknowledged and is in no record")));
        found
    }

    /// The books and what the supervisor says of the account are the same.
    fn money(&self, books: &Books) -> Vec<String> {
        let Some(account) = &self.said.account else { return Vec::new() };
        let usd = |text: &str| Nanos::parse_usd(text).unwrap_or(Nanos(u64::MAX));
        let (held, spent) = (usd(&account.usd_held), usd(&account.usd_spent));
        if (held, spent, usd(&account.usd_available))
            == (books.held_in_all(), books.spent, books.available())
        {
            return Vec::new();
        }
        vec![format!("the account says held {held}, spent {spent}; the records say otherwise")]
    }

    /// The receipt is the one whose digest is recorded, and names the record it covers.
    fn receipt(&self, run: &RunId, trace: &Trace) -> Vec<String> {
        let Some(said) = self.said.receipts.get(run) else { return Vec::new() };
        let receipt = said.get("receipt").unwrap_or(&Value::Null);
        let digest = Digest::of(canonical_json(receipt).as_bytes());
        let mut found = Vec::new();
        if trace.receipts.first() != Some(&digest) {
            found.push(format!("{run}: its receipt has digest {digest}, which is not recorded"));
        }
        let last = receipt.get("last_seq").and_then(Value::as_u64);
        let head = receipt.get("head").and_then(Value::as_str);
        let fact = self.facts.iter().find(|fact| Some(fact.recorded.seq) == last);
        if fact.map(|fact| fact.hash.as_str()) != head || head.is_none() {
            found.push(format!("{run}: its receipt names a head that is not record {last:?}"));
        }
        found
    }

    /// C4: work is kept unless a person gave it up; what no agent saw is not.
    fn workspace(&self, scene: &Scene, run: &RunId, trace: &Trace) -> Vec<String> {
        let dirs = &scene.place.dirs;
        let (guard, base) = (dirs.workspace_guard(run), dirs.base(run));
        let mut found = Vec::new();
        let keeps = trace.profile == Some(Profile::WorkspaceWrite);
        let gone = !keeps || trace.removed || trace.discarded;
        let gone = gone || !trace.workspace_intended || trace.go == 0;
        if gone {
            let left = [guard, base].into_iter().filter(|path| path.exists());
            found.extend(left.map(|path| format!("{} is left", path.display())));
        } else if !dirs.workspace(run).is_dir() {
            found.push(format!("C4: the workspace of {run} is gone"));
        }
        let given_up = self.case.story.acts.contains(&Act::Discard);
        if trace.discard_intended && trace.sealed != Some(0) && !given_up {
            found.push(format!("C4: the work of {run} was dropped and nobody asked for it"));
        }
        let file = dirs.workspace(run).join(FILE);
        let works = self.seen.ready.contains(run) && keeps;
        if works && !gone && std::fs::read_to_string(&file).ok().as_deref() != Some(WORK) {
            found.push(format!("C4: what {run} wrote is not in {}", file.display()));
        }
        found
    }

    /// An export is whole or absent.
    fn export(&self, scene: &Scene, run: &RunId, trace: &Trace) -> Vec<String> {
        let work = scene.work();
        match &trace.export {
            Some((ExportTarget::Patch, Export::Done(_))) => {
                let patch = scene.place.dirs.patch(run);
                let text = std::fs::read_to_string(&patch).unwrap_or_default();
                let whole = text.contains("+work");
                if whole { Vec::new() } else { vec![format!("{} is not whole", patch.display())] }
            }
            Some((ExportTarget::Ref(name), Export::Done(commit))) => {
                let mut found = Vec::new();
                let is = |args: &[&str]| git(&work, args).unwrap_or_else(|e| e.cause);
                let there = is(&["rev-parse", name]);
                if Some(there.trim()) != commit.as_deref() {
                    found.push(format!("{name} is {}, recorded is {commit:?}", there.trim()));
                }
                if is(&["show", &format!("{name}:{FILE}")]) != WORK {
                    found.push(format!("{name} does not hold what the agent wrote"));
                }
                if is(&["rev-list", "--count", &format!("HEAD..{name}")]).trim() != "1" {
                    found.push(format!("R3: {name} is not one commit on its base"));
                }
                found
            }
            _ if self.case.setting == Setting::Write => {
                let name = format!("refs/atenea/{run}");
                let there = git(&work, &["rev-parse", "--verify", "--quiet", &name]).is_ok();
                if there { vec![format!("{name} is there and not recorded")] } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    /// The base is as it was, byte for byte.
    fn base(&self, scene: &Scene) -> Vec<String> {
        let work = scene.work();
        if self.case.setting == Setting::Host {
            // A run on the host works on the base itself.
            return Vec::new();
        }
        let exports = [Act::Export, Act::ExportRefused];
        let exports = self.case.story.acts.iter().any(|act| exports.contains(act));
        let mut found = match look::picture(&work) {
            Ok(after) => look::differences(self.before, &after, exports),
            Err(error) => vec![error],
        };
        for (name, commit) in &self.seen.exported {
            let there = git(&work, &["rev-parse", name]).unwrap_or_default();
            if there.trim() != commit {
                found.push(format!(
                    "J1: the export {name} at {commit} was acknowledged and is lost"
                ));
            }
        }
        if work.join(".git").exists()
            && let Err(refusal) = git(&work, &["fsck", "--strict", "--no-dangling"])
        {
            found.push(refusal.cause);
        }
        found.into_iter().map(|what| format!("base: {what}")).collect()
    }
}
