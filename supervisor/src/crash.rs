//! Places at which a recovery drill kills this supervisor, its launcher helper, or both.
//!
//! Every place has a label and is compiled into the real program. Only the hidden option `--crash` of
//! `__supervisor` arms one, and only for the process that was started with it: no file and no
//! variable can. Without it a place costs one relaxed load and does nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use atenea_core::effect::Effect;
use atenea_core::event::{CleanupStep, Event, Recorded, Step};
use rustix::process::{Pid, Signal};

/// How long a place waits for the helper that it killed: what follows has to meet a dead one.
const HELPER_DEATH_SECONDS_MAX: i64 = 5;

/// Before the number of the helper, in the log.
pub(crate) const HELPER_MARK: &str = "drill: the helper is process ";

static ARMED: AtomicBool = AtomicBool::new(false);
static ORDER: Mutex<Option<Order>> = Mutex::new(None);

/// What is about to happen, or has just happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Records become durable together: one of them gives the place its name.
    Append,
    /// An effect is executed.
    Effect,
    /// A moment between two things, which has no before and after.
    Moment,
}

macro_rules! places {
    ($($place:ident $kind:ident $label:literal [$($story:literal)*] $means:literal,)*) => {
        /// A place of the program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Place {
            $(#[doc = $means] $place,)*
        }

        impl Place {
            /// All places, in the order of a life.
            pub const ALL: &[Place] = &[$(Place::$place,)*];

            /// Its name.
            pub const fn label(self) -> &'static str {
                match self { $(Place::$place => $label,)* }
            }

            /// What happens there.
            pub const fn means(self) -> &'static str {
                match self { $(Place::$place => $means,)* }
            }

            /// Whether it has a before and an after.
            pub const fn kind(self) -> Kind {
                match self { $(Place::$place => Kind::$kind,)* }
            }

            /// Stories of the drill that come along; the first one is the usual one. None: only a start
            /// after a crash does.
            pub const fn stories(self) -> &'static [&'static str] {
                match self { $(Place::$place => &[$($story,)*],)* }
            }
        }
    };
}

