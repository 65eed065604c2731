//! Forms of values that need neither configuration nor host: names, paths, patterns, lists.
//!
//! Paths are compared by component, never by prefix of text (`/work` does not contain
//! `/workspace`), and a path is refused rather than cleaned up: what is checked here is what the
//! launcher opens.

use std::fmt::Display;

use crate::{Code, Nanos, Profile, Refusal};

use super::model::{History, Manifest, Mount, Network, PrivateNetwork, Tools, Workspace};
use super::targets;

/// Longest path, as the kernel has it.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest name of anything, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Most entries of any list or table: bounds the plan, its mounts and its environment.
pub const ENTRIES_MAX: usize = 1024;
/// Most arguments.
pub const ARGV_MAX: usize = 16_384;
/// Longest argument or variable: the kernel's own bound for one string is 128 KiB.
pub const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;

type Outcome = Result<(), Refusal>;

/// Checks every form of a manifest.
///
/// # Errors
/// `manifest.*` or `fs.bad_target`, naming the path of the first value that does not fit.
pub(super) fn check(manifest: &Manifest) -> Outcome {
    command(manifest)?;
    workspace(&manifest.workspace)?;
    if let Some(effects) = &manifest.effects {
        not_empty("effects", effects.len())?;
    }
    manifest.parent.as_deref().map_or(Ok(()), |parent| name("parent", parent))?;
    bounded("mounts", manifest.mounts.len())?;
    each(&manifest.mounts, "mounts", mount)?;
    runtime(manifest)?;
    targets::check(manifest)?;
    grants(manifest)?;
    limits(manifest)?;
    for (index, pattern) in manifest.session.keep.iter().enumerate() {
        relative_pattern(&format!("session.keep[{index}]"), pattern)?;
    }
    match &manifest.approval {
        Some(approval) => name("approval.step", &approval.step),
        None => Ok(()),
    }
}

fn command(manifest: &Manifest) -> Outcome {
    let command = &manifest.command;
    let Some(program) = command.argv.first() else {
        return Err(Refusal::new(Code::ManifestNoCommand, "command.argv is empty"));
    };
    if program.is_empty() {
        return Err(Refusal::new(Code::ManifestNoCommand, "command.argv[0] is empty"));
    }
    if command.argv.len() > ARGV_MAX {
        return Err(bad("command.argv", format!("more than {ARGV_MAX} arguments")));
    }
    for (index, argument) in command.argv.iter().enumerate() {
        argument_text(&format!("command.argv[{index}]"), argument)?;
    }
    if let Some(cwd) = &command.cwd {
        relative_path("command.cwd", cwd)?;
    }
    bounded("command.env", command.env.len())?;
    command.env.iter().try_for_each(|(name, value)| variable(name, value))
}

/// A variable's name and value. `ATENEA_*` is how we talk to the guest, so nobody else sets it.
fn variable(name: &str, value: &str) -> Outcome {
    let path = format!("command.env.{}", shown_path(name));
    let printable = |b: u8| b.is_ascii_graphic() && b != b'=';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(printable) {
        return Err(bad(&path, "a variable's name is printable ASCII without `=` and spaces"));
    }
    if name.starts_with("ATENEA_") {
        return Err(bad(&path, "names that start with ATENEA_ are set by the supervisor"));
    }
    argument_text(&path, value)
}

fn workspace(workspace: &Workspace) -> Outcome {
    if targets::is_no_project(&workspace.path) {
        let cause = format!("workspace.path: {} is no project", quoted(&workspace.path));
        return Err(Refusal::new(Code::FsBadWorkspace, cause));
    }
    absolute_path("workspace.path", &workspace.path)?;
    if let Some(base) = &workspace.base {
        commit("workspace.base", base)?;
    }
    if let Some(files) = &workspace.files {
        not_empty("workspace.files", files.len())?;
        bounded("workspace.files", files.len())?;
        for (index, pattern) in files.iter().enumerate() {
            relative_pattern(&format!("workspace.files[{index}]"), pattern)?;
        }
    }
    bounded("workspace.include_ignored", workspace.include_ignored.len())?;
    for (index, pattern) in workspace.include_ignored.iter().enumerate() {
        relative_pattern(&format!("workspace.include_ignored[{index}]"), pattern)?;
    }
    // Objects of the history hold files that the ceiling hides.
    if workspace.history == Some(History::Reachable) && !workspace.shows_all_files() {
        return Err(bad(
            "workspace.history",
            "history is reachable only with files = [\"**\"]: it would show what the ceiling hides",
        ));
    }
    Ok(())
}

