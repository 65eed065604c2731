//! Command-line options. On an approved manifest they may only take away; without one they make a
//! manifest of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::{Code, Limits, Nanos, Profile, Refusal};

use super::check::{Ceilings, effective};
use super::forms::{self, bad, quoted};
use super::model::{
    Budget, Command, Effect, LimitsTable, Manifest, Mount, Network, Protocol, Runtime, Session,
    VERSION, Workspace, usd_text,
};

/// Options of `run` that are about the manifest; an absent one leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overrides {
    /// `--profile`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// What the run may cause; has no option of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<BTreeSet<Effect>>,
    /// `--workspace`, absolute and resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The command after `--`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// `--env`, values resolved.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `--mount`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// `--allow`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<Network>,
    /// `--budget`
    #[serde(skip_serializing_if = "Option::is_none", with = "usd_text::option")]
    pub budget: Option<Nanos>,
    /// `--cpus`, `--memory`, `--pids`, `--disk`, `--output`, `--timeout`
    #[serde(skip_serializing_if = "LimitsTable::is_empty")]
    pub limits: LimitsTable,
    /// `--parent`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// Makes a manifest of options alone.
///
/// # Errors
/// `manifest.no_command`, `manifest.bad_value`, `fs.bad_target` and the like: as for a file.
pub fn from_flags(flags: Overrides) -> Result<Manifest, Refusal> {
    let no_command = || Refusal::new(Code::ManifestNoCommand, "no command was given");
    let argv = flags.argv.ok_or_else(no_command)?;
    let workspace =
        flags.workspace.ok_or_else(|| bad("workspace.path", "no workspace was given"))?;
    let budget = flags.budget.map(|usd| Budget { account: None, usd, on_unknown_price: None });
    let manifest = Manifest {
        version: VERSION,
        profile: Some(flags.profile.unwrap_or(Profile::Read)),
        effects: flags.effects,
        parent: flags.parent,
        command: Command { argv, cwd: None, env: flags.env },
        workspace: Workspace::at(workspace),
        mounts: flags.mounts,
        runtime: Runtime::default(),
        network: flags.network,
        private_network: Vec::new(),
        llm: Vec::new(),
        tools: Vec::new(),
        secrets: Vec::new(),
        budget,
        limits: flags.limits,
        session: Session::default(),
        approval: None,
    };
    forms::check(&manifest)?;
    Ok(manifest)
}

/// Applies options to a manifest. The result grants nothing the manifest does not: a limit the
/// manifest leaves out is the configuration's default, and an option may only go below that.
///
/// # Errors
/// `manifest.wider_than_approved` naming the option and both values; the errors of
/// [`check`](super::check) for what the manifest itself asks.
pub fn narrow(base: &Manifest, flags: Overrides, ceilings: &Ceilings) -> Result<Manifest, Refusal> {
    let mut narrowed = base.clone();
    profile(&mut narrowed, flags.profile)?;
    effects(&mut narrowed, flags.effects)?;
    same("--workspace", flags.workspace.as_ref(), Some(&base.workspace.path))?;
    if flags.argv.as_ref().is_some_and(|argv| *argv != base.command.argv) {
        return Err(wider("the command after `--`", "another command", "its own command"));
    }
    for (name, value) in &flags.env {
        if base.command.env.get(name) != Some(value) {
            let granted =
                if base.command.env.contains_key(name) { "another value" } else { "nothing" };
            return Err(wider("--env", quoted(name), granted));
        }
    }
    for mount in &flags.mounts {
        let granted = |have: &Mount| have.source == mount.source && have.target() == mount.target();
        if !base.mounts.iter().any(granted) {
            return Err(wider("--mount", quoted(&mount.source), "other mounts"));
        }
    }
    for destination in &flags.network {
        if !base.network.iter().any(|have| covers(have, destination)) {
            return Err(wider("--allow", quoted(&destination.host), "other destinations"));
        }
    }
    same("--parent", flags.parent.as_ref(), base.parent.as_ref())?;
    budget(&mut narrowed, flags.budget)?;
    limits(&mut narrowed, &flags.limits, &effective(base, ceilings)?)?;
    forms::check(&narrowed)?;
    Ok(narrowed)
}

fn profile(manifest: &mut Manifest, asked: Option<Profile>) -> Result<(), Refusal> {
    let (Some(asked), approved) = (asked, manifest.profile()) else { return Ok(()) };
    // S2: the order of profiles is how much each lets a run do, and trusted-host is the widest.
    if asked > approved {
        return Err(wider("--profile", asked, approved));
    }
    if asked < approved {
        manifest.profile = Some(asked);
        if let Some(effects) = manifest.effects.as_mut().filter(|_| asked == Profile::Read) {
            effects.remove(&Effect::Write);
        }
    }
    Ok(())
}

fn effects(manifest: &mut Manifest, asked: Option<BTreeSet<Effect>>) -> Result<(), Refusal> {
    let Some(asked) = asked else { return Ok(()) };
    match asked.difference(&manifest.effects()).next() {
        Some(effect) => Err(wider("effects", effect, "other effects")),
        None => {
            manifest.effects = Some(asked);
            Ok(())
        }
    }
}

fn same(option: &str, asked: Option<&String>, approved: Option<&String>) -> Result<(), Refusal> {
    match asked {
        Some(asked) if Some(asked) != approved => {
            let approved = approved.map_or_else(|| "none".to_owned(), |text| quoted(text));
            Err(wider(option, quoted(asked), approved))
        }
        _ => Ok(()),
    }
}