places! {
    HelperStarted Moment "start.helper" [] "the helper lives; the journal is not locked",
    Locked Moment "start.locked" [] "the journal is locked and open",
    Folded Moment "start.folded" [] "the state is folded from the journal",
    Scanned Moment "start.scanned" [] "control groups and state directory were looked at",
    Probed Moment "start.probed" [] "the host was probed",
    SupervisorStarted Append "append.supervisor-started" [] "the start is recorded, and what became of each run",
    Recorded Moment "start.recorded" [] "the lock file names the new generation",
    LeftoverRemoved Append "append.leftover-removed" [] "something that no run accounts for was removed",
    UnknownRemoved Moment "start.unknown-removed" [] "what no run accounts for is gone",
    Settled Moment "start.settled" [] "every earlier run is over or stuck",
    BudgetSet Append "append.budget-set" ["work"] "an account is made",
    Listening Moment "start.listening" [] "the socket listens; nobody was told",

    RequestKept Moment "request.kept" ["work"] "the manifest is in the run's directory, the run in no journal",
    RunRequested Append "append.run-requested" ["work"] "a run is accepted, its money held, its first steps intended",
    RunRefused Append "append.run-refused" ["refused"] "a run is refused",
    PrepareWorkspace Effect "effect.prepare-workspace" ["work"] "snapshot or private clone",
    WorkspaceMade Moment "workspace.made" ["work"] "snapshot or clone is there, what is known of it is not",
    WorkspaceReady Append "append.workspace-ready" ["work"] "snapshot or clone is there",
    MakeGroup Effect "effect.make-group" ["work"] "control group and its limits",
    GroupReady Append "append.group-ready" ["work"] "the control group is there",
    CompilePolicy Effect "effect.compile-policy" ["work"] "the token is minted",
    SandboxIntended Append "append.sandbox-intended" ["work"] "the sandbox is about to be made",
    CreateSandbox Effect "effect.create-sandbox" ["work"] "namespaces, mounts, listeners, pid 1",
    BindBoundary Effect "effect.bind-boundary" ["work"] "egress and broker take the listeners",
    GoIntended Append "append.go-intended" ["work"] "the agent may start from here on",
    StartAgent Effect "effect.start-agent" ["work"] "pid 1 is told to start the agent",
    AgentStarted Append "append.agent-started" ["work"] "the agent runs",
    StepFailed Append "append.step-failed" ["missing"] "a step towards the agent failed",
    Violation Append "append.violation" ["violation"] "the agent was refused something",
    CancelRequested Append "append.cancel-requested" ["cancel" "many"] "somebody wants the run to end",
    TerminateAgent Effect "effect.terminate-agent" ["cancel" "stop"] "the agent is asked to end",
    DeadlinePassed Append "append.deadline-passed" ["timeout" "cancel"] "time is out",
    LimitExceeded Append "append.limit-exceeded" ["limit"] "a limit was reached",
    KillGroup Effect "effect.kill-group" ["cancel" "limit"] "every process of the run is killed",
    AbortSteps Effect "effect.abort-steps" ["abort"] "what prepares a run is told to stop",
    Exited Append "append.exited" ["work"] "the agent has ended",

    RevokeToken Effect "effect.revoke-token" ["work"] "the token is forgotten",
    TokenRevoked Append "append.token-revoked" ["work"] "the token is forgotten",
    RemoveGroup Effect "effect.remove-group" ["work"] "the control group is proven empty and removed",
    GroupRemoved Append "append.group-removed" ["work"] "the control group is gone",
    CloseBoundary Effect "effect.close-boundary" ["work"] "listeners and streams are closed",
    BoundaryClosed Append "append.boundary-closed" ["work"] "listeners and streams are closed",
    SealWorkspace Effect "effect.seal-workspace" ["work"] "the result is taken from the workspace",
    WorkspaceSealed Append "append.workspace-sealed" ["work"] "the result is there",
    RemoveWorkspace Effect "effect.remove-workspace" ["abort"] "a workspace that no agent saw is deleted",
    WorkspaceRemoved Append "append.workspace-removed" ["abort"] "a workspace that no agent saw is gone",
    RunSettled Append "append.run-settled" ["work"] "the hold is resolved",
    WriteReceipt Effect "effect.write-receipt" ["work"] "the receipt is written",
    ReceiptOnDisk Moment "receipt.on-disk" ["work"] "the receipt is on disk, the manifest is still there",
    ReceiptIssued Append "append.receipt-issued" ["work"] "the run has ended",

    ExportIntended Append "append.export-intended" ["export" "patch"] "reviewed changes are about to be written",
    Export Effect "effect.export" ["export" "patch"] "reviewed changes are written",
    Exported Append "append.exported" ["export" "patch"] "reviewed changes are written",
    ExportFailed Append "append.export-failed" ["conflict"] "reviewed changes could not be written",
    DiscardIntended Append "append.discard-intended" ["discard" "unchanged"] "only deletion is left for a workspace",
    Discard Effect "effect.discard" ["discard" "unchanged"] "a workspace is deleted",
    Discarded Append "append.discarded" ["discard" "unchanged"] "a workspace is gone",

    StopRequested Append "append.stop-requested" ["stop"] "nothing is admitted any more",
    SocketRemoved Moment "stop.socket-removed" ["stop"] "nobody finds the socket any more",
    SupervisorStopped Append "append.supervisor-stopped" ["stop"] "it stopped in order",
    SnapshotMade Moment "stop.snapshot" ["stop"] "the last snapshot is written",
    Closed Moment "stop.closed" ["stop"] "the journal is closed, the process still there",
}

/// The side of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before it happens. Moments have only this one.
    Before,
    /// After it happened, before anybody was told.
    After,
}

/// A side of a place: what a label names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Where.
    pub place: Place,
    /// On which side.
    pub side: Side,
}

impl Point {
    /// A moment.
    pub const fn at(place: Place) -> Self {
        Point { place, side: Side::Before }
    }

    /// All points, in the order of a life.
    pub fn all() -> impl Iterator<Item = Point> {
        Place::ALL.iter().flat_map(|place| {
            let sides: &[Side] = match place.kind() {
                Kind::Moment => &[Side::Before],
                _ => &[Side::Before, Side::After],
            };
            sides.iter().map(|side| Point { place: *place, side: *side })
        })
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match (self.place.kind(), self.side) {
            (Kind::Moment, _) => "",
            (_, Side::Before) => ".before",
            (_, Side::After) => ".after",
        };
        write!(f, "{}{side}", self.place.label())
    }
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The supervisor; its helper ends by its own rule.
    Supervisor,
    /// The helper; the supervisor ends by its own rule.
    Helper,
    /// Both at once.
    Both,
}

impl Victim {
    /// All of them.
    pub const ALL: [Victim; 3] = [Victim::Supervisor, Victim::Helper, Victim::Both];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Victim::Supervisor => "supervisor",
            Victim::Helper => "helper",
            Victim::Both => "both",
        }
    }
}

