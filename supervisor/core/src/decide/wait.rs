//! Which observations can wait for the next ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::RunId;
use crate::event::Step;
use crate::input::{Input, Observation};
use crate::state::State;

/// Whether nothing can follow from these inputs before another one comes, so that they may be
/// recorded together with it. True only for a step that is done while others of its run are out,
/// and for the start of an agent. Whoever waits must bound the time.
pub fn can_wait<'a>(state: &State, inputs: impl IntoIterator<Item = &'a Input>) -> bool {
    let mut answered: BTreeMap<&RunId, BTreeSet<Step>> = BTreeMap::new();
    for input in inputs {
        let Input::Observation(seen) = input else { return false };
        let (run, step) = match seen {
            Observation::WorkspaceReady { run, .. } => (run, Step::Workspace),
            Observation::GroupReady { run, .. } => (run, Step::Group),
            Observation::PolicyReady { run, .. } => (run, Step::Policy),
            Observation::AgentStarted { .. } => continue,
            _ => return false,
        };
        answered.entry(run).or_default().insert(step);
    }
    answered.into_iter().all(|(id, done)| {
        state.runs.get(id).is_some_and(|run| {
            run.outcome.is_none() && run.in_flight.iter().any(|step| !done.contains(step))
        })
    })
}
