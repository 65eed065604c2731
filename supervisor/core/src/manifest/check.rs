//! A manifest against the configuration: ceilings, defaults, features this version has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::size::{Cpus, Millis, Size};
use crate::{AccountName, Code, Digest, Limits, Nanos, Profile, Refusal};

use super::model::{DEFAULT_ACCOUNT, Effect, Manifest, UnknownPrice};
use super::{forms, unsupported};

/// Ceilings no manifest can exceed; an absent one is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxLimits {
    /// CPU bandwidth in thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Each writable place, bytes.
    pub disk_bytes: Option<u64>,
    /// Output, bytes.
    pub output_bytes: Option<u64>,
    /// Wall time, milliseconds.
    pub duration_ms: Option<u64>,
}

/// What the configuration says about every manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Limits of a manifest that names none. One above its ceiling is lowered to it.
    pub defaults: Limits,
    /// The ceilings.
    pub max: MaxLimits,
}

/// Counts of what a run was granted, for receipts and status: never the grants themselves (E4).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Granted files and directories.
    pub mounts: usize,
    /// Further runtime directories.
    pub runtime_mounts: usize,
    /// Variables.
    pub env: usize,
    /// Destinations.
    pub network: usize,
    /// Model providers.
    pub llm: usize,
    /// Tool servers.
    pub tools: usize,
    /// Raw secrets.
    pub secrets: usize,
}

/// A manifest that this program, with this configuration, can enforce. Only [`check`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    manifest: Manifest,
    digest: Digest,
    limits: Limits,
    hold: Option<(AccountName, Nanos)>,
}

/// Checks a manifest.
///
/// # Errors
/// What [`parse_bytes`](super::parse_bytes) refuses (a manifest can also be made from options),
/// `manifest.unsupported_feature`, `manifest.above_ceiling`.
pub fn check(manifest: &Manifest, ceilings: &Ceilings) -> Result<Checked, Refusal> {
    forms::check(manifest)?;
    unsupported::refuse(manifest)?;
    let limits = effective(manifest, ceilings)?;
    let hold = hold(manifest)?;
    Ok(Checked { manifest: manifest.clone(), digest: manifest.digest(), limits, hold })
}

fn hold(manifest: &Manifest) -> Result<Option<(AccountName, Nanos)>, Refusal> {
    let Some(budget) = &manifest.budget else { return Ok(None) };
    let account = match &budget.account {
        Some(account) => account.clone(),
        None => AccountName::parse(DEFAULT_ACCOUNT)?,
    };
    Ok(Some((account, budget.usd)))
}

/// Limits as written, else the configuration's, never above its ceilings.
pub(super) fn effective(manifest: &Manifest, ceilings: &Ceilings) -> Result<Limits, Refusal> {
    let (written, defaults, max) = (&manifest.limits, &ceilings.defaults, &ceilings.max);
    Ok(Limits {
        cpu_millis: limit(
            "cpus",
            written.cpus.map(Cpus::millis),
            (defaults.cpu_millis, max.cpu_millis),
            Cpus::from_millis,
        )?,
        memory_bytes: bytes("memory", written.memory, defaults.memory_bytes, max.memory_bytes)?,
        pids: limit("pids", written.pids.map(|pids| pids.get()), (defaults.pids, max.pids), Some)?,
        disk_bytes: bytes("disk", written.disk, defaults.disk_bytes, max.disk_bytes)?,
        output_bytes: bytes("output", written.output, defaults.output_bytes, max.output_bytes)?,
        duration_ms: limit(
            "duration",
            written.duration.map(Millis::ms),
            (defaults.duration_ms, max.duration_ms),
            Millis::from_ms,
        )?,
        grace_ms: defaults.grace_ms,
    })
}

fn bytes(key: &str, written: Option<Size>, default: u64, max: Option<u64>) -> Result<u64, Refusal> {
    limit(key, written.map(Size::bytes), (default, max), Size::from_bytes)
}

/// One limit. `shown` prints a value as people write it.
fn limit<T: Display>(
    key: &str,
    written: Option<u64>,
    (default, max): (u64, Option<u64>),
    shown: fn(u64) -> Option<T>,
) -> Result<u64, Refusal> {
    let text = |value| shown(value).map_or_else(|| format!("{value}"), |shown| shown.to_string());
    let ceiling = max.unwrap_or(u64::MAX);
    match written {
        Some(value) if value > ceiling => Err(Refusal::new(
            Code::ManifestAboveCeiling,
            format!("limits.{key}: {} is above the ceiling {}", text(value), text(ceiling)),
        )),
        Some(value) => Ok(value),
        None => Ok(default.min(ceiling)),
    }
}

impl Checked {
    /// The manifest as approved.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its digest (S3).
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// How the run is contained.
    pub fn profile(&self) -> Profile {
        self.manifest.profile()
    }

    /// Limits with every field set.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the run may cause.
    pub fn effects(&self) -> BTreeSet<Effect> {
        self.manifest.effects()
    }

    /// Program and arguments; never empty.
    pub fn argv(&self) -> &[String] {
        &self.manifest.command.argv
    }

    /// Base name of the program: all of the command that is ever recorded (E4).
    pub fn program(&self) -> &str {
        let program = self.argv().first().map_or("", String::as_str);
        program.rsplit('/').find(|part| !part.is_empty()).unwrap_or(program)
    }

    /// Working directory inside, absolute.
    pub fn cwd(&self) -> String {
        let top = self.manifest.workspace.target();
        match self.manifest.command.cwd.as_deref() {
            None | Some(".") => top.to_owned(),
            Some(below) => format!("{top}/{below}"),
        }
    }

    /// Variables that pass.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.manifest.command.env
    }

    /// The account and the amount to hold; without a budget nothing is held.
    pub fn hold(&self) -> Option<&(AccountName, Nanos)> {
        self.hold.as_ref()
    }

    /// What happens when a price is not known (B8).
    pub fn on_unknown_price(&self) -> UnknownPrice {
        let written = self.manifest.budget.as_ref().and_then(|budget| budget.on_unknown_price);
        written.unwrap_or(UnknownPrice::Refuse)
    }

    /// Counts of what was granted.
    pub fn grants(&self) -> Grants {
        let manifest = &self.manifest;
        Grants {
            mounts: manifest.mounts.len(),
            runtime_mounts: manifest.runtime.mounts.len(),
            env: manifest.command.env.len(),
            network: manifest.network.len() + manifest.private_network.len(),
            llm: manifest.llm.len(),
            tools: manifest.tools.len(),
            secrets: manifest.secrets.len(),
        }
    }

    /// Whether anything that costs money was granted (B7).
    pub fn is_priced(&self) -> bool {
        self.manifest.grants_priced()
    }

    /// The profile as status and receipt show it: any network grant adds `external`.
    pub fn label(&self) -> String {
        let external = if self.grants().network > 0 { "+external" } else { "" };
        format!("{}{external}", self.profile())
    }
}
