//! The driver as the model sees it: decide, append, apply, then what follows by itself; effects are
//! handed out only when the events that caused them are in the journal.

use atenea_core::effect::Effect;
use atenea_core::event::{Event, Recorded, Stamp};
use atenea_core::input::Input;
use atenea_core::{Decision, Refusal, Settings, State, apply, decide};

use crate::watch::Watch;

/// The supervisor is gone. What was appended stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

/// Ends the supervisor at a chosen point; counts points when none is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fuse {
    /// The point at which it burns through.
    pub at: Option<u64>,
    /// Points passed.
    pub passed: u64,
}

impl Fuse {
    /// Passes a point.
    ///
    /// # Errors
    /// [`Died`] at the chosen one.
    pub fn pass(&mut self) -> Result<(), Died> {
        self.passed += 1;
        if self.at == Some(self.passed) { Err(Died) } else { Ok(()) }
    }
}

/// What the next append meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It is durable.
    Good,
    /// It fails and nothing of it is there when the store is opened again.
    Lost,
    /// It fails and all of it is there when the store is opened again.
    Kept,
}

/// State, journal and effects that are not handed out yet.
#[derive(Clone, Debug)]
pub struct Driver {
    /// The live state.
    pub state: State,
    /// Its settings.
    pub settings: Settings,
    /// The time of the next input.
    pub now: Stamp,
    /// What is durable.
    pub journal: Vec<Recorded>,
    /// Looks at each durable event.
    pub watch: Watch,
    /// Effects of durable events, in order.
    pub outbox: Vec<Effect>,
    /// When to die.
    pub fuse: Fuse,
    /// What the next append meets.
    pub commit: Commit,
}

/// Advances in a row after one input; more means that the machine never comes to rest.
const ADVANCES_MAX: usize = 1_000;

impl Driver {
    /// An empty journal.
    pub fn new(settings: Settings) -> Self {
        Driver {
            state: State::default(),
            settings,
            now: Stamp { wall_ms: 1_795_910_400_000, boot_ms: 1_000 },
            journal: Vec::new(),
            watch: Watch::default(),
            outbox: Vec::new(),
            fuse: Fuse::default(),
            commit: Commit::Good,
        }
    }

    /// One input and everything that follows from it by itself.
    ///
    /// # Errors
    /// [`Died`] when the fuse burns through or the commit fails (J5: the process stops).
    pub fn submit(&mut self, input: Input) -> Result<Result<Decision, Refusal>, Died> {
        let decision = match decide(&self.state, &self.settings, self.now, input) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.append(&decision.events)?;
        for _ in 0..ADVANCES_MAX {
            let more = match decide(&self.state, &self.settings, self.now, Input::Advance) {
                Ok(more) if !more.events.is_empty() => more,
                _ => return Ok(Ok(decision)),
            };
            self.append(&more.events)?;
        }
        self.watch.wrongs.push("C3: the machine never comes to rest".to_owned());
        Ok(Ok(decision))
    }

    /// Appends events and applies them: only what is durable is acted on.
    ///
    /// # Errors
    /// As for [`Driver::submit`].
    pub fn append(&mut self, events: &[Event]) -> Result<(), Died> {
        if events.is_empty() {
            return Ok(());
        }
        let commit = std::mem::replace(&mut self.commit, Commit::Good);
        if commit == Commit::Lost {
            return Err(Died);
        }
        let start = self.journal.len();
        for event in events {
            let seq = self.journal.len() as u64 + 1;
            let recorded = Recorded { seq, at: self.now, event: event.clone() };
            self.watch.see(&recorded);
            self.journal.push(recorded);
            // A batch may be stored in several commits, so each of its events may be the last.
            self.fuse.pass()?;
        }
        if commit == Commit::Kept {
            return Err(Died);
        }
        for recorded in self.journal.iter().skip(start) {
            let effects = apply(&mut self.state, recorded);
            self.outbox.extend(effects);
        }
        Ok(())
    }

    /// The state that the journal alone gives.
    pub fn fold(&self) -> State {
        let mut state = State::default();
        for recorded in &self.journal {
            apply(&mut state, recorded);
        }
        state
    }
}
