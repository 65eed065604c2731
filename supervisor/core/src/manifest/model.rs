//! The manifest as it is written: every key of version 1, nothing filled in.
//!
//! Optional keys that were left out stay `None`, because the digest is over what a person wrote
//! and approved; [`check`](super::check) merges defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::size::{Count, Cpus, Millis, Size};
use crate::{AccountName, Nanos, Profile};

/// The only version of the schema there is.
pub const VERSION: u32 = 1;
/// The account that pays when none is named.
pub const DEFAULT_ACCOUNT: &str = "default";

/// A manifest, version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`VERSION`].
    pub version: u32,
    /// How the run is contained; absent means `read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// What the run may cause; absent means what its profile needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<BTreeSet<Effect>>,
    /// A running run whose hold pays for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// What is run.
    pub command: Command,
    /// The project it works on.
    pub workspace: Workspace,
    /// Explicitly granted files, read-only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// What it runs on.
    #[serde(default, skip_serializing_if = "Runtime::is_empty")]
    pub runtime: Runtime,
    /// Destinations by public name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<Network>,
    /// Destinations at private addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private_network: Vec<PrivateNetwork>,
    /// Model providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub llm: Vec<Llm>,
    /// Mediated host tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tools>,
    /// Raw credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// What is held before the run starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Limits; an absent one is the configuration's default.
    #[serde(default, skip_serializing_if = "LimitsTable::is_empty")]
    pub limits: LimitsTable,
    /// What is kept between runs of an agent.
    #[serde(default, skip_serializing_if = "Session::is_empty")]
    pub session: Session,
    /// The workflow step whose approval this manifest claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
}

/// Something a run may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Read what is granted.
    Read,
    /// Write in its workspace.
    Write,
    /// Start processes.
    Process,
    /// Reach granted destinations.
    Network,
    /// Call granted host tools.
    Tool,
}

impl Effect {
    /// All effects.
    pub const ALL: [Effect; 5] =
        [Effect::Read, Effect::Write, Effect::Process, Effect::Network, Effect::Tool];

    /// The word in the manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::Read => "read",
            Effect::Write => "write",
            Effect::Process => "process",
            Effect::Network => "network",
            Effect::Tool => "tool",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `[command]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory inside the workspace; absent means its top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables that pass; nothing else of the environment does.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// `[workspace]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    /// The directory on the host.
    pub path: String,
    /// Where the agent sees it: `same` (also when absent) or an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// `working-tree` (also when absent), `HEAD` or any commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Whether the agent sees the base's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// A ceiling of patterns: nothing else of the workspace is visible, nor any history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    /// Ignored files that are visible nevertheless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_ignored: Vec<String>,
}

/// How much history a private clone has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum History {
    /// What is reachable from the base; only without a ceiling of files.
    Reachable,
    /// The tree alone.
    None,
}

/// `[[mounts]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// On the host.
    pub source: String,
    /// Inside; absent means the same path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

impl Mount {
    /// Where the agent sees it.
    pub fn target(&self) -> &str {
        self.target.as_deref().unwrap_or(&self.source)
    }
}

/// `[runtime]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    /// `host` (also when absent) or an image pinned by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Further immutable runtime directories of the host, read-only at the same path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
}

impl Runtime {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.image.is_none() && self.mounts.is_empty()
    }
}

/// What is spoken to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP over TLS.
    Https,
    /// Plain HTTP.
    Http,
    /// Any protocol over TLS with a server name.
    Tls,
    /// Anything.
    Tcp,
}

/// `[[network]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Exact name, or `*.example.org` for sub-domains only.
    pub host: String,
    /// Ports; absent means 443.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u16>>,
    /// Absent means `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Whether TLS is opened with a per-run authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspect: Option<bool>,
}

/// `[[private_network]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateNetwork {
    /// The name.
    pub host: String,
    /// Address blocks the name may resolve to.
    pub addresses: Vec<String>,
    /// Ports.
    pub ports: Vec<u16>,
    /// What is spoken.
    pub protocol: Protocol,
}

/// `[[llm]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llm {
    /// A configured provider.
    pub provider: String,
    /// Patterns of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Ceiling of one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<Count>,
}

/// `[[tools]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tools {
    /// A server configured on the host.
    pub server: String,
    /// Patterns of tool names.
    pub tools: Vec<String>,
    /// What the tools may cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<BTreeSet<Effect>>,
    /// Repositories they may touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<Vec<String>>,
}

/// How a raw credential reaches the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deliver {
    /// As an environment variable.
    Env,
}

