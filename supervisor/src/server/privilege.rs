//! The supervisor keeps no capability it does not need; the launcher helper was started before.

use atenea_core::{Code, Refusal};
use caps::{CapSet, Capability, CapsHashSet};

use crate::driver::held::CAPABILITIES;

/// What a supervisor of root needs: to own, read and remove what runs of other uids left, and to
/// start workers with the rights of a user.
const NEEDED: [Capability; 7] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_KILL,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
];

/// Drops everything else, also from what its children can get. Called before any thread exists:
/// capabilities belong to threads.
///
/// # Errors
/// `host.no_supervisor` with the set that could not be reduced.
pub(super) fn drop_unneeded() -> Result<(), Refusal> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let failed = |what: &str, error: &caps::errors::CapsError| {
        Refusal::new(Code::HostNoSupervisor, format!("capabilities, {what}: {error}"))
    };
    let held = caps::read(None, CapSet::Permitted).map_err(|e| failed("read", &e))?;
    let keep: CapsHashSet = NEEDED.into_iter().filter(|c| held.contains(c)).collect();
    // For a moment at a time, and never for a child: they are in no bounding set.
    let at_times = CAPABILITIES.into_iter().filter(|c| held.contains(c));
    let permitted: CapsHashSet = at_times.chain(keep.iter().copied()).collect();
    for capability in caps::all().difference(&keep) {
        // One that this kernel does not know cannot be held either.
        if caps::has_cap(None, CapSet::Bounding, *capability).unwrap_or(false) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(|e| failed("bounding", &e))?;
        }
    }
    caps::clear(None, CapSet::Inheritable).map_err(|e| failed("inheritable", &e))?;
    caps::set(None, CapSet::Effective, &keep).map_err(|e| failed("effective", &e))?;
    caps::set(None, CapSet::Permitted, &permitted).map_err(|e| failed("permitted", &e))
}
