//! What a reviewer should look at first: files that some tool on the host would execute or obey.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::path::{is_deceptive, split};

/// Why a changed file deserves a second look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// Hooks of git or of a hook manager.
    Hooks,
    /// Continuous integration.
    Ci,
    /// Shell environment that is loaded on entering the directory.
    Envrc,
    /// Tool servers of agents.
    Mcp,
    /// Settings of an editor.
    Editor,
    /// Settings or instructions of an agent.
    Agent,
    /// `.gitattributes`: filters, diff drivers, hidden content.
    GitAttributes,
    /// `.gitmodules`: where submodules come from.
    GitModules,
    /// `.gitignore`.
    GitIgnore,
    /// Programs that a build or package manager runs by itself.
    Build,
    /// The file became executable.
    Executable,
    /// A symbolic link.
    Symlink,
    /// Content that is not shown as text.
    Binary,
    /// The name holds characters that deceive a reader.
    DeceptiveName,
    /// Part of a directory that git takes for a repository without being told: its configuration
    /// names programs that any git command inside runs.
    EmbeddedRepository,
}

const HOOK_DIRS: &[&str] = &["hooks", ".husky", ".githooks", ".git-hooks", ".lefthook"];
const HOOK_FILES: &[&str] = &[
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "lefthook.yaml",
    ".lefthook.yml",
    ".huskyrc",
    ".huskyrc.json",
    "applypatch-msg",
    "pre-commit",
    "pre-push",
    "post-checkout",
    "post-merge",
];
const CI_DIRS: &[&str] =
    &[".github", ".gitlab", ".circleci", ".buildkite", ".woodpecker", ".forgejo", ".gitea", ".ci"];
const CI_FILES: &[&str] = &[
    ".gitlab-ci.yml",
    ".travis.yml",
    "jenkinsfile",
    "azure-pipelines.yml",
    "appveyor.yml",
    ".appveyor.yml",
    ".drone.yml",
    ".woodpecker.yml",
    "bitbucket-pipelines.yml",
    ".cirrus.yml",
];
const EDITOR_DIRS: &[&str] =
    &[".vscode", ".idea", ".vs", ".zed", ".fleet", ".devcontainer", ".nvim"];
const EDITOR_FILES: &[&str] = &[
    ".exrc",
    ".nvimrc",
    ".nvim.lua",
    ".vimrc",
    ".dir-locals.el",
    ".editorconfig",
    ".devcontainer.json",
    ".sublime-project",
];
const AGENT_DIRS: &[&str] =
    &[".claude", ".codex", ".cursor", ".gemini", ".aider", ".opencode", ".windsurf", ".continue"];
const AGENT_FILES: &[&str] = &[
    "claude.md",
    "agents.md",
    "gemini.md",
    ".cursorrules",
    ".windsurfrules",
    ".aider.conf.yml",
    "opencode.json",
    "claude.local.md",
    "copilot-instructions.md",
];
const BUILD_FILES: &[&str] = &[
    "package.json",
    "makefile",
    "gnumakefile",
    "build.rs",
    "setup.py",
    "pyproject.toml",
    "conftest.py",
    "cargo.toml",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    "justfile",
    "sitecustomize.py",
    "mise.toml",
    ".mise.toml",
    ".tool-versions",
];

/// Flags of a path, in the order of the enum. Names are compared without regard to case: some
/// filesystems do so too.
pub fn flags_of_path(path: &[u8]) -> Vec<Flag> {
    let text = String::from_utf8_lossy(path).to_lowercase();
    let mut parts: Vec<&str> = text.split('/').collect();
    let name = parts.pop().unwrap_or("");
    let within = |dirs: &[&str]| parts.iter().any(|part| dirs.contains(part));
    let mut flags = Vec::new();
    let mut flag = |flag, found: bool| {
        if found {
            flags.push(flag);
        }
    };
    flag(Flag::Hooks, within(HOOK_DIRS) || HOOK_FILES.contains(&name));
    flag(Flag::Ci, within(CI_DIRS) || CI_FILES.contains(&name));
    flag(Flag::Envrc, name == ".envrc" || name == ".env" || name == ".autoenv");
    flag(Flag::Mcp, name == ".mcp.json" || name == "mcp.json");
    let cargo_config = within(&[".cargo"]);
    flag(
        Flag::Editor,
        within(EDITOR_DIRS) || EDITOR_FILES.contains(&name) || name.ends_with(".code-workspace"),
    );
    flag(Flag::Agent, within(AGENT_DIRS) || AGENT_FILES.contains(&name));
    flag(Flag::GitAttributes, name == ".gitattributes");
    flag(Flag::GitModules, name == ".gitmodules");
    flag(Flag::GitIgnore, name == ".gitignore");
    flag(Flag::Build, cargo_config || BUILD_FILES.contains(&name));
    let deceptive = std::str::from_utf8(path).map_or(true, |text| text.chars().any(is_deceptive));
    flag(Flag::DeceptiveName, deceptive || split(path).1.starts_with(b"-"));
    flags
}

/// Directories of a list of files that git, or git on another filesystem, takes for a repository:
/// they hold `HEAD` beside `objects` and `refs`, or beside `commondir`, which says where those are.
pub(crate) struct Embedded {
    dirs: BTreeSet<String>,
}

const HEAD: u8 = 1;
const OBJECTS: u8 = 2;
const REFS: u8 = 4;
const COMMON_DIR: u8 = 8;

