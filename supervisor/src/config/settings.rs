//! Every setting there is: as the file has it, and as the program uses it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use atenea_core::event::Period;
use atenea_core::manifest::tree::Tree;
use atenea_core::manifest::{Ceilings, MaxLimits, is_plain_absolute, is_unsafe_source};
use atenea_core::size::{Count, Cpus, Millis, Size};
use atenea_core::{AccountName, Code, Digest, Limits, Nanos, Refusal};
use serde::Deserialize;

/// Most runs at once that may be configured: each has processes, mounts and descriptors.
const CONCURRENT_MAX: u64 = 4_096;
/// The uid that means "nobody" on Linux; no run may have it, because other services do.
const NOBODY: u32 = 65_534;
/// Uids from here on are not valid or mean "no change" to system calls.
const UID_END: u32 = u32::MAX - 1;

/// Whether runs are contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// They are.
    Enforced,
    /// Only `trusted-host` runs are accepted, and every receipt says so.
    Off,
}

/// What contains a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The `bwrap` program.
    Bubblewrap,
}

/// `[sandbox]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether runs are contained.
    pub mode: Mode,
    /// Whether `trusted-host` is accepted.
    pub allow_trusted_host: bool,
    /// What contains them.
    pub engine: Engine,
    /// Runs at once; more wait.
    pub max_concurrent: usize,
    /// An on-demand supervisor ends when it was idle for so long, milliseconds.
    pub idle_ms: u64,
    /// Users of runs when started as root.
    pub uid_range: UidRange,
    /// The engine's program.
    pub bubblewrap: Bubblewrap,
}

/// `[sandbox.uid_range]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    /// First host uid.
    pub start: u32,
    /// How many.
    pub count: u32,
}

/// `[sandbox.bubblewrap]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bubblewrap {
    /// The program.
    pub path: PathBuf,
    /// Accepted BLAKE3 digests of it; none listed means any.
    pub digests: Vec<Digest>,
}

/// `[budget.NAME]`: what the account has in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetRule {
    /// Its limit.
    pub usd: Nanos,
    /// Its period.
    pub per: Period,
}

/// `[journal]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// Events between snapshots.
    pub snapshot_every: u64,
    /// Disk space kept for cancel and cleanup (J9), bytes.
    pub reserve_bytes: u64,
}

/// What happens to runs when the supervisor is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStop {
    /// They are cancelled, with their grace.
    Cancel,
    /// They may end by themselves.
    Wait,
}

/// `[daemon]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// What a signal to stop means for runs.
    pub on_stop: OnStop,
}

/// The configuration, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file it was read from; none means defaults.
    pub file: Option<PathBuf>,
    /// `[sandbox]`
    pub sandbox: Sandbox,
    /// `[runtime.host] mounts`: immutable directories of the host besides the built-in ones.
    pub runtime_mounts: Vec<PathBuf>,
    /// `[limits.default]`
    pub default_limits: Limits,
    /// `[limits.max]`
    pub max_limits: MaxLimits,
    /// `[budget.NAME]`
    pub budgets: BTreeMap<AccountName, BudgetRule>,
    /// `[journal]`
    pub journal: JournalSettings,
    /// `[daemon]`
    pub daemon: Daemon,
    /// `[approval] required`: every run needs an approval.
    pub approval_required: bool,
}

impl Config {
    /// What [`check`](atenea_core::manifest::check) compares manifests with.
    pub fn ceilings(&self) -> Ceilings {
        Ceilings { defaults: self.default_limits.clone(), max: self.max_limits.clone() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            file: None,
            sandbox: Sandbox {
                mode: Mode::Enforced,
                allow_trusted_host: false,
                engine: Engine::Bubblewrap,
                max_concurrent: 8,
                idle_ms: 60_000,
                uid_range: UidRange { start: 1_900_000_000, count: 65_536 },
                bubblewrap: Bubblewrap { path: "/usr/bin/bwrap".into(), digests: Vec::new() },
            },
            runtime_mounts: Vec::new(),
            default_limits: Limits::default(),
            max_limits: MaxLimits::default(),
            budgets: BTreeMap::new(),
            journal: JournalSettings { snapshot_every: 1_000, reserve_bytes: 16 << 20 },
            daemon: Daemon { on_stop: OnStop::Cancel },
            approval_required: false,
        }
    }
}

