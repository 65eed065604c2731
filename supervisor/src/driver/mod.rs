//! The driver: turns inputs into durable events, applies them, and hands out their effects.
//!
//! One task owns the order of things: drain what came in → decide → append durably → hand out
//! effects and answers. Readers see a state only when it is durable: the state is locked from the
//! first decision of a batch until the journal has acknowledged it. A failed append ends the
//! process at once (J5); what happened is learnt by reopening.

pub mod admission;
mod cleanup;
mod disk;
mod disk_walk;
pub mod held;
pub mod helper;
pub mod host;
mod lanes;
pub mod live;
pub mod record;
mod review;
mod sandbox;
pub mod streams;
pub mod told;
mod worker;
mod workspace;

use std::sync::Arc;
use std::time::Duration;

use atenea_core::effect::Effect;
use atenea_core::event::Recorded;
use atenea_core::input::{Command, Input, Observation};
use atenea_core::{Code, Refusal, RunId, Settings, State, apply, can_wait, decide};
use atenea_journal::{Journal, Priority};
use tokio::sync::{RwLock, RwLockWriteGuard, mpsc, oneshot, watch};

use crate::clock;
use crate::crash::{self, Side};

/// Inputs drained into one append: more would make the answers of the first ones wait.
const BATCH_INPUTS_MAX: usize = 256;
/// Inputs that may wait. Senders wait when it is full; each run has few effects out at a time.
const QUEUE_INPUTS_MAX: usize = 4_096;
/// Rounds of `Advance` after a batch; each round makes progress, so more means a loop.
const ADVANCE_ROUNDS_MAX: usize = 10_000;
/// How long inputs from which nothing follows yet wait for the next ones. Somebody who looks at the
/// state sees them that much later; nobody else does.
const GATHER: Duration = Duration::from_millis(20);
/// Free bytes asked for at admission beyond the journal's reserve (J9).
const ADMISSION_BYTES_MIN: u64 = 8 << 20;

/// An accepted command's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The run a repeated request stands for.
    pub existing: Option<RunId>,
}

/// What a command is answered with.
type Verdict = Result<Reply, Refusal>;

struct Message {
    input: Input,
    reply: Option<oneshot::Sender<Verdict>>,
}

/// What everybody else holds of the driver.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::Sender<Message>,
    state: Arc<RwLock<State>>,
    seq: watch::Receiver<u64>,
    settings: watch::Sender<Settings>,
}

impl Handle {
    /// Decides by these settings from now on; what waits is looked at again.
    pub fn settings(&self, settings: Settings) {
        self.settings.send_replace(settings);
    }

    /// Sends a command and waits until its events are durable.
    ///
    /// # Errors
    /// The refusal of the state machine.
    pub async fn command(&self, command: Command) -> Result<Reply, Refusal> {
        let (reply, answer) = oneshot::channel();
        let message = Message { input: Input::Command(command), reply: Some(reply) };
        let gone = || Refusal::new(Code::ProcessStopping, "the supervisor is going down");
        self.inputs.send(message).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Reports what happened. Waits while the queue is full; a driver that is gone needs nothing.
    pub async fn observe(&self, seen: Observation) {
        let message = Message { input: Input::Observation(seen), reply: None };
        let _ = self.inputs.send(message).await;
    }

    /// Looks at the durable state.
    pub async fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&*self.state.read().await)
    }

    /// Looks at the durable state after each change until `look` finds what it waits for.
    pub async fn until<R>(&self, mut look: impl FnMut(&State) -> Option<R>) -> Option<R> {
        let mut seq = self.seq.clone();
        loop {
            seq.borrow_and_update();
            if let Some(found) = look(&*self.state.read().await) {
                return Some(found);
            }
            seq.changed().await.ok()?;
        }
    }

    /// A receiver of the last durable sequence.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.seq.clone()
    }
}

/// Executes effects; each answers with observations through the handle it was given.
pub trait Execute: Send + Sync + 'static {
    /// Executes an effect that reaches no further than this process's memory and gives its answer;
    /// `None` for any other, which is then not executed. It runs before the event that caused it is
    /// durable: when that event is lost, so is this process and all it did (J5).
    fn at_once(&self, effect: &Effect) -> Option<Observation>;
    /// Starts one effect without waiting for its end.
    fn execute(&self, effect: Effect);
}

/// The driver before it runs.
pub struct Driver {
    inputs: mpsc::Receiver<Message>,
    state: Arc<RwLock<State>>,
    seq: watch::Sender<u64>,
    settings: watch::Receiver<Settings>,
    journal: Journal,
    snapshot_every: u64,
    snapshot_at: u64,
}

impl Driver {
    /// A driver over a folded state.
    pub fn new(
        state: State,
        settings: Settings,
        journal: Journal,
        snapshot_every: u64,
    ) -> (Self, Handle) {
        let (inputs_tx, inputs) = mpsc::channel(QUEUE_INPUTS_MAX);
        let (seq, seq_rx) = watch::channel(state.seq);
        let (settings_tx, settings) = watch::channel(settings);
        let snapshot_at = state.seq;
        let state = Arc::new(RwLock::new(state));
        let handle = Handle {
            inputs: inputs_tx,
            state: Arc::clone(&state),
            seq: seq_rx,
            settings: settings_tx,
        };
        let driver = Driver { inputs, state, seq, settings, journal, snapshot_every, snapshot_at };
        (driver, handle)
    }

