//! The sealed manifest: a checked one bound to one run. This is what the launcher receives.

use serde::{Deserialize, Serialize};

use crate::{Generation, RunId};

use super::check::Checked;
use super::model::Manifest;

/// A manifest together with the run it was admitted for.
///
/// Made only from a [`Checked`] manifest; reading one back is for the process the supervisor sent
/// it to, which compares its digest (S3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    manifest: Manifest,
    run: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<RunId>,
    generation: Generation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
}

impl Sealed {
    /// Seals a checked manifest for a run. `reservation` names the hold, when there is one.
    pub fn new(
        checked: &Checked,
        run: RunId,
        parent: Option<RunId>,
        generation: Generation,
        reservation: Option<String>,
    ) -> Self {
        Sealed { manifest: checked.manifest().clone(), run, parent, generation, reservation }
    }

    /// What was approved.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The run whose hold pays.
    pub fn parent(&self) -> Option<&RunId> {
        self.parent.as_ref()
    }

    /// The supervisor's life in which the run was admitted.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The hold.
    pub fn reservation(&self) -> Option<&str> {
        self.reservation.as_deref()
    }
}