/// The file, key by key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct FileSchema {
    sandbox: SandboxTable,
    runtime: RuntimeTable,
    limits: LimitsTables,
    budget: BTreeMap<String, BudgetTable>,
    journal: JournalTable,
    daemon: DaemonTable,
    approval: ApprovalTable,
    // Of later versions: known, so that the refusal can say so.
    retention: Option<Tree>,
    llm: Option<Tree>,
    tools: Option<Tree>,
    tiers: Option<Tree>,
    guards: Option<Tree>,
    egress: Option<Tree>,
    agents: Option<Tree>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct SandboxTable {
    mode: Option<Mode>,
    allow_trusted_host: Option<bool>,
    engine: Option<Engine>,
    max_concurrent: Option<Count>,
    idle_seconds: Option<Count>,
    uid_range: UidRangeTable,
    bubblewrap: BubblewrapTable,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct UidRangeTable {
    start: Option<u32>,
    count: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct BubblewrapTable {
    path: Option<String>,
    digests: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RuntimeTable {
    host: HostRuntimeTable,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct HostRuntimeTable {
    mounts: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsTables {
    default: DefaultLimitsTable,
    max: MaxLimitsTable,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct DefaultLimitsTable {
    cpus: Option<Cpus>,
    memory: Option<Size>,
    pids: Option<Count>,
    disk: Option<Size>,
    output: Option<Size>,
    duration: Option<Millis>,
    grace: Option<Millis>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct MaxLimitsTable {
    cpus: Option<Cpus>,
    memory: Option<Size>,
    pids: Option<Count>,
    disk: Option<Size>,
    output: Option<Size>,
    duration: Option<Millis>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetTable {
    usd: String,
    per: Option<Period>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct JournalTable {
    snapshot_every: Option<Count>,
    reserve: Option<Size>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct DaemonTable {
    on_stop: Option<OnStop>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ApprovalTable {
    required: Option<bool>,
}

impl FileSchema {
    /// Checks every value and fills in defaults.
    pub(super) fn settle(self) -> Result<Config, Refusal> {
        let base = Config::default();
        self.refuse_later()?;
        let max_limits = self.limits.max.settle();
        Ok(Config {
            file: None,
            default_limits: self.limits.default.settle(&base.default_limits, &max_limits)?,
            max_limits,
            sandbox: self.sandbox.settle(base.sandbox)?,
            runtime_mounts: runtime_mounts(self.runtime.host.mounts)?,
            budgets: self.budget.into_iter().map(budget).collect::<Result<_, _>>()?,
            journal: JournalSettings {
                snapshot_every: or(
                    self.journal.snapshot_every,
                    Count::get,
                    base.journal.snapshot_every,
                ),
                reserve_bytes: or(self.journal.reserve, Size::bytes, base.journal.reserve_bytes),
            },
            daemon: Daemon { on_stop: self.daemon.on_stop.unwrap_or(base.daemon.on_stop) },
            approval_required: self.approval.required.unwrap_or(base.approval_required),
        })
    }

    /// S2: a rule this version cannot enforce is not accepted as if it could.
    fn refuse_later(&self) -> Result<(), Refusal> {
        let empty = |tree: &Tree| matches!(tree, Tree::Table(table) if table.is_empty());
        let asked = |tree: &Option<Tree>| tree.as_ref().is_some_and(|tree| !empty(tree));
        let later = [
            ("retention", asked(&self.retention)),
            ("llm", asked(&self.llm)),
            ("tools", asked(&self.tools)),
            ("tiers", asked(&self.tiers)),
            ("guards", asked(&self.guards)),
            ("egress", asked(&self.egress)),
            ("agents", asked(&self.agents)),
        ];
        match later.iter().find(|(_, asked)| *asked) {
            Some((key, _)) => Err(bad(key, "this version cannot enforce it")
                .with_help("remove it; nothing that is written here is ever ignored")),
            None => Ok(()),
        }
    }
}

impl SandboxTable {
    fn settle(self, base: Sandbox) -> Result<Sandbox, Refusal> {
        let most = or(self.max_concurrent, Count::get, 8);
        if most > CONCURRENT_MAX {
            let why = format!("{most} is more than {CONCURRENT_MAX}");
            return Err(bad("sandbox.max_concurrent", why));
        }
        let idle_ms = self.idle_seconds.map(|s| Millis::from_ms(s.get().saturating_mul(1_000)));
        let idle_ms = match idle_ms {
            None => base.idle_ms,
            Some(Some(idle)) => idle.ms(),
            Some(None) => return Err(bad("sandbox.idle_seconds", "it is more than a century")),
        };
        Ok(Sandbox {
            mode: self.mode.unwrap_or(base.mode),
            allow_trusted_host: self.allow_trusted_host.unwrap_or(base.allow_trusted_host),
            engine: self.engine.unwrap_or(base.engine),
            max_concurrent: usize::try_from(most).unwrap_or(base.max_concurrent),
            idle_ms,
            uid_range: self.uid_range.settle(base.uid_range)?,
            bubblewrap: self.bubblewrap.settle(base.bubblewrap)?,
        })
    }
}

impl UidRangeTable {
    fn settle(self, base: UidRange) -> Result<UidRange, Refusal> {
        let start = self.start.unwrap_or(base.start);
        let count = self.count.unwrap_or(base.count);
        let refuse = |why: &str| Err(bad("sandbox.uid_range", format!("{start} + {count}: {why}")));
        let Some(end) = start.checked_add(count).filter(|end| *end <= UID_END) else {
            return refuse("it goes beyond the last valid uid");
        };
        // Runs must be nobody: below are the users of the system and of people.
        if start < 1_000 || count == 0 {
            return refuse("it needs at least one uid, all of them from 1000 on");
        }
        if (start..end).contains(&NOBODY) {
            return refuse("it holds 65534, which belongs to others");
        }
        Ok(UidRange { start, count })
    }
}

impl BubblewrapTable {
    fn settle(self, base: Bubblewrap) -> Result<Bubblewrap, Refusal> {
        let path = match self.path {
            None => base.path,
            Some(path) if is_plain_absolute(&path) => path.into(),
            Some(path) => {
                let why = format!("{path:?} is no plain absolute path");
                return Err(bad("sandbox.bubblewrap.path", why));
            }
        };
        let key = "sandbox.bubblewrap.digests";
        let digests = match self.digests {
            None => Vec::new(),
            Some(texts) if texts.is_empty() => {
                return Err(bad(key, "an empty list accepts no program; leave it out"));
            }
            Some(texts) => texts
                .iter()
                .enumerate()
                .map(|(index, text)| {
                    Digest::parse(text).map_err(|why| bad(&format!("{key}[{index}]"), why.cause))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Bubblewrap { path, digests })
    }
}

impl MaxLimitsTable {
    fn settle(&self) -> MaxLimits {
        MaxLimits {
            cpu_millis: self.cpus.map(Cpus::millis),
            memory_bytes: self.memory.map(Size::bytes),
            pids: self.pids.map(Count::get),
            disk_bytes: self.disk.map(Size::bytes),
            output_bytes: self.output.map(Size::bytes),
            duration_ms: self.duration.map(Millis::ms),
        }
    }
}

impl DefaultLimitsTable {
    /// A default that was written and is above its ceiling is a mistake; a built-in one is lowered
    /// when a manifest is checked.
    fn settle(&self, base: &Limits, max: &MaxLimits) -> Result<Limits, Refusal> {
        Ok(Limits {
            cpu_millis: default("cpus", self.cpus, Cpus::millis, base.cpu_millis, max.cpu_millis)?,
            memory_bytes: default(
                "memory",
                self.memory,
                Size::bytes,
                base.memory_bytes,
                max.memory_bytes,
            )?,
            pids: default("pids", self.pids, Count::get, base.pids, max.pids)?,
            disk_bytes: default("disk", self.disk, Size::bytes, base.disk_bytes, max.disk_bytes)?,
            output_bytes: default(
                "output",
                self.output,
                Size::bytes,
                base.output_bytes,
                max.output_bytes,
            )?,
            duration_ms: default(
                "duration",
                self.duration,
                Millis::ms,
                base.duration_ms,
                max.duration_ms,
            )?,
            grace_ms: or(self.grace, Millis::ms, base.grace_ms),
        })
    }
}

fn default<T: Copy + Display>(
    key: &str,
    written: Option<T>,
    value: fn(T) -> u64,
    base: u64,
    max: Option<u64>,
) -> Result<u64, Refusal> {
    match written {
        Some(text) if max.is_some_and(|max| value(text) > max) => {
            Err(bad(&format!("limits.default.{key}"), format!("{text} is above limits.max.{key}")))
        }
        written => Ok(or(written, value, base)),
    }
}

fn or<T>(written: Option<T>, value: fn(T) -> u64, base: u64) -> u64 {
    written.map_or(base, value)
}

fn budget((name, table): (String, BudgetTable)) -> Result<(AccountName, BudgetRule), Refusal> {
    let key = format!("budget.{}", name.escape_debug());
    let account = AccountName::parse(&name).map_err(|why| bad(&key, why.cause))?;
    let usd = Nanos::parse_usd(&table.usd).map_err(|why| bad(&format!("{key}.usd"), why.cause))?;
    Ok((account, BudgetRule { usd, per: table.per.unwrap_or(Period::Total) }))
}

fn runtime_mounts(paths: Vec<String>) -> Result<Vec<PathBuf>, Refusal> {
    for (index, path) in paths.iter().enumerate() {
        let key = format!("runtime.host.mounts[{index}]");
        if !is_plain_absolute(path) {
            return Err(bad(&key, format!("{path:?} is no plain absolute path")));
        }
        if is_unsafe_source(path) {
            return Err(bad(&key, format!("{path:?} can hold sockets or shows the host")));
        }
    }
    Ok(paths.into_iter().map(PathBuf::from).collect())
}

fn bad(key: &str, why: impl Display) -> Refusal {
    Refusal::new(Code::HostConfig, format!("{key}: {why}"))
}
