//! Rules about `Cargo.toml` files: which crate may use which, and that every library has a reason.

use toml::{Table, Value};

/// Which of our crates may depend on which others. A crate that is not listed may use none, so a
/// new crate needs a line here and a reason in the architecture page.
const ARROWS: [(&str, &[&str]); 12] = [
    (
        "atenea-sup",
        &[
            "atenea-core",
            "atenea-workspace",
            "atenea-journal",
            "atenea-launcher",
            "atenea-reaper",
            "atenea-broker",
            "atenea-egress",
        ],
    ),
    ("atenea-workspace", &["atenea-core"]),
    ("atenea-launcher", &["atenea-core", "atenea-cgroup", "atenea-init"]),
    ("atenea-reaper", &["atenea-core", "atenea-cgroup"]),
    ("atenea-broker", &["atenea-core"]),
    ("atenea-egress", &["atenea-core"]),
    ("atenea-core", &[]),
    ("atenea-journal", &[]),
    ("atenea-cgroup", &[]),
    ("atenea-init", &[]),
    ("atenea-guest", &[]),
    ("atenea-fixtures", &[]),
];

/// What tests of a crate may use besides: the other end of what they speak.
const TEST_ARROWS: [(&str, &[&str]); 1] = [("atenea-guest", &["atenea-broker", "atenea-core"])];

/// The crate that may use all others because nothing uses it.
const TESTS: &str = "atenea-model-tests";

/// Libraries through which IO, clocks or randomness could reach the pure core.
const IMPURE: [&str; 7] = ["tokio", "redb", "nix", "rustix", "libc", "getrandom", "rand"];

/// A parsed `Cargo.toml`.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Name of the package; empty for a workspace without one.
    pub name: String,
    table: Table,
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// When it is not TOML.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
        let package = table.get("package").and_then(Value::as_table);
        let name = package.and_then(|p| p.get("name")).and_then(Value::as_str);
        Ok(Manifest { name: name.unwrap_or_default().to_owned(), table })
    }

    /// Dependencies of these kinds, also those of one target only.
    fn dependencies(&self, kinds: &[&str]) -> Vec<(&str, &Value)> {
        let targets = self.table.get("target").and_then(Value::as_table);
        let per_target = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
        let tables = std::iter::once(&self.table).chain(per_target);
        tables
            .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)))
            .filter_map(Value::as_table)
            .flatten()
            .map(|(name, value)| (name.as_str(), value))
            .collect()
    }

    /// Arrows that point the wrong way.
    pub fn wrong_arrows(&self) -> Vec<String> {
        if self.name == TESTS {
            return Vec::new();
        }
        let of = |arrows: &[(&str, &'static [&'static str])]| {
            arrows.iter().find(|(name, _)| *name == self.name).map_or(&[][..], |arrow| arrow.1)
        };
        let (product, tests) = (of(&ARROWS), of(&TEST_ARROWS));
        let wrong = |kinds: &[&str], more: &[&str]| -> Vec<String> {
            let used = self.dependencies(kinds).into_iter().map(|(name, _)| name);
            used.filter(|name| name.starts_with("atenea-"))
                .filter(|name| !product.contains(name) && !more.contains(name))
                .map(|name| format!("{} must not depend on {name}", self.name))
                .collect()
        };
        let mut found = wrong(&["dependencies", "build-dependencies"], &[]);
        found.extend(wrong(&["dev-dependencies"], tests));
        found
    }

    /// Libraries that the pure core must not use.
    pub fn impure_libraries(&self) -> Vec<String> {
        if self.name != "atenea-core" {
            return Vec::new();
        }
        let used = self.dependencies(&["dependencies", "build-dependencies"]);
        used.iter()
            .filter(|(name, _)| IMPURE.contains(name))
            .map(|(name, _)| format!("the core must not depend on {name}"))
            .collect()
    }

    /// Dependencies that are not taken from the workspace, and missing common lints.
    pub fn own_versions(&self) -> Vec<String> {
        if self.name.is_empty() {
            return Vec::new();
        }
        let shared = |value: &Value| value.get("workspace").and_then(Value::as_bool) == Some(true);
        let mut found: Vec<String> = self
            .dependencies(&ALL_KINDS)
            .into_iter()
            .filter(|(_, value)| !shared(value))
            .map(|(name, _)| format!("{}: {name} is not taken from the workspace", self.name))
            .collect();
        if !self.table.get("lints").is_some_and(shared) {
            found.push(format!("{} does not use the workspace's lints", self.name));
        }
        found
    }

    /// Folders of the workspace's members.
    pub fn members(&self) -> Vec<String> {
        let workspace = self.table.get("workspace").and_then(Value::as_table);
        let members = workspace.and_then(|w| w.get("members")).and_then(Value::as_array);
        let names = members.into_iter().flatten().filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    }
}

