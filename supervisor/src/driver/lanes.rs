//! The order of effects: those of one run on one lane are executed one after another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use atenea_core::RunId;
use atenea_core::effect::Lane;
use tokio::task::JoinHandle;

/// Lanes kept before those that are idle are forgotten.
const LANES_KEPT: usize = 64;

/// The last effect of each lane.
#[derive(Default)]
pub(super) struct Lanes {
    last: Mutex<HashMap<(RunId, Lane), JoinHandle<()>>>,
}

impl Lanes {
    /// Starts `work` when everything that was started before it on its lane has ended. An urgent
    /// one waits for nothing.
    pub(super) fn spawn(
        &self,
        run: RunId,
        lane: Lane,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        if lane == Lane::Urgent {
            drop(tokio::spawn(work));
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= LANES_KEPT {
            last.retain(|_, task| !task.is_finished());
        }
        let before = last.remove(&(run.clone(), lane));
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                // One that panicked has ended too; its answer is missing and the run says so.
                let _ = before.await;
            }
            work.await;
        });
        last.insert((run, lane), task);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tokio::sync::{Notify, mpsc};

    fn run(name: &str) -> RunId {
        RunId::parse(name).expect("an id")
    }

    #[tokio::test]
    async fn effects_of_one_lane_keep_their_order_and_lanes_do_not_wait_for_each_other() {
        let (lanes, gate) = (Lanes::default(), Arc::new(Notify::new()));
        let (tell, mut told) = mpsc::unbounded_channel();
        let say = |word: &'static str| {
            let tell = tell.clone();
            async move { assert!(tell.send(word).is_ok()) }
        };
        let (first, opened) = (say("first"), Arc::clone(&gate));
        lanes.spawn(run("r_000000000001"), Lane::Processes, async move {
            opened.notified().await;
            first.await;
        });
        lanes.spawn(run("r_000000000001"), Lane::Processes, say("second"));
        lanes.spawn(run("r_000000000001"), Lane::Files, say("other lane"));
        assert_eq!(told.recv().await, Some("other lane"));
        lanes.spawn(run("r_000000000002"), Lane::Processes, say("other run"));
        assert_eq!(told.recv().await, Some("other run"));
        lanes.spawn(run("r_000000000001"), Lane::Urgent, say("urgent"));
        assert_eq!(told.recv().await, Some("urgent"));
        gate.notify_one();
        assert_eq!(told.recv().await, Some("first"));
        assert_eq!(told.recv().await, Some("second"));
    }

    #[tokio::test]
    async fn an_effect_that_panics_does_not_stop_its_lane() {
        let lanes = Lanes::default();
        let (tell, mut told) = mpsc::unbounded_channel();
        lanes.spawn(run("r_000000000001"), Lane::Files, async { panic!("on purpose") });
        lanes.spawn(
            run("r_000000000001"),
            Lane::Files,
            async move { assert!(tell.send(()).is_ok()) },
        );
        assert_eq!(told.recv().await, Some(()));
    }
}
