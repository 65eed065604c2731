//! What happens in a drill, as data: runs that are asked for, and what a person does with them.

use serde_json::{Value, json};

/// What the run works on, and how it is contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// `read` on a repository.
    Read,
    /// `workspace-write` on a repository.
    Write,
    /// `workspace-write` on a directory without a repository.
    Plain,
    /// `trusted-host` in a directory of its own.
    Host,
}

impl Setting {
    #[cfg(test)]
    pub(super) const ALL: [Setting; 4] =
        [Setting::Read, Setting::Write, Setting::Plain, Setting::Host];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Setting::Read => "read",
            Setting::Write => "workspace-write",
            Setting::Plain => "workspace-write-plain",
            Setting::Host => "trusted-host",
        }
    }

    /// The profile in a manifest.
    pub(super) const fn profile(self) -> &'static str {
        match self {
            Setting::Read => "read",
            Setting::Write | Setting::Plain => "workspace-write",
            Setting::Host => "trusted-host",
        }
    }

    /// Whether the run has a workspace of its own that somebody may miss.
    pub(super) const fn keeps_work(self) -> bool {
        matches!(self, Setting::Write | Setting::Plain)
    }
}

/// One thing that a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Asks for a run.
    Run(&'static Ask),
    /// Waits until the last run has printed `ready`.
    Ready,
    /// Waits until every run has ended.
    Wait,
    /// Cancels the last run with this grace, milliseconds.
    Cancel(u64),
    /// Exports the last run to a ref.
    Export,
    /// The same where a ref stands in the way: it is refused.
    ExportRefused,
    /// Exports the last run as a patch.
    Patch,
    /// Discards the workspace of the last run.
    Discard,
    /// Waits until the workspace of the last run is gone by itself.
    Gone,
}

/// A run that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// `sh -c` gets it; empty: a program that does not exist.
    pub(super) script: &'static str,
    /// Dollars to hold of the account, which has five.
    pub(super) budget: &'static str,
    /// Keys of `[limits]`.
    pub(super) limits: &'static [(&'static str, &'static str)],
    /// Whether the workspace has so many files that preparing it takes a while.
    pub(super) large: bool,
}

impl Ask {
    const USUAL: Ask = Ask { script: "", budget: "2", limits: &[], large: false };

    /// The manifest of this run.
    pub(super) fn manifest(&self, setting: Setting, workspace: &str) -> Value {
        let argv = match self.script {
            "" => json!(["/nonexistent/program"]),
            script => json!(["sh", "-c", script]),
        };
        let mut manifest = json!({
            "version": 1,
            "profile": setting.profile(),
            "command": { "argv": argv },
            "workspace": { "path": workspace },
            "budget": { "account": "default", "usd": self.budget },
        });
        if !self.limits.is_empty() {
            let limits: serde_json::Map<String, Value> =
                self.limits.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
            manifest["limits"] = Value::Object(limits);
        }
        manifest
    }
}

/// A named course of things.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) name: &'static str,
    pub(super) means: &'static str,
    /// Settings in which it makes sense; the first one is the usual one.
    pub(super) settings: &'static [Setting],
    pub(super) acts: &'static [Act],
}

/// The file that agents write, and what they write into it.
pub(super) const FILE: &str = "precious";
pub(super) const WORK: &str = "work\n";

const WORKS: Ask =
    Ask { script: "echo work 2>/dev/null > precious; echo ready; exit 3", ..Ask::USUAL };
const STAYS: Ask = Ask {
    script: "trap '' TERM; echo work 2>/dev/null > precious; sleep 600 & setsid sleep 600 & \
             echo ready; wait; wait",
    ..Ask::USUAL
};
const SLOW: Ask = Ask { limits: &[("duration", "300ms")], ..STAYS };
const LOUD: Ask = Ask {
    script: "echo work 2>/dev/null > precious; yes; sleep 600",
    limits: &[("output", "64KiB")],
    ..Ask::USUAL
};
const MISSING: Ask = Ask::USUAL;
const DEAR: Ask = Ask { script: "exit 0", budget: "100", ..Ask::USUAL };
const LARGE: Ask = Ask { script: "exit 0", large: true, ..Ask::USUAL };
const QUIET: Ask = Ask { script: "echo ready", ..Ask::USUAL };
const FORGED: Ask = Ask {
    script: "echo work 2>/dev/null > precious; ATENEA_TOKEN=forged /atenea/bin/atenea-guest grants; \
             echo ready; exit 3",
    ..Ask::USUAL
};
/// A small part of the account, so that several fit.
const ONE_OF_MANY: Ask = Ask { budget: "1.50", ..STAYS };

