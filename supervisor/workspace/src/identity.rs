//! Who the user is, read from configuration and passed on to the clone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    let get = |key: &str, kind: &[&str]| -> Result<Option<PathBuf>, Refusal> {
        let mut git =
            if source.is_repository() { source.git("config") } else { Git::new("config") };
        if let Some(home) = home {
            git = git.with_home(home);
        }
        // Our own overrides must not hide what the user has.
        let outcome = git.without_settings().args(kind).args(["--get", key]).outcome()?;
        Ok(outcome.ok().then(|| line_path(outcome.stdout)))
    };
    let text =
        |path: Option<PathBuf>| path.and_then(|path| path.into_os_string().into_string().ok());
    let mut found = Identity {
        name: text(get("user.name", &[])?),
        email: text(get("user.email", &[])?),
        excludes: get("core.excludesFile", &["--type=path"])?.map(RawPath::from),
        settings: BTreeMap::new(),
    };
    if found.excludes.is_none() {
        let usual = home.map(|home| home.join(".config/git/ignore"));
        found.excludes = usual.filter(|path| path.is_file()).map(RawPath::from);
    }
    for key in SETTINGS {
        let value = text(get(key, &[])?);
        if let Some(value) = value.filter(|v| v.bytes().all(|b| b.is_ascii_alphanumeric())) {
            found.settings.insert((*key).to_owned(), value);
        }
    }
    Ok(found)
}