fn mount(path: &str, mount: &Mount) -> Outcome {
    let source = format!("{path}.source");
    absolute_path(&source, &mount.source)?;
    if targets::is_unsafe_source(&mount.source) {
        return Err(bad(
            &source,
            format!("{} can hold sockets or shows the host", quoted(&mount.source)),
        )
        .with_help("grant a directory that holds plain files only"));
    }
    Ok(())
}

fn runtime(manifest: &Manifest) -> Outcome {
    let runtime = &manifest.runtime;
    if let Some(image) = &runtime.image {
        name("runtime.image", image)?;
    }
    bounded("runtime.mounts", runtime.mounts.len())?;
    for (index, source) in runtime.mounts.iter().enumerate() {
        let path = format!("runtime.mounts[{index}]");
        absolute_path(&path, source)?;
        if targets::is_unsafe_source(source) {
            return Err(bad(
                &path,
                format!("{} can hold sockets or shows the host", quoted(source)),
            ));
        }
    }
    Ok(())
}

/// Grants that reach outside: read completely, although this version refuses them later.
fn grants(manifest: &Manifest) -> Outcome {
    each(&manifest.network, "network", network)?;
    each(&manifest.private_network, "private_network", private_network)?;
    each(&manifest.llm, "llm", |path, llm| {
        name(&format!("{path}.provider"), &llm.provider)?;
        llm.models.as_ref().map_or(Ok(()), |models| names(&format!("{path}.models"), models))
    })?;
    each(&manifest.tools, "tools", tools)?;
    each(&manifest.secrets, "secrets", |path, secret| {
        name(&format!("{path}.source"), &secret.source)?;
        variable(&secret.name, "").map_err(|refusal| bad(&format!("{path}.name"), refusal.cause))
    })
}

fn network(path: &str, grant: &Network) -> Outcome {
    host(&format!("{path}.host"), &grant.host, true)?;
    grant.ports.as_ref().map_or(Ok(()), |list| ports(&format!("{path}.ports"), list))
}

fn private_network(path: &str, grant: &PrivateNetwork) -> Outcome {
    host(&format!("{path}.host"), &grant.host, false)?;
    ports(&format!("{path}.ports"), &grant.ports)?;
    not_empty(&format!("{path}.addresses"), grant.addresses.len())?;
    for (index, block) in grant.addresses.iter().enumerate() {
        address_block(&format!("{path}.addresses[{index}]"), block)?;
    }
    Ok(())
}

fn tools(path: &str, grant: &Tools) -> Outcome {
    name(&format!("{path}.server"), &grant.server)?;
    names(&format!("{path}.tools"), &grant.tools)?;
    if let Some(effects) = &grant.effects {
        not_empty(&format!("{path}.effects"), effects.len())?;
    }
    let repositories = format!("{path}.repositories");
    grant.repositories.as_ref().map_or(Ok(()), |list| names(&repositories, list))
}

/// Most tasks the kernel can number.
const PIDS_MAX: u64 = 4_194_304;
/// Fewest tasks with which a sandbox can be made: bubblewrap, `atenea-init`, and the agent.
const PIDS_MIN: u64 = 3;

fn limits(manifest: &Manifest) -> Outcome {
    if let Some(pids) = manifest.limits.pids.filter(|pids| pids.get() > PIDS_MAX) {
        let cause = format!("limits.pids: {pids} is more than the kernel's {PIDS_MAX}");
        return Err(Refusal::new(Code::ManifestBadLimit, cause));
    }
    let sandboxed = manifest.profile != Some(Profile::TrustedHost);
    if let Some(pids) = manifest.limits.pids.filter(|pids| sandboxed && pids.get() < PIDS_MIN) {
        let cause = format!("limits.pids: {pids} is too few: the sandbox itself needs two");
        return Err(Refusal::new(Code::ManifestBadLimit, cause)
            .with_help("give at least 3, and one more for each task of the command"));
    }
    if manifest.budget.as_ref().is_some_and(|budget| budget.usd == Nanos::ZERO) {
        let cause = "budget.usd: a budget of zero holds nothing";
        return Err(Refusal::new(Code::ManifestBadLimit, cause)
            .with_help("leave [budget] out: without one a run holds nothing"));
    }
    Ok(())
}

fn each<T>(list: &[T], key: &str, check: impl Fn(&str, &T) -> Outcome) -> Outcome {
    bounded(key, list.len())?;
    list.iter().enumerate().try_for_each(|(index, item)| check(&format!("{key}[{index}]"), item))
}