/// What `--crash LABEL[:N][:VICTIM]` says: at the Nth time, the first by itself; the supervisor by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Where.
    pub point: Point,
    /// At which time, from 1.
    pub nth: u32,
    /// Who is killed.
    pub victim: Victim,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.point, self.nth, self.victim.as_str())
    }
}

impl FromStr for Crash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let label = words.next().unwrap_or_default();
        let point = Point::all().find(|point| point.to_string() == label);
        let point = point.ok_or_else(|| format!("there is no place `{label}`"))?;
        let mut crash = Crash { point, nth: 1, victim: Victim::Supervisor };
        for word in words {
            match (Victim::ALL.iter().find(|v| v.as_str() == word), word.parse::<u32>()) {
                (Some(victim), _) => crash.victim = *victim,
                (None, Ok(nth)) if nth > 0 => crash.nth = nth,
                _ => return Err(format!("`{word}` is neither a victim nor a count from 1")),
            }
        }
        Ok(crash)
    }
}

struct Order {
    crash: Crash,
    left: u32,
    helper: Option<Pid>,
}

/// Arms one place of this process.
pub(crate) fn arm(crash: Crash) {
    let order = Order { crash, left: crash.nth, helper: None };
    *ORDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
    ARMED.store(true, Ordering::Relaxed);
}

/// Tells which process the helper is.
pub(crate) fn helper_is(pid: i32) {
    if let Some(order) = ORDER.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        order.helper = Pid::from_raw(pid);
        // The drill reads this line to know who must be gone with us.
        tracing::info!("{HELPER_MARK}{pid}");
    }
}

/// The program is at a moment of its life.
#[inline]
pub(crate) fn moment(place: Place) {
    if ARMED.load(Ordering::Relaxed) {
        reached(Point::at(place));
    }
}

/// Records are about to be durable, or are.
#[inline]
pub(crate) fn append(side: Side, events: &[Recorded]) {
    if ARMED.load(Ordering::Relaxed) {
        for place in events.iter().filter_map(|recorded| place_of(&recorded.event)) {
            reached(Point { place, side });
        }
    }
}

/// An effect is about to be executed, or was.
#[inline]
pub(crate) fn effect(side: Side, place: Place) {
    if ARMED.load(Ordering::Relaxed) {
        reached(Point { place, side });
    }
}

#[cold]
fn reached(point: Point) {
    let mut order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Order { crash, left, helper }) = order.as_mut() else { return };
    if crash.point != point {
        return;
    }
    *left = left.saturating_sub(1);
    if *left > 0 {
        return;
    }
    // The drill reads this line to know that the place was reached at all.
    tracing::warn!("{}", mark(*crash));
    if crash.victim != Victim::Supervisor
        && let Some(helper) = *helper
    {
        kill_helper(helper);
    }
    if crash.victim != Victim::Helper {
        // No thread of this process returns from the kernel any more.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    }
    ARMED.store(false, Ordering::Relaxed);
}

/// What is logged when a place is reached.
pub(crate) fn mark(crash: Crash) -> String {
    format!("drill: SIGKILL at {crash}")
}

fn kill_helper(helper: Pid) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // Opened before: the number stays the helper's until it is reaped, which only we do.
    let Ok(pidfd) = rustix::process::pidfd_open(helper, rustix::process::PidfdFlags::empty())
    else {
        return;
    };
    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    let limit = Timespec { tv_sec: HELPER_DEATH_SECONDS_MAX, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit));
}