    /// Runs until every handle is gone.
    pub async fn run(mut self, host: Arc<dyn Execute>) {
        loop {
            let wake = self.state.read().await.next_deadline();
            let mut batch = Vec::new();
            tokio::select! {
                got = self.inputs.recv_many(&mut batch, BATCH_INPUTS_MAX) => {
                    if got == 0 {
                        return;
                    }
                }
                () = until_boot_ms(wake) => {}
                // Its senders are the handles: when they are gone, so are the inputs.
                _ = self.settings.changed() => {}
            }
            self.gather(&mut batch).await;
            self.process(batch, &*host).await;
        }
    }

    /// Waits for what will come in a moment while nothing can follow from what is there: a commit
    /// saved is a millisecond of a launch.
    async fn gather(&mut self, batch: &mut Vec<Message>) {
        let until = tokio::time::Instant::now() + GATHER;
        while self.can_wait(batch).await {
            let more = self.inputs.recv_many(batch, BATCH_INPUTS_MAX);
            if tokio::time::timeout_at(until, more).await.is_err() {
                return;
            }
        }
    }

    async fn can_wait(&self, batch: &[Message]) -> bool {
        if batch.is_empty() || batch.len() >= BATCH_INPUTS_MAX || self.inputs.is_closed() {
            return false;
        }
        let state = self.state.read().await;
        can_wait(&state, batch.iter().map(|message| &message.input))
    }

    async fn process(&mut self, batch: Vec<Message>, host: &dyn Execute) {
        let shared = Arc::clone(&self.state);
        let mut state = shared.write().await;
        let mut work = Work::default();
        for message in batch {
            let answer = self.one(&mut state, message.input, &mut work);
            if let Some(reply) = message.reply {
                work.replies.push((reply, answer));
            }
        }
        for _ in 0..ADVANCE_ROUNDS_MAX {
            let before = work.events.len();
            let _ = self.one(&mut state, Input::Advance, &mut work);
            self.at_once(&mut state, &mut work, host);
            if work.events.len() == before {
                break;
            }
        }
        if !work.events.is_empty() {
            crash::append(Side::Before, &work.events);
            self.append(&work.events).await;
            crash::append(Side::After, &work.events);
            self.snapshot(&state);
            self.seq.send_replace(state.seq);
        }
        drop(state);
        for effect in work.effects {
            host.execute(effect);
        }
        for (reply, answer) in work.replies {
            let _ = reply.send(answer);
        }
    }

    /// Executes what needs no durable event and decides its answers in the same batch.
    fn at_once(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        work: &mut Work,
        host: &dyn Execute,
    ) {
        for effect in std::mem::take(&mut work.effects) {
            match host.at_once(&effect) {
                // An observation is never refused.
                Some(seen) => drop(self.one(state, Input::Observation(seen), work)),
                None => work.effects.push(effect),
            }
        }
    }

    fn one(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        input: Input,
        work: &mut Work,
    ) -> Result<Reply, Refusal> {
        if let Input::Command(Command::Request { .. } | Command::SetBudget { .. }) = &input {
            // J9: nothing new is admitted on a full disk; what cleans up still fits.
            record::space_refusal(self.journal.has_space(ADMISSION_BYTES_MIN))?;
        }
        let at = clock::now();
        let decision = decide(state, &self.settings.borrow(), at, input)?;
        for event in decision.events {
            let recorded = Recorded { seq: state.seq + 1, at, event };
            work.effects.extend(apply(state, &recorded));
            work.events.push(recorded);
        }
        Ok(Reply { existing: decision.existing })
    }

    /// Appends durably or ends the process: effects of events that may not exist must never run
    /// (J5), and the launcher helper kills every run when we are gone.
    async fn append(&self, events: &[Recorded]) {
        let Err(cause) = self.try_append(events).await else { return };
        let refusal = Refusal::new(Code::JournalIo, cause);
        tracing::error!("{refusal}");
        std::process::exit(crate::exit::JOURNAL_FAILED);
    }

    async fn try_append(&self, events: &[Recorded]) -> Result<(), String> {
        let mut last = None;
        for chunk in record::encode_all(events)? {
            let (done, durable) = oneshot::channel();
            let tell = Box::new(move |result| drop(done.send(result)));
            self.journal
                .append_with(chunk, Priority::Cleanup, tell)
                .map_err(|error| error.to_string())?;
            let answer = durable.await.map_err(|_| "the journal's writer is gone".to_owned())?;
            last = Some(answer.map_err(|error| error.to_string())?.last);
        }
        if last == events.last().map(|e| e.seq) {
            return Ok(());
        }
        Err(format!("the journal is at {last:?}, the state at {:?}", events.last().map(|e| e.seq)))
    }

    /// J6: a snapshot only makes the next start cheaper; failing to write one is no failure.
    fn snapshot(&mut self, state: &State) {
        if state.seq < self.snapshot_at.saturating_add(self.snapshot_every) {
            return;
        }
        self.snapshot_at = state.seq;
        if let Err(error) = record::put_snapshot(&self.journal, state) {
            tracing::warn!("no snapshot at {}: {error}", state.seq);
        }
    }
}

#[derive(Default)]
struct Work {
    events: Vec<Recorded>,
    effects: Vec<Effect>,
    replies: Vec<(oneshot::Sender<Verdict>, Verdict)>,
}

async fn until_boot_ms(wake: Option<u64>) {
    match wake {
        Some(at) => {
            let left = at.saturating_sub(clock::now().boot_ms);
            tokio::time::sleep(Duration::from_millis(left)).await;
        }
        None => std::future::pending().await,
    }
}