/// `[[secrets]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Name of the variable.
    pub name: String,
    /// Where the host has it.
    pub source: String,
    /// How it is handed over.
    pub deliver: Deliver,
}

/// What happens when a price is not known (B8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownPrice {
    /// The call is refused.
    Refuse,
    /// The whole remainder is held.
    HoldRemainder,
}

/// `[budget]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Who pays; absent means [`DEFAULT_ACCOUNT`].
    #[serde(default, skip_serializing_if = "Option::is_none", with = "account_text")]
    pub account: Option<AccountName>,
    /// How much is held.
    #[serde(with = "usd_text")]
    pub usd: Nanos,
    /// What happens when a price is not known; absent means `refuse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unknown_price: Option<UnknownPrice>,
}

/// `[limits]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsTable {
    /// CPU bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Memory of all processes and tmpfs files together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<Count>,
    /// Bytes in each writable place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    /// stdout and stderr together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Size>,
    /// Wall time of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Millis>,
    /// Calls of host tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Count>,
    /// Time inside host tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_seconds: Option<Count>,
    /// Bytes written through host tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_written: Option<Size>,
    /// Bytes sent out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<Size>,
}

impl LimitsTable {
    /// Whether no limit is named.
    pub fn is_empty(&self) -> bool {
        *self == LimitsTable::default()
    }
}

/// `[session]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Patterns below HOME that are kept per agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
}

impl Session {
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.keep.is_empty()
    }
}

/// `[approval]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The workflow step.
    pub step: String,
}

impl Manifest {
    /// The profile, `read` when none is named.
    pub fn profile(&self) -> Profile {
        self.profile.unwrap_or(Profile::Read)
    }

    /// What the run may cause: as written, else what its profile cannot do without.
    pub fn effects(&self) -> BTreeSet<Effect> {
        self.effects.clone().unwrap_or_else(|| match self.profile() {
            Profile::Read => BTreeSet::from([Effect::Read, Effect::Process]),
            Profile::WorkspaceWrite => {
                BTreeSet::from([Effect::Read, Effect::Write, Effect::Process])
            }
            // Nothing contains it, so nothing can be left out.
            Profile::TrustedHost => BTreeSet::from(Effect::ALL),
        })
    }

    /// Whether something that costs money is granted (B7): a model lane, a tool or a raw secret.
    pub fn grants_priced(&self) -> bool {
        !self.llm.is_empty() || !self.tools.is_empty() || !self.secrets.is_empty()
    }
}

impl Workspace {
    /// The directory alone, everything else absent.
    pub fn at(path: impl Into<String>) -> Self {
        Workspace {
            path: path.into(),
            target: None,
            base: None,
            history: None,
            files: None,
            include_ignored: Vec::new(),
        }
    }

    /// Where the agent sees it.
    pub fn target(&self) -> &str {
        match self.target.as_deref() {
            None | Some("same") => &self.path,
            Some(target) => target,
        }
    }

    /// Whether the ceiling of files lets everything through.
    pub fn shows_all_files(&self) -> bool {
        self.files.as_ref().is_none_or(|files| files.iter().any(|pattern| pattern == "**"))
    }

    /// The history: reachable unless it is left out or a ceiling hides files.
    pub fn history(&self) -> History {
        match self.history {
            Some(history) => history,
            None if self.shows_all_files() => History::Reachable,
            None => History::None,
        }
    }
}

/// Money as the text people write, in one canonical form.
pub(super) mod usd_text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use crate::Nanos;

    pub(super) fn serialize<S: Serializer>(usd: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(usd)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Nanos, D::Error> {
        let text = String::deserialize(deserializer)?;
        Nanos::parse_usd(&text).map_err(|refusal| D::Error::custom(refusal.cause))
    }

    /// The same for an amount that may be left out.
    pub(in super::super) mod option {
        use serde::de::Deserializer;
        use serde::ser::Serializer;

        use crate::Nanos;

        pub(in super::super::super) fn serialize<S: Serializer>(
            usd: &Option<Nanos>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match usd {
                Some(usd) => super::serialize(usd, serializer),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Nanos>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}

/// An account's name, refused with the reason alone.
mod account_text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    use crate::AccountName;

    pub(super) fn serialize<S: Serializer>(
        name: &Option<AccountName>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        name.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<AccountName>, D::Error> {
        let text = String::deserialize(deserializer)?;
        match AccountName::parse(&text) {
            Ok(name) => Ok(Some(name)),
            Err(refusal) => Err(D::Error::custom(refusal.cause)),
        }
    }
}
