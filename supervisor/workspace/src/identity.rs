//! Who the user is, read from configuration and passed on to the clone.

use std::collections::BTreeMap;
use std::path::Path;

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::git::{Git, line_path};
use crate::inspect::Source;
use crate::path::RawPath;

/// Who the agent commits as, and the settings under which the user's files look the way they do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// `user.name`.
    pub name: Option<String>,
    /// `user.email`.
    pub email: Option<String>,
    /// The user's own ignore file.
    pub excludes: Option<RawPath>,
    /// Settings of [`SETTINGS`] that the user has.
    pub settings: BTreeMap<String, String>,
}

/// Settings that say how content and file names are meant; none of them starts anything.
pub const SETTINGS: &[&str] =
    &["core.autocrlf", "core.eol", "core.filemode", "core.ignorecase", "core.safecrlf"];

/// Who commits when the user has said nothing: a commit inside works on a new machine too.
pub(crate) const NOBODY: (&str, &str) = ("atenea", "atenea@localhost");

impl Identity {
    /// The settings as lines of the section `[core]`.
    pub(crate) fn settings_text(&self) -> Result<String, Refusal> {
        let mut text = String::new();
        for (key, value) in &self.settings {
            let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let name = key.strip_prefix("core.").filter(|_| SETTINGS.contains(&key.as_str()));
            let Some(name) = name.filter(|_| plain) else {
                let cause = format!("the setting {key:?} = {value:?} is not passed on");
                return Err(Refusal::new(Code::ManifestBadValue, cause));
            };
            text.push_str(&format!("\t{name} = {value}\n"));
        }
        Ok(text)
    }
}

/// Reads who the user is, from the repository's and the user's own configuration. `git config` only
/// reads files.
///
/// # Errors
/// `host.no_git`, `fs.io`.
pub fn identity(source: &Source, home: Option<&Path>) -> Result<Identity, Refusal> {
    let config = || {
        let git = if source.is_repository() { source.git("config") } else { Git::new("config") };
        // Our own overrides must not hide what the user has.
        let git = git.without_settings();
        match home {
            Some(home) => git.with_home(home),
            None => git,
        }
    };
    let names = SETTINGS.iter().map(|name| name.replace('.', r"\."));
    let names: Vec<String> = [r"user\.name", r"user\.email", r"core\.excludesfile"]
        .into_iter()
        .map(str::to_owned)
        .chain(names)
        .collect();
    let wanted = format!("^({})$", names.join("|"));
    let outcome = config().args(["--null", "--get-regexp"]).arg(&wanted).outcome()?;
    let values = if outcome.ok() { values(&outcome.stdout) } else { BTreeMap::new() };
    let excludes = if values.contains_key("core.excludesfile") {
        let path = config().args(["--type=path", "--get", "core.excludesFile"]).outcome()?;
        path.ok().then(|| RawPath::from(line_path(path.stdout)))
    } else {
        let usual = home.map(|home| home.join(".config/git/ignore"));
        usual.filter(|path| path.is_file()).map(RawPath::from)
    };
    let setting = |key: &&str| {
        let value = values.get(*key)?;
        let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
        plain.then(|| ((*key).to_owned(), value.clone()))
    };
    Ok(Identity {
        name: values.get("user.name").cloned(),
        email: values.get("user.email").cloned(),
        excludes,
        settings: SETTINGS.iter().filter_map(setting).collect(),
    })
}

/// The last value of each key in the output of `git config --null`. A value that is not UTF-8 is
/// left out, as one that is not there.
fn values(output: &[u8]) -> BTreeMap<String, String> {
    let pair = |entry: &[u8]| {
        // A key without a value means true.
        let entry = std::str::from_utf8(entry).ok()?;
        let (key, value) = entry.split_once('\n').unwrap_or((entry, "true"));
        Some((key.to_owned(), value.to_owned()))
    };
    output.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts_and_a_bare_key_means_true() {
        let found = values(b"user.name\nA\0user.name\nB\nC\0core.ignorecase\0user.email\n\xff\0");
        let expected = [("core.ignorecase", "true"), ("user.name", "B\nC")];
        assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }
}