/// Whether a grant of the manifest includes the destination: the same name, ports and protocol.
fn covers(have: &Network, asked: &Network) -> bool {
    let (have_ports, asked_ports) = (ports(have), ports(asked));
    have.host == asked.host
        && protocol(have) == protocol(asked)
        && asked_ports.iter().all(|port| have_ports.contains(port))
}

fn ports(grant: &Network) -> &[u16] {
    grant.ports.as_deref().unwrap_or(&[443])
}

fn protocol(grant: &Network) -> Protocol {
    grant.protocol.unwrap_or(Protocol::Https)
}

fn budget(manifest: &mut Manifest, asked: Option<Nanos>) -> Result<(), Refusal> {
    match (asked, &mut manifest.budget) {
        (None, _) => Ok(()),
        (Some(asked), Some(budget)) if asked <= budget.usd => {
            budget.usd = asked;
            Ok(())
        }
        (Some(asked), Some(budget)) => Err(wider("--budget", asked, budget.usd)),
        (Some(asked), None) => Err(wider("--budget", asked, "no budget")),
    }
}

fn limits(manifest: &mut Manifest, asked: &LimitsTable, most: &Limits) -> Result<(), Refusal> {
    fn lower<T: Copy + Display>(
        option: &str,
        slot: &mut Option<T>,
        asked: Option<T>,
        value: fn(T) -> u64,
        most: u64,
        shown: fn(u64) -> Option<T>,
    ) -> Result<(), Refusal> {
        let Some(asked) = asked else { return Ok(()) };
        if value(asked) > most {
            let most = shown(most).map_or_else(|| most.to_string(), |most| most.to_string());
            return Err(wider(option, asked, most));
        }
        *slot = Some(asked);
        Ok(())
    }
    use crate::size::{Count, Cpus, Millis, Size};
    let to = &mut manifest.limits;
    let (cpus, bytes) = (Cpus::from_millis, Size::from_bytes);
    lower("--cpus", &mut to.cpus, asked.cpus, Cpus::millis, most.cpu_millis, cpus)?;
    lower("--memory", &mut to.memory, asked.memory, Size::bytes, most.memory_bytes, bytes)?;
    lower("--pids", &mut to.pids, asked.pids, Count::get, most.pids, Count::new)?;
    lower("--disk", &mut to.disk, asked.disk, Size::bytes, most.disk_bytes, bytes)?;
    lower("--output", &mut to.output, asked.output, Size::bytes, most.output_bytes, bytes)?;
    let duration = Millis::from_ms;
    lower("--timeout", &mut to.duration, asked.duration, Millis::ms, most.duration_ms, duration)?;
    let later = [
        ("limits.tool_calls", asked.tool_calls.is_some()),
        ("limits.exec_seconds", asked.exec_seconds.is_some()),
        ("limits.bytes_written", asked.bytes_written.is_some()),
        ("limits.bytes_sent", asked.bytes_sent.is_some()),
    ];
    match later.iter().find(|(_, set)| *set) {
        Some((path, _)) => Err(Refusal::new(
            Code::ManifestUnsupportedFeature,
            format!("{path} cannot be enforced by this version"),
        )),
        None => Ok(()),
    }
}

fn wider(option: &str, asked: impl Display, approved: impl Display) -> Refusal {
    Refusal::new(
        Code::ManifestWiderThanApproved,
        format!("{option} asks for {asked}, the manifest grants {approved}"),
    )
}

/// Parses `--allow HOST[:PORT][/PROTO]`; the port defaults to 443, the protocol to `https`.
///
/// # Errors
/// `manifest.bad_value`.
pub fn parse_allow(text: &str) -> Result<Network, Refusal> {
    let (rest, word) = text.split_once('/').map_or((text, None), |(rest, word)| (rest, Some(word)));
    let protocol = match word {
        None => None,
        Some("https") => Some(Protocol::Https),
        Some("http") => Some(Protocol::Http),
        Some("tls") => Some(Protocol::Tls),
        Some("tcp") => Some(Protocol::Tcp),
        Some(word) => {
            let why = format!("{} is none of https, http, tls, tcp", quoted(word));
            return Err(bad("--allow", why));
        }
    };
    let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
    let ports = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(vec![port]),
        Some(_) => return Err(bad("--allow", format!("{} has no valid port", quoted(text)))),
    };
    Ok(Network { host: host.to_owned(), ports, protocol, inspect: None })
}

/// Parses `--mount SRC[:DST]`. A colon inside the source is kept: only `:/` starts a target.
///
/// # Errors
/// `manifest.bad_value` when either part is no absolute path.
pub fn parse_mount(text: &str) -> Result<Mount, Refusal> {
    let (source, target) = match text.rfind(":/") {
        Some(at) => (&text[..at], Some(text[at + 1..].to_owned())),
        None => (text, None),
    };
    match super::targets::is_plain_absolute(source) {
        true => Ok(Mount { source: source.to_owned(), target }),
        false => Err(bad("--mount", format!("{} is no plain absolute path", quoted(source)))),
    }
}

/// Parses `--env NAME[=VALUE]`; without a value the caller takes it from its own environment.
///
/// # Errors
/// `manifest.bad_value` when there is no name.
pub fn parse_env(text: &str) -> Result<(String, Option<String>), Refusal> {
    let (name, value) =
        text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    match name {
        "" => Err(bad("--env", format!("{} has no name", quoted(text)))),
        _ => Ok((name.to_owned(), value)),
    }
}
