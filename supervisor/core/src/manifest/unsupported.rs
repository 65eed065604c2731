//! What the schema has and this version cannot enforce yet.
//!
//! The list gets shorter with every feature that arrives; removing a line here is how a feature
//! is switched on. Nothing on it is ever ignored (S2).

use crate::{Code, Profile, Refusal};

use super::model::{Effect, Manifest, Network};

/// Refuses the first part of the manifest that this version cannot enforce.
///
/// # Errors
/// `manifest.unsupported_feature` with the path of the key.
pub(super) fn refuse(manifest: &Manifest) -> Result<(), Refusal> {
    if let Some(index) = manifest.network.iter().position(inspects) {
        return Err(unsupported(&format!("network[{index}].inspect")));
    }
    let limits = &manifest.limits;
    let runtime = manifest.runtime.image.as_deref();
    let parts = [
        (!manifest.network.is_empty(), "network"),
        (!manifest.private_network.is_empty(), "private_network"),
        (!manifest.llm.is_empty(), "llm"),
        (!manifest.tools.is_empty(), "tools"),
        (!manifest.secrets.is_empty(), "secrets"),
        (!manifest.session.keep.is_empty(), "session.keep"),
        (runtime.is_some_and(|image| image != "host"), "runtime.image"),
        (hides_history(manifest), "workspace.history"),
        (needs_a_clone(manifest), "workspace.base"),
        (manifest.parent.is_some(), "parent"),
        (limits.tool_calls.is_some(), "limits.tool_calls"),
        (limits.exec_seconds.is_some(), "limits.exec_seconds"),
        (limits.bytes_written.is_some(), "limits.bytes_written"),
        (limits.bytes_sent.is_some(), "limits.bytes_sent"),
    ];
    match parts.iter().find(|(asked, _)| *asked) {
        Some((_, path)) => Err(unsupported(path)),
        None => {
            host_view(manifest)?;
            effects(manifest)
        }
    }
}

/// Only a private clone can start from anything but the files as they are.
fn needs_a_clone(manifest: &Manifest) -> bool {
    let base = manifest.workspace.base.as_deref();
    manifest.profile() != Profile::WorkspaceWrite && base.is_some_and(|base| base != "working-tree")
}

/// Without a sandbox nothing can be hidden, moved or added.
fn host_view(manifest: &Manifest) -> Result<(), Refusal> {
    let workspace = &manifest.workspace;
    let parts = [
        (!workspace.shows_all_files(), "workspace.files"),
        (!workspace.include_ignored.is_empty(), "workspace.include_ignored"),
        (workspace.target() != workspace.path, "workspace.target"),
        (!manifest.mounts.is_empty(), "mounts"),
        (!manifest.runtime.mounts.is_empty(), "runtime.mounts"),
    ];
    let asked = parts.iter().find(|(asked, _)| *asked);
    match asked.filter(|_| manifest.profile() == Profile::TrustedHost) {
        Some((_, path)) => Err(Refusal::new(
            Code::ManifestUnsupportedFeature,
            format!("{path}: profile trusted-host has no sandbox that could do it"),
        )
        .with_help("leave it out, or ask for another profile")),
        None => Ok(()),
    }
}

/// A private clone that shows all files shows their history too.
fn hides_history(manifest: &Manifest) -> bool {
    let workspace = &manifest.workspace;
    workspace.shows_all_files() && workspace.history() == super::model::History::None
}

fn inspects(grant: &Network) -> bool {
    grant.inspect == Some(true)
}

/// An effect that is left out must really be kept from happening.
fn effects(manifest: &Manifest) -> Result<(), Refusal> {
    let Some(written) = &manifest.effects else { return Ok(()) };
    let profile = manifest.profile();
    let inherent: &[Effect] = match profile {
        Profile::Read => &[Effect::Read, Effect::Process],
        Profile::WorkspaceWrite => &[Effect::Read, Effect::Write, Effect::Process],
        Profile::TrustedHost => &Effect::ALL,
    };
    match inherent.iter().find(|effect| !written.contains(effect)) {
        Some(effect) => Err(Refusal::new(
            Code::ManifestUnsupportedFeature,
            format!("effects: profile {profile} cannot withhold {effect}"),
        )
        .with_help(format!("add \"{effect}\" to effects, or ask for a narrower profile"))),
        None => Ok(()),
    }
}

fn unsupported(path: &str) -> Refusal {
    let cause = format!("{path} cannot be enforced by this version");
    Refusal::new(Code::ManifestUnsupportedFeature, cause)
}