/// The place that an event names. `None`: it comes with another one that does, or no drill can make
/// it happen (a new budget period, an approval, a cleanup step or chore that fails).
const fn place_of(event: &Event) -> Option<Place> {
    Some(match event {
        Event::SupervisorStarted { .. } => Place::SupervisorStarted,
        Event::StopRequested { .. } => Place::StopRequested,
        Event::SupervisorStopped => Place::SupervisorStopped,
        Event::BudgetSet { .. } => Place::BudgetSet,
        Event::LeftoverRemoved { .. } => Place::LeftoverRemoved,
        Event::RunRequested { .. } => Place::RunRequested,
        Event::RunRefused { .. } => Place::RunRefused,
        Event::StepIntended { step: Step::Sandbox, .. } => Place::SandboxIntended,
        Event::StepIntended { step: Step::Go, .. } => Place::GoIntended,
        Event::StepFailed { .. } => Place::StepFailed,
        Event::WorkspaceReady { .. } => Place::WorkspaceReady,
        Event::GroupReady { .. } => Place::GroupReady,
        Event::AgentStarted { .. } => Place::AgentStarted,
        Event::ViolationRecorded { .. } => Place::Violation,
        Event::CancelRequested { .. } => Place::CancelRequested,
        Event::LimitExceeded { .. } => Place::LimitExceeded,
        Event::DeadlinePassed { .. } => Place::DeadlinePassed,
        Event::Exited { .. } => Place::Exited,
        Event::CleanupDone { step: CleanupStep::Token, .. } => Place::TokenRevoked,
        Event::CleanupDone { step: CleanupStep::Group, .. } => Place::GroupRemoved,
        Event::CleanupDone { step: CleanupStep::Boundary, .. } => Place::BoundaryClosed,
        Event::WorkspaceSealed { .. } => Place::WorkspaceSealed,
        Event::WorkspaceRemoved { .. } => Place::WorkspaceRemoved,
        Event::RunSettled { .. } => Place::RunSettled,
        Event::ReceiptIssued { .. } => Place::ReceiptIssued,
        Event::ExportIntended { .. } => Place::ExportIntended,
        Event::Exported { .. } => Place::Exported,
        Event::ExportFailed { .. } => Place::ExportFailed,
        Event::DiscardIntended { .. } => Place::DiscardIntended,
        Event::Discarded { .. } => Place::Discarded,
        // In one batch with an event that has a place.
        Event::RunAdmitted { .. }
        | Event::ApprovalUsed { .. }
        | Event::BudgetHeld { .. }
        | Event::StepIntended { .. }
        | Event::PolicyReady { .. }
        | Event::SandboxCreated { .. }
        | Event::BoundaryReady { .. }
        | Event::CleanupDone { step: CleanupStep::Workspace, .. }
        // Nothing that a drill does makes them.
        | Event::PeriodOpened { .. }
        | Event::ApprovalGiven { .. }
        | Event::CleanupFailed { .. }
        | Event::CleanupGivenUp { .. }
        | Event::ChoreFailed { .. } => return None,
    })
}

/// The place of an effect.
pub(crate) const fn place_of_effect(effect: &Effect) -> Place {
    match effect {
        Effect::PrepareWorkspace { .. } => Place::PrepareWorkspace,
        Effect::MakeGroup { .. } => Place::MakeGroup,
        Effect::CompilePolicy { .. } => Place::CompilePolicy,
        Effect::CreateSandbox { .. } => Place::CreateSandbox,
        Effect::BindBoundary { .. } => Place::BindBoundary,
        Effect::StartAgent { .. } => Place::StartAgent,
        Effect::AbortSteps { .. } => Place::AbortSteps,
        Effect::TerminateAgent { .. } => Place::TerminateAgent,
        Effect::KillGroup { .. } => Place::KillGroup,
        Effect::RevokeToken { .. } => Place::RevokeToken,
        Effect::RemoveGroup { .. } => Place::RemoveGroup,
        Effect::CloseBoundary { .. } => Place::CloseBoundary,
        Effect::SealWorkspace { .. } => Place::SealWorkspace,
        Effect::RemoveWorkspace { .. } => Place::RemoveWorkspace,
        Effect::WriteReceipt { .. } => Place::WriteReceipt,
        Effect::Export { .. } => Place::Export,
        Effect::Discard { .. } => Place::Discard,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_point_has_a_label_of_its_own_that_is_read_back() {
        let labels: BTreeSet<String> = Point::all().map(|point| point.to_string()).collect();
        assert_eq!(labels.len(), Point::all().count());
        for point in Point::all() {
            for victim in Victim::ALL {
                let crash = Crash { point, nth: 3, victim };
                assert_eq!(crash.to_string().parse(), Ok(crash));
            }
            let usual = Crash { point, nth: 1, victim: Victim::Supervisor };
            assert_eq!(point.to_string().parse(), Ok(usual));
        }
    }

    #[test]
    fn a_place_that_does_not_exist_is_refused_by_its_name() {
        let no = |text: &str| text.parse::<Crash>().unwrap_err();
        assert_eq!(no("append.nothing.before"), "there is no place `append.nothing.before`");
        assert_eq!(no("start.locked.before"), "there is no place `start.locked.before`");
        assert_eq!(no("start.locked:0"), "`0` is neither a victim nor a count from 1");
        assert_eq!(no("start.locked:me"), "`me` is neither a victim nor a count from 1");
    }

    #[test]
    fn nothing_is_armed_by_itself_and_a_place_then_does_nothing() {
        assert!(!ARMED.load(Ordering::Relaxed));
        for place in Place::ALL {
            moment(*place);
            effect(Side::Before, *place);
        }
    }
}
