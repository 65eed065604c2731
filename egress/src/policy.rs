//! What a run may reach. Compiled from the sealed manifest by the supervisor; never from anything
//! the guest says.

use crate::Authority;

/// The egress policy of one run. In this version the manifest refuses every network grant, so a
/// policy grants nothing; what can be granted is added here and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    generation: u64,
}

/// The judgement of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The policy does not name the destination.
    NotGranted,
}

impl Policy {
    /// The policy that grants nothing.
    pub const fn nothing(generation: u64) -> Self {
        Policy { generation }
    }

    /// Counts up each time the policy of the run changes.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Judges a destination by its name, before any resolver could see it (E3).
    pub fn judge(&self, _destination: &Authority) -> Verdict {
        Verdict::NotGranted
    }
}
