//! Every grant in plain words, for the person who approves.
//!
//! Texts of the manifest are quoted and escaped: nobody approves what their terminal hid. Values
//! of variables are not shown (E4).

use crate::Profile;

use super::forms::quoted;
use super::model::{Effect, History, Manifest, Protocol, Tools};

/// What the manifest grants, one sentence per grant, in the order of the schema.
pub fn explain(manifest: &Manifest) -> Vec<String> {
    let mut lines = vec![profile(manifest), effects(manifest)];
    command(manifest, &mut lines);
    workspace(manifest, &mut lines);
    for mount in &manifest.mounts {
        lines.push(format!(
            "It can read {}{}.",
            quoted(&mount.source),
            seen_at(&mount.source, mount.target())
        ));
    }
    let image = manifest.runtime.image.as_deref().unwrap_or("host");
    lines.push(match image {
        "host" if manifest.profile() == Profile::TrustedHost => {
            "It runs on this host itself.".to_owned()
        }
        "host" => "It runs on this host's own programs and libraries, read-only.".to_owned(),
        image => format!("It runs on the image {}.", quoted(image)),
    });
    for path in &manifest.runtime.mounts {
        lines.push(format!("It can read the runtime directory {}.", quoted(path)));
    }
    network(manifest, &mut lines);
    mediated(manifest, &mut lines);
    money(manifest, &mut lines);
    limits(manifest, &mut lines);
    for pattern in &manifest.session.keep {
        lines.push(format!("Files {} of its home are kept for the next run.", quoted(pattern)));
    }
    if let Some(approval) = &manifest.approval {
        lines.push(format!("It claims the approval of step {}.", quoted(&approval.step)));
    }
    lines
}

fn profile(manifest: &Manifest) -> String {
    match manifest.profile() {
        Profile::Read => "Profile read: it works on a read-only snapshot and changes nothing.",
        Profile::WorkspaceWrite => {
            "Profile workspace-write: it works on a private copy; you review and export changes."
        }
        Profile::TrustedHost => {
            "Profile trusted-host: NOT SANDBOXED, it can do everything you can do on this host."
        }
    }
    .to_owned()
}

fn effects(manifest: &Manifest) -> String {
    let words: Vec<&str> = manifest.effects().into_iter().map(Effect::as_str).collect();
    format!("It may cause: {}.", words.join(", "))
}

fn command(manifest: &Manifest, lines: &mut Vec<String>) {
    let argv: Vec<String> = manifest.command.argv.iter().map(|text| quoted(text)).collect();
    lines.push(format!("It runs {}.", argv.join(" ")));
    if let Some(cwd) = manifest.command.cwd.as_deref().filter(|cwd| *cwd != ".") {
        lines.push(format!("It starts in {} of the workspace.", quoted(cwd)));
    }
    for name in manifest.command.env.keys() {
        lines.push(format!(
            "The variable {} is passed with the value of the manifest.",
            quoted(name)
        ));
    }
    if let Some(parent) = &manifest.parent {
        lines.push(format!("The hold of run {} pays for it.", quoted(parent)));
    }
}

fn workspace(manifest: &Manifest, lines: &mut Vec<String>) {
    let workspace = &manifest.workspace;
    let place = seen_at(&workspace.path, workspace.target());
    let base = match workspace.base.as_deref() {
        None | Some("working-tree") => "with its uncommitted changes".to_owned(),
        Some(commit) => format!("as of {}", quoted(commit)),
    };
    lines.push(format!("It sees the project {}{place}, {base}.", quoted(&workspace.path)));
    match &workspace.files {
        Some(files) if !workspace.shows_all_files() => {
            let list: Vec<String> = files.iter().map(|pattern| quoted(pattern)).collect();
            lines.push(format!("Only these files of it are visible: {}.", list.join(", ")));
        }
        _ => lines.push("All tracked and untracked files of it are visible.".to_owned()),
    }
    for pattern in &workspace.include_ignored {
        lines.push(format!("Ignored files {} are visible too.", quoted(pattern)));
    }
    // A snapshot is files only.
    let cloned = manifest.profile() != Profile::Read;
    lines.push(match workspace.history() {
        History::Reachable if cloned => "The history of its base is visible.".to_owned(),
        _ => "No history is visible.".to_owned(),
    });
}