/// A DNS name in lower case without a final dot; a wildcard stands for sub-domains of at least
/// two labels.
fn host(path: &str, text: &str, wildcard: bool) -> Outcome {
    let plain = match text.strip_prefix("*.") {
        Some(rest) if wildcard && rest.contains('.') => rest,
        Some(_) => return Err(bad(path, format!("{} is too wide a wildcard", quoted(text)))),
        None => text,
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if plain.len() > 253 || !plain.split('.').all(label) {
        return Err(bad(path, format!("{} is no host name in lower case", quoted(text))));
    }
    Ok(())
}

fn ports(path: &str, list: &[u16]) -> Outcome {
    not_empty(path, list.len())?;
    bounded(path, list.len())?;
    match list.iter().position(|port| *port == 0) {
        Some(index) => Err(bad(&format!("{path}[{index}]"), "0 is no port")),
        None => Ok(()),
    }
}

fn address_block(path: &str, text: &str) -> Outcome {
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let address: Option<core::net::IpAddr> = address.parse().ok();
    let most = if matches!(address, Some(core::net::IpAddr::V6(_))) { 128 } else { 32 };
    let bits_fit = !text.contains('/') || bits.parse::<u8>().is_ok_and(|bits| bits <= most);
    match address {
        Some(_) if bits_fit => Ok(()),
        _ => Err(bad(path, format!("{} is no address block such as 10.1.2.0/24", quoted(text)))),
    }
}

/// A revision that cannot be taken for an option or a path.
fn commit(path: &str, text: &str) -> Outcome {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/~^@{}".contains(&b);
    let good = !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && text.bytes().all(plain)
        && !text.starts_with(['-', '/'])
        && !text.contains("..");
    match good {
        true => Ok(()),
        false => Err(bad(path, format!("{} is no commit", quoted(text)))
            .with_help("write working-tree, HEAD, a branch, a tag or a commit id")),
    }
}

fn names(path: &str, list: &[String]) -> Outcome {
    not_empty(path, list.len())?;
    bounded(path, list.len())?;
    list.iter().enumerate().try_for_each(|(index, text)| name(&format!("{path}[{index}]"), text))
}

/// A short text of one line.
fn name(path: &str, text: &str) -> Outcome {
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Err(bad(path, format!("write 1 to {NAME_BYTES_MAX} characters")));
    }
    match text.chars().any(is_deceptive) {
        true => Err(bad(path, format!("{} holds control characters", quoted(text)))),
        false => Ok(()),
    }
}

/// Control characters, and characters that make a text look like another one.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// An argument or value: any text the kernel takes. Prompts have line breaks.
fn argument_text(path: &str, text: &str) -> Outcome {
    if text.contains('\0') {
        return Err(bad(path, "the text holds a NUL character"));
    }
    match text.len() > ARGUMENT_BYTES_MAX {
        true => Err(bad(path, format!("longer than {ARGUMENT_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}

/// An absolute path without `.`, `..`, empty components or NUL. Line breaks are allowed: there are
/// directories with such names.
fn absolute_path(path: &str, text: &str) -> Outcome {
    match targets::is_plain_absolute(text) {
        true => Ok(()),
        false => Err(bad(path, format!("{} is no plain absolute path", quoted(text)))
            .with_help("write it from / on, without . and .. and without a / at its end")),
    }
}

fn relative_path(path: &str, text: &str) -> Outcome {
    match text == "." || targets::is_plain_relative(text) {
        true => Ok(()),
        false => Err(bad(path, format!("{} is no plain path inside the workspace", quoted(text)))),
    }
}

fn relative_pattern(path: &str, text: &str) -> Outcome {
    match targets::is_plain_relative(text) {
        true => Ok(()),
        false => Err(bad(path, format!("{} is no pattern of relative paths", quoted(text)))),
    }
}

fn not_empty(path: &str, len: usize) -> Outcome {
    match len {
        0 => Err(Refusal::new(Code::ManifestEmptyList, format!("{path} is an empty list"))),
        _ => Ok(()),
    }
}

fn bounded(path: &str, len: usize) -> Outcome {
    match len > ENTRIES_MAX {
        true => Err(bad(path, format!("more than {ENTRIES_MAX} entries"))),
        false => Ok(()),
    }
}

/// `manifest.bad_value` at a path.
pub(super) fn bad(path: &str, why: impl Display) -> Refusal {
    Refusal::new(Code::ManifestBadValue, format!("{path}: {why}"))
}

/// A text as it may be shown: quoted, escaped, not too long.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(200).collect();
    format!("{short:?}")
}

/// A path of keys as it may be shown. Keys are the author's text.
pub(super) fn shown_path(path: &str) -> String {
    path.chars().take(200).flat_map(char::escape_debug).collect()
}

/// A message as it may be shown: line breaks stay (the parsers point at a place), anything else
/// that controls a terminal does not.
pub(super) fn shown(message: &str) -> String {
    let mut shown = String::new();
    for c in message.chars().take(2_000) {
        match c {
            '\n' => shown.push('\n'),
            c if is_deceptive(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown.trim_end().to_owned()
}