impl Embedded {
    /// Looks at all files of a tree.
    pub(crate) fn among<'a>(paths: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut found: BTreeMap<String, u8> = BTreeMap::new();
        for path in paths {
            let plain = plain_path(path);
            let mut start = 0;
            for part in plain.split('/') {
                let bit = match part {
                    "head" => HEAD,
                    "objects" => OBJECTS,
                    "refs" => REFS,
                    "commondir" => COMMON_DIR,
                    _ => 0,
                };
                if bit != 0 {
                    let dir = plain.get(..start).unwrap_or_default();
                    *found.entry(dir.to_owned()).or_default() |= bit;
                }
                start += part.len() + 1;
            }
        }
        let is_repository = |bits: u8| {
            bits & HEAD != 0
                && (bits & COMMON_DIR != 0 || bits & (OBJECTS | REFS) == OBJECTS | REFS)
        };
        let dirs = found.into_iter().filter(|(_, bits)| is_repository(*bits));
        Embedded { dirs: dirs.map(|(dir, _)| dir).collect() }
    }

    /// Which of these files to name: those directly in such a directory, and for one without any the
    /// first that lies below it. Gives their places in the list.
    pub(crate) fn to_name<'a>(&self, paths: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<usize> {
        let mut named = BTreeSet::new();
        let mut open = self.dirs.clone();
        if open.is_empty() {
            return Vec::new();
        }
        for (at, path) in paths.clone().enumerate() {
            let plain = plain_path(path);
            let dir =
                plain.get(..plain.rfind('/').map_or(0, |slash| slash + 1)).unwrap_or_default();
            if self.dirs.contains(dir) {
                named.insert(at);
                open.remove(dir);
            }
        }
        for (at, path) in paths.enumerate() {
            if open.is_empty() {
                break;
            }
            let plain = plain_path(path);
            let ends = plain.match_indices('/').map(|(slash, _)| slash + 1);
            for end in std::iter::once(0).chain(ends) {
                if open.remove(plain.get(..end).unwrap_or_default()) {
                    named.insert(at);
                }
            }
        }
        named.into_iter().collect()
    }
}

/// A path as the least exact filesystem sees it; directories keep their slash at the end.
fn plain_path(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let parts: Vec<String> = text.split(['/', '\\']).map(crate::gitname::plain_name).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_tools_obey_are_flagged() {
        for (path, flag) in [
            (".husky/pre-commit", Flag::Hooks),
            ("sub/.githooks/x", Flag::Hooks),
            (".github/workflows/ci.yml", Flag::Ci),
            (".GitLab-CI.yml", Flag::Ci),
            ("sub/.envrc", Flag::Envrc),
            (".mcp.json", Flag::Mcp),
            (".vscode/tasks.json", Flag::Editor),
            (".idea/workspace.xml", Flag::Editor),
            (".claude/settings.json", Flag::Agent),
            ("CLAUDE.md", Flag::Agent),
            ("a/.gitattributes", Flag::GitAttributes),
            (".gitmodules", Flag::GitModules),
            ("Makefile", Flag::Build),
            (".cargo/config.toml", Flag::Build),
            ("a\u{202e}b", Flag::DeceptiveName),
            ("x/-rf", Flag::DeceptiveName),
        ] {
            assert!(flags_of_path(path.as_bytes()).contains(&flag), "{path:?} {flag:?}");
        }
        assert_eq!(flags_of_path(b"src/main.rs"), []);
        assert_eq!(flags_of_path(b"caf\xe9"), [Flag::DeceptiveName]);
    }

    fn named(all: &[&str], changed: &[&str]) -> Vec<usize> {
        let bytes = |list: &[&str]| -> Vec<Vec<u8>> {
            list.iter().map(|path| path.as_bytes().to_vec()).collect()
        };
        let (all, changed) = (bytes(all), bytes(changed));
        let embedded = Embedded::among(all.iter().map(Vec::as_slice));
        embedded.to_name(changed.iter().map(Vec::as_slice))
    }

    #[test]
    fn a_directory_that_git_takes_for_a_repository_is_found_however_it_is_spelled_or_nested() {
        for all in [
            &["x/HEAD", "x/config", "x/objects/k", "x/refs/k"][..],
            &["HEAD", "config", "objects/k", "refs/k"],
            &["a/b/c/HEAD", "a/b/c/config", "a/b/c/objects/pack/p", "a/b/c/refs/heads/m"],
            &["x/head", "X/config", "x/OBJECTS/k", "X/Refs/k"],
            &["x/HEAD. ", "x/config", "x/obj\u{200c}ects/k", "x/refs::$DATA"],
            &["x/HEAD", "x/config", "x/commondir"],
            // Links in the place of the directories.
            &["x/HEAD", "x/config", "x/objects", "x/refs"],
            &["x\\HEAD", "x\\config", "x\\objects\\k", "x\\refs\\k"],
            &[
                "o/HEAD",
                "o/objects/HEAD",
                "o/objects/config",
                "o/objects/objects/k",
                "o/objects/refs/k",
            ],
        ] {
            assert_ne!(named(all, &all[..2]), Vec::<usize>::new(), "{all:?}");
        }
        for all in [
            &["x/HEAD", "x/objects/k", "y/refs/k"][..],
            &["x/HEAD", "x/refs/k"],
            &["x/objects/k", "x/refs/k"],
            &["x/HEAD/k", "commondir"],
        ] {
            assert_eq!(named(all, all), Vec::<usize>::new(), "{all:?}");
        }
    }

    #[test]
    fn of_an_embedded_repository_the_files_directly_in_it_are_named_or_else_one_below() {
        let all = ["x/HEAD", "x/config", "x/objects/k", "x/refs/k", "y"];
        assert_eq!(named(&all, &all), [0, 1]);
        assert_eq!(named(&all, &["x/objects/k", "x/refs/k", "y"]), [0]);
        assert_eq!(named(&all, &["y"]), Vec::<usize>::new());
    }
}