fn network(manifest: &Manifest, lines: &mut Vec<String>) {
    if manifest.profile() == Profile::TrustedHost {
        lines.push("It reaches whatever this host reaches.".to_owned());
        return;
    }
    if manifest.network.is_empty() && manifest.private_network.is_empty() {
        lines.push("It reaches no network.".to_owned());
    }
    for grant in &manifest.network {
        let ports = numbers(grant.ports.as_deref().unwrap_or(&[443]));
        let protocol = protocol(grant.protocol.unwrap_or(Protocol::Https));
        let opened =
            if grant.inspect == Some(true) { "; the traffic is opened and inspected" } else { "" };
        let name = match grant.host.strip_prefix("*.") {
            Some(domain) => format!("every sub-domain of {} (not itself)", quoted(domain)),
            None => quoted(&grant.host),
        };
        lines.push(format!("It reaches {name} on port {ports} by {protocol}{opened}."));
    }
    for grant in &manifest.private_network {
        let blocks: Vec<String> = grant.addresses.iter().map(|block| quoted(block)).collect();
        lines.push(format!(
            "It reaches the private host {} in {} on port {} by {}.",
            quoted(&grant.host),
            blocks.join(", "),
            numbers(&grant.ports),
            protocol(grant.protocol)
        ));
    }
}

fn mediated(manifest: &Manifest, lines: &mut Vec<String>) {
    for llm in &manifest.llm {
        let models = match &llm.models {
            Some(models) => models.iter().map(|model| quoted(model)).collect::<Vec<_>>().join(", "),
            None => "every model".to_owned(),
        };
        let most = llm
            .max_output_tokens
            .map_or_else(String::new, |most| format!(", at most {most} tokens an answer"));
        lines.push(format!("It calls {models} of {}{most}.", quoted(&llm.provider)));
    }
    lines.extend(manifest.tools.iter().map(tools));
    for secret in &manifest.secrets {
        lines.push(format!(
            "It RECEIVES THE SECRET {} from {}: it can send it anywhere it reaches.",
            quoted(&secret.name),
            quoted(&secret.source)
        ));
    }
}

fn tools(grant: &Tools) -> String {
    let list =
        |items: &[String]| items.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
    let effects = match &grant.effects {
        Some(effects) => {
            let words: Vec<&str> = effects.iter().map(|effect| effect.as_str()).collect();
            format!(" to {}", words.join(" and "))
        }
        None => String::new(),
    };
    let repositories = match &grant.repositories {
        Some(repositories) => format!(", only in {}", list(repositories)),
        None => String::new(),
    };
    let server = quoted(&grant.server);
    format!("It calls the tools {} of {server}{effects}{repositories}.", list(&grant.tools))
}

fn money(manifest: &Manifest, lines: &mut Vec<String>) {
    lines.push(match &manifest.budget {
        Some(budget) => {
            let account = budget.account.as_ref().map_or("default", |account| account.as_str());
            format!("${} of the account {} is held for it.", budget.usd, quoted(account))
        }
        None => "No money is held; nothing that costs can be called.".to_owned(),
    });
}

fn limits(manifest: &Manifest, lines: &mut Vec<String>) {
    let limits = &manifest.limits;
    let mut named = Vec::new();
    let mut name = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            named.push(format!("{key} {value}"));
        }
    };
    name("cpus", limits.cpus.map(|v| v.to_string()));
    name("memory", limits.memory.map(|v| v.to_string()));
    name("pids", limits.pids.map(|v| v.to_string()));
    name("disk", limits.disk.map(|v| v.to_string()));
    name("output", limits.output.map(|v| v.to_string()));
    name("duration", limits.duration.map(|v| v.to_string()));
    name("tool_calls", limits.tool_calls.map(|v| v.to_string()));
    name("exec_seconds", limits.exec_seconds.map(|v| v.to_string()));
    name("bytes_written", limits.bytes_written.map(|v| v.to_string()));
    name("bytes_sent", limits.bytes_sent.map(|v| v.to_string()));
    lines.push(match named.is_empty() {
        true => "Its limits are the defaults of the configuration.".to_owned(),
        false => format!("Its limits: {}; others by default.", named.join(", ")),
    });
}

fn seen_at(source: &str, target: &str) -> String {
    if source == target { String::new() } else { format!(" (seen at {})", quoted(target)) }
}

fn numbers(list: &[u16]) -> String {
    list.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Https => "https",
        Protocol::Http => "http",
        Protocol::Tls => "tls",
        Protocol::Tcp => "tcp",
    }
}
