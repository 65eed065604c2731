//! Approvals: who allowed which manifest for which step of a workflow, until when, how often (S3).
//!
//! An approval is about one digest. It is used up by runs, and it ends: the clock that decides is the
//! latest time that was ever recorded, so that setting the wall clock back gives no approval a
//! second life, and within one boot the boot clock too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::Stamp;
use crate::{BootId, Code, Digest, Refusal, StepName};

/// Living approvals at once (J7).
pub const APPROVALS_MAX: usize = 10_000;
/// The longest life of an approval: a year, milliseconds.
pub const EXPIRES_MS_MAX: u64 = 366 * 86_400_000;

/// What a person allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Sequence of its event.
    pub seq: u64,
    /// Digest of the manifest.
    pub manifest: Digest,
    /// User id of who gave it.
    pub by: u32,
    /// When.
    pub given: Stamp,
    /// In which boot `given.boot_ms` counts.
    pub boot: Option<BootId>,
    /// How long it lives, milliseconds.
    pub expires_ms: u64,
    /// Runs it allows.
    pub uses: u32,
    /// Runs it has allowed.
    pub used: u32,
}

impl Approval {
    /// Its end on the wall clock, milliseconds.
    pub fn ends_wall_ms(&self) -> u64 {
        self.given.wall_ms.saturating_add(self.expires_ms)
    }

    fn ends_boot_ms(&self) -> u64 {
        self.given.boot_ms.saturating_add(self.expires_ms)
    }
}

/// All approvals: the newest of each step.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Approvals {
    /// By step.
    pub steps: BTreeMap<StepName, Approval>,
    /// The latest wall clock of any event, milliseconds.
    pub latest_wall_ms: u64,
}

impl Approvals {
    /// Whether an approval still lives; `boot` is the present one.
    pub fn lives(&self, approval: &Approval, boot: Option<&BootId>, now: Stamp) -> bool {
        let wall = now.wall_ms.max(self.latest_wall_ms);
        let same_boot = boot.is_some() && boot == approval.boot.as_ref();
        wall < approval.ends_wall_ms() && !(same_boot && now.boot_ms >= approval.ends_boot_ms())
    }

    /// Whether there is room for one more for `step`.
    ///
    /// # Errors
    /// `approval.too_many`.
    pub fn check_room(
        &self,
        step: &StepName,
        boot: Option<&BootId>,
        now: Stamp,
    ) -> Result<(), Refusal> {
        let living = self.steps.iter().filter(|(_, a)| self.lives(a, boot, now));
        if self.steps.contains_key(step) || living.count() < APPROVALS_MAX {
            return Ok(());
        }
        let cause = format!("{APPROVALS_MAX} approvals are alive");
        Err(Refusal::new(Code::ApprovalTooMany, cause))
    }

    /// Whether a run of `manifest` may be step `step` now.
    // S3: what runs is what was approved, digest for digest.
    ///
    /// # Errors
    /// `approval.required`, `approval.mismatch`, `approval.expired`, `approval.used`.
    pub fn check(
        &self,
        step: &StepName,
        manifest: Digest,
        boot: Option<&BootId>,
        now: Stamp,
    ) -> Result<(), Refusal> {
        let Some(found) = self.steps.get(step) else {
            let cause = format!("step {step} has no approval");
            return Err(Refusal::new(Code::ApprovalRequired, cause));
        };
        if found.manifest != manifest {
            let cause = format!(
                "step {step} is approved for {}, this manifest is {manifest}",
                found.manifest
            );
            return Err(Refusal::new(Code::ApprovalMismatch, cause));
        }
        if !self.lives(found, boot, now) {
            let cause = format!("the approval of step {step} has ended");
            return Err(Refusal::new(Code::ApprovalExpired, cause));
        }
        if found.used >= found.uses {
            let cause = format!("the approval of step {step} was for {} runs", found.uses);
            return Err(Refusal::new(Code::ApprovalUsed, cause));
        }
        Ok(())
    }

    /// Records one; what has ended by now is forgotten.
    pub(crate) fn give(&mut self, step: StepName, approval: Approval) {
        let (boot, now) = (approval.boot.clone(), approval.given);
        let ended: Vec<StepName> = self
            .steps
            .iter()
            .filter(|(_, a)| !self.lives(a, boot.as_ref(), now))
            .map(|(step, _)| step.clone())
            .collect();
        for step in ended {
            self.steps.remove(&step);
        }
        self.steps.insert(step, approval);
    }

    /// Records a use; the sequence of the approval, when there is one.
    pub(crate) fn use_one(&mut self, step: &StepName) -> Option<u64> {
        let found = self.steps.get_mut(step)?;
        found.used = found.used.saturating_add(1);
        Some(found.seq)
    }
}