const CONTAINED: &[Setting] = &[Setting::Write, Setting::Read, Setting::Plain];
const ALL: &[Setting] = &[Setting::Write, Setting::Read, Setting::Plain, Setting::Host];
const KEPT: &[Setting] = &[Setting::Write, Setting::Plain];

/// All stories. Each one ends with `stop --now` to the supervisor.
pub(super) const STORIES: &[Story] = &[
    Story {
        name: "work",
        means: "a run with money works and ends by itself",
        settings: ALL,
        acts: &[Act::Run(&WORKS), Act::Wait],
    },
    Story {
        name: "cancel",
        means: "a run that ignores SIGTERM is cancelled with a short grace",
        settings: ALL,
        acts: &[Act::Run(&STAYS), Act::Ready, Act::Cancel(100), Act::Wait],
    },
    Story {
        name: "timeout",
        means: "the time of a run is out",
        settings: ALL,
        acts: &[Act::Run(&SLOW), Act::Wait],
    },
    Story {
        name: "limit",
        means: "a run writes more output than it may",
        settings: ALL,
        acts: &[Act::Run(&LOUD), Act::Wait],
    },
    Story {
        name: "refused",
        means: "a run asks for more money than there is",
        settings: ALL,
        acts: &[Act::Run(&DEAR), Act::Wait],
    },
    Story {
        name: "missing",
        means: "the program of a run does not exist",
        settings: ALL,
        acts: &[Act::Run(&MISSING), Act::Wait],
    },
    Story {
        name: "abort",
        means: "a run is cancelled while its workspace is being made",
        settings: KEPT,
        acts: &[Act::Run(&LARGE), Act::Cancel(0), Act::Wait],
    },
    Story {
        name: "violation",
        means: "the agent shows a forged token",
        settings: CONTAINED,
        acts: &[Act::Run(&FORGED), Act::Wait],
    },
    Story {
        name: "unchanged",
        means: "a run writes nothing; its workspace goes by itself",
        settings: KEPT,
        acts: &[Act::Run(&QUIET), Act::Wait, Act::Gone],
    },
    Story {
        name: "export",
        means: "reviewed changes become a ref",
        settings: &[Setting::Write],
        acts: &[Act::Run(&WORKS), Act::Wait, Act::Export],
    },
    Story {
        name: "conflict",
        means: "a ref stands in the way of an export",
        settings: &[Setting::Write],
        acts: &[Act::Run(&WORKS), Act::Wait, Act::ExportRefused],
    },
    Story {
        name: "patch",
        means: "reviewed changes become a patch",
        settings: KEPT,
        acts: &[Act::Run(&WORKS), Act::Wait, Act::Patch],
    },
    Story {
        name: "discard",
        means: "a person drops the workspace of a run",
        settings: KEPT,
        acts: &[Act::Run(&WORKS), Act::Wait, Act::Discard],
    },
    Story {
        name: "many",
        means: "three runs work at once when the kill comes",
        settings: ALL,
        acts: &[
            Act::Run(&ONE_OF_MANY),
            Act::Ready,
            Act::Run(&ONE_OF_MANY),
            Act::Ready,
            Act::Run(&ONE_OF_MANY),
            Act::Ready,
            Act::Cancel(100),
        ],
    },
    Story {
        name: "stop",
        means: "the supervisor is stopped while a run works",
        settings: ALL,
        acts: &[Act::Run(&STAYS), Act::Ready],
    },
];

/// The story of this name.
pub(super) fn story(name: &str) -> Option<&'static Story> {
    STORIES.iter().find(|story| story.name == name)
}
