//! What this host can enforce, found by trying.
//!
//! The helper launches a whole sandbox of a trivial program through the same code as every run. Only
//! a [`HostSupport`] that came from such a probe can give an [`Enforceable`], and only with one can a
//! sandbox be asked for: "not supported" cannot be forgotten, because the types do not fit (S2).

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::protocol::SelfTest;

/// Result of a probe. It cannot be made outside this crate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSupport {
    features: Vec<Feature>,
    self_test: Vec<SelfTest>,
}

/// Proof that a whole sandbox was launched on this host by this helper. Made only by
/// [`HostSupport::enforceable`].
#[derive(Clone, Debug)]
pub struct Enforceable {
    _private: (),
}

/// One feature of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// Stable name.
    pub name: String,
    /// Whether a sandbox is impossible without it.
    pub required: bool,
    /// What was found, when it is there.
    pub found: Option<String>,
    /// Why not, when it is not there. With neither, it was not tried, because others are missing.
    pub refusal: Option<Refusal>,
}

impl HostSupport {
    pub(crate) fn new(features: Vec<Feature>, self_test: Vec<SelfTest>) -> Self {
        HostSupport { features, self_test }
    }

    /// All features, in the order in which they depend on one another.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// What the trial's self-test reported.
    pub fn self_test(&self) -> &[SelfTest] {
        &self.self_test
    }

    /// The proof that this host can enforce.
    ///
    /// # Errors
    /// The first required feature that is missing.
    pub fn enforceable(&self) -> Result<Enforceable, Refusal> {
        match self.features.iter().find(|feature| feature.required && feature.refusal.is_some()) {
            Some(Feature { refusal: Some(refusal), .. }) => Err(refusal.clone()),
            // A probe without its trial proves nothing.
            _ if !self.features.iter().any(|f| f.name == TRIAL && f.found.is_some()) => {
                Err(Refusal::new(Code::HostBubblewrapUnusable, "no trial sandbox was launched"))
            }
            _ => Ok(Enforceable { _private: () }),
        }
    }
}

/// Name of the feature that a mount point below a link is refused.
pub(crate) const NO_LINK: &str = "mount-point-symlink";

/// Name of the feature that stands for the whole launch.
pub(crate) const TRIAL: &str = "sandbox";

impl Feature {
    pub(crate) fn required(name: &str, result: Result<String, Refusal>) -> Self {
        Feature::from_result(name, true, result)
    }

    /// A required one that needs others that are missing.
    pub(crate) fn not_tried(name: &str) -> Self {
        Feature { name: name.to_owned(), required: true, found: None, refusal: None }
    }

    pub(crate) fn optional(name: &str, result: Result<String, Refusal>) -> Self {
        Feature::from_result(name, false, result)
    }

    fn from_result(name: &str, required: bool, result: Result<String, Refusal>) -> Self {
        let (found, refusal) = match result {
            Ok(found) => (Some(found), None),
            Err(refusal) => (None, Some(refusal)),
        };
        Feature { name: name.to_owned(), required, found, refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(name: &str, required: bool, there: bool) -> Feature {
        let missing = Refusal::new(Code::HostNoPidfd, "none");
        Feature::from_result(name, required, if there { Ok("yes".into()) } else { Err(missing) })
    }

    #[test]
    fn a_missing_required_feature_gives_its_refusal_instead_of_the_proof() {
        let of = |features| HostSupport::new(features, Vec::new()).enforceable();
        let refusal = of(vec![feature("pidfd", true, false), feature(TRIAL, true, true)]);
        assert_eq!(refusal.unwrap_err().code, Code::HostNoPidfd);
        assert!(of(vec![feature("overlay", false, false), feature(TRIAL, true, true)]).is_ok());
    }

    #[test]
    fn a_probe_without_a_trial_proves_nothing() {
        // S2
        let pidfd = || feature("pidfd", true, true);
        for features in [vec![pidfd()], vec![pidfd(), Feature::not_tried(TRIAL)]] {
            let support = HostSupport::new(features, Vec::new());
            assert_eq!(support.enforceable().unwrap_err().code, Code::HostBubblewrapUnusable);
        }
    }
}