const ALL_KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Lines of `[workspace.dependencies]` that do not say why and under which licence.
pub fn unexplained(root: &str) -> Vec<String> {
    let lines = root.lines().skip_while(|line| line.trim() != "[workspace.dependencies]").skip(1);
    let section = lines.take_while(|line| !line.starts_with('['));
    let entry = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && !line.starts_with("atenea-")
    };
    let explained = |line: &str| {
        let comment = line.rsplit_once("# ").map_or("", |(_, comment)| comment);
        comment.split_once("; ").is_some_and(|(why, licence)| why.len() >= 4 && licence.len() >= 3)
    };
    section
        .filter(entry)
        .filter(|line| !explained(line))
        .map(|line| format!("says neither why nor the licence: {line}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, rest: &str) -> Manifest {
        Manifest::parse(&format!("[package]\nname = \"{name}\"\n{rest}")).unwrap()
    }

    #[test]
    fn an_arrow_that_points_the_wrong_way_is_found_in_every_kind_of_dependency() {
        for section in ["dependencies", "dev-dependencies", "target.'cfg(unix)'.dependencies"] {
            let text = format!("[{section}]\natenea-sup.workspace = true\nserde = \"1\"\n");
            let wrong = manifest("atenea-core", &text).wrong_arrows();
            assert_eq!(wrong, ["atenea-core must not depend on atenea-sup"], "{section}");
        }
        let right = "[dependencies]\natenea-core.workspace = true\n";
        assert_eq!(manifest("atenea-reaper", right).wrong_arrows(), Vec::<String>::new());
        assert_eq!(manifest("atenea-new", right).wrong_arrows().len(), 1);
        let tests = "[dev-dependencies]\natenea-broker.workspace = true\n";
        assert_eq!(manifest("atenea-guest", tests).wrong_arrows(), Vec::<String>::new());
        let product = tests.replace("dev-", "");
        assert_eq!(manifest("atenea-guest", &product).wrong_arrows().len(), 1);
        assert_eq!(manifest(TESTS, right).wrong_arrows(), Vec::<String>::new());
    }

    #[test]
    fn a_runtime_in_the_core_is_found() {
        let text = "[dependencies]\ntokio.workspace = true\n";
        assert_eq!(manifest("atenea-core", text).impure_libraries().len(), 1);
        assert_eq!(manifest("atenea-sup", text).impure_libraries(), Vec::<String>::new());
    }

    #[test]
    fn a_version_of_its_own_and_missing_lints_are_found() {
        let own = "[lints]\nworkspace = true\n[dependencies]\nserde = \"1\"\n";
        assert_eq!(manifest("a", own).own_versions(), ["a: serde is not taken from the workspace"]);
        let shared = "[dependencies]\nserde.workspace = true\n";
        assert_eq!(manifest("a", shared).own_versions(), ["a does not use the workspace's lints"]);
    }

    #[test]
    fn a_dependency_without_reason_or_licence_is_found() {
        let text = |line: &str| {
            format!("[workspace.dependencies]\n# Theirs\n{line}\n[profile.dev]\nx = 1\n")
        };
        assert_eq!(unexplained(&text("serde = \"1\" # serialisation; MIT")), Vec::<String>::new());
        assert_eq!(unexplained(&text("serde = \"1\"")).len(), 1);
        assert_eq!(unexplained(&text("serde = \"1\" # serialisation")).len(), 1);
    }
}
