//! What a reviewer should look at first: files that some tool on the host would execute or obey.

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
}
