//! Every stable code, in one table: the enum, its text, its page in `docs/errors/` and the remedy
//! that is shown when nothing more exact is known.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($variant:ident = $text:literal, $cause:literal, $help:literal;)*) => {
        /// A stable code. Codes are never renamed and never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $cause] #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The dotted text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }

            /// What it means, one or two sentences.
            pub const fn cause(self) -> &'static str {
                match self { $(Code::$variant => $cause,)* }
            }

            /// What to do.
            pub const fn help(self) -> &'static str {
                match self { $(Code::$variant => $help,)* }
            }
        }
    };
}

codes! {
    ManifestUnreadable = "manifest.unreadable", "The manifest file cannot be read or is neither TOML nor JSON.", "check the path and the syntax";
    ManifestUnknownKey = "manifest.unknown_key", "The manifest has a key this version does not know.", "remove the key or correct its spelling";
    ManifestUnknownVersion = "manifest.unknown_version", "The manifest has a version this program does not know.", "write `version = 1`, or use a newer atenea-sup";
    ManifestBadValue = "manifest.bad_value", "A value of the manifest or of an option has the wrong type or form.", "correct the value that is named, or write the key that is missing; docs/manifest.md has them all";
    ManifestBadLimit = "manifest.bad_limit", "A limit is zero, negative or not a number with a known unit.", "give a positive number, for example memory = \"2GiB\" or duration = \"30m\"";
    ManifestAboveCeiling = "manifest.above_ceiling", "A limit is above the ceiling of the configuration.", "ask for less, or raise [limits.max] in atenea-sup.toml";
    ManifestEmptyList = "manifest.empty_list", "A list is empty where leaving it out was meant: an empty allow-list allows nothing.", "remove the key, or list what is wanted";
    ManifestUnknownEffect = "manifest.unknown_effect", "An effect is not one of read, write, process, network, tool.", "use the listed effects only";
    ManifestUnsupportedFeature = "manifest.unsupported_feature", "The manifest asks for something this version cannot enforce yet.", "remove that part of the manifest; a part that cannot be enforced is refused, never ignored";
    ManifestWiderThanApproved = "manifest.wider_than_approved", "An option asks for more than the manifest file grants.", "options may only narrow an approved manifest; change the manifest and have it approved";
    ManifestNoCommand = "manifest.no_command", "There is no command to run.", "put the command after `--`: atenea-sup run -- CMD";
    ManifestTooLarge = "manifest.too_large", "The manifest is larger than its bound.", "shorten it; large inputs belong into the workspace";
    HostFeatureAbsent = "host.feature_absent", "A feature of the host that runs can do without is absent.", "nothing has to be done";
    HostNotLinux = "host.not_linux", "This host is not Linux.", "use a Linux machine";
    HostUsernsDenied = "host.userns_denied", "User namespaces cannot be created by this user.", "allow them (kernel.unprivileged_userns_clone, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), or run as root";
    HostNoBubblewrap = "host.no_bubblewrap", "bubblewrap is not installed at its system path.", "apt install bubblewrap";
    HostBubblewrapSetuid = "host.bubblewrap_setuid", "bubblewrap is setuid root, which this program does not accept.", "remove the bit: chmod u-s /usr/bin/bwrap";
    HostBubblewrapUnusable = "host.bubblewrap_unusable", "bubblewrap is there but a whole sandbox cannot be launched.", "run `atenea-sup doctor` for the step that failed";
    HostNoCgroup = "host.no_cgroup", "No writable control group with cpu, memory and pids was found.", "run as root, or have control groups delegated to this user and start from within them: docs/operations.md, section \"Control groups for an ordinary user\"";
    HostNoSeccomp = "host.no_seccomp", "Seccomp filters cannot be installed.", "use a kernel with CONFIG_SECCOMP_FILTER";
    HostNoPidfd = "host.no_pidfd", "The kernel has no pidfd.", "use Linux 5.10 or newer";
    HostNoInit = "host.no_init", "The program `atenea-init` is not beside atenea-sup or has another version.", "install both from the same build (make build)";
    HostNoNetns = "host.no_netns", "A network namespace with a loopback interface cannot be made.", "allow network namespaces for this user";
    HostNoGit = "host.no_git", "git is not installed but the workspace is a repository.", "apt install git";
    HostUnsupportedPlace = "host.unsupported_place", "This place (container, WSL or similar) cannot contain a run.", "use a real machine or a virtual machine";
    HostNoUidRange = "host.no_uid_range", "There is no unprivileged uid left for a run.", "enlarge [sandbox.uid_range] or wait for runs to end";
    HostTrustedHostOff = "host.trusted_host_off", "A trusted-host run was asked for but the configuration does not allow it.", "set sandbox.allow_trusted_host = true if you accept unsandboxed runs; a supervisor that runs reads it after `atenea-sup stop`";
    HostSandboxOff = "host.sandbox_off", "sandbox.mode is off: only trusted-host runs are accepted.", "set sandbox.mode = \"enforced\"; or accept unsandboxed runs with sandbox.allow_trusted_host = true and ask for profile trusted-host; a supervisor that runs reads it after `atenea-sup stop`";
    HostConfig = "host.config", "The configuration file cannot be read or has an error.", "correct the key that is named";
    HostStateDir = "host.state_dir", "The state directory cannot be used.", "use a directory that belongs to you with mode 0700, see --state-dir";
    HostNoSupervisor = "host.no_supervisor", "No supervisor answers and none could be started.", "see the cause; `atenea-sup doctor` checks the host";
    ApprovalRequired = "approval.required", "The run needs an approval and has none: its step was not approved, or the configuration requires approvals and the manifest names no step.", "name the step, `[approval] step = \"…\"`, in the manifest, and have a person approve that file: atenea-sup approve FILE";
    ApprovalMismatch = "approval.mismatch", "The manifest is not the one that was approved.", "look at what has changed, then approve the new file (atenea-sup approve FILE), or run the approved one; options that narrow a manifest change its digest too";
    ApprovalExpired = "approval.expired", "The approval has ended.", "approve the file again: atenea-sup approve FILE [--expires DURATION]";
    ApprovalUsed = "approval.used", "The approval was used as often as it may be.", "approve the file again: atenea-sup approve FILE [--uses N]";
    ApprovalTooMany = "approval.too_many", "Too many approvals are alive.", "wait until some have ended, and give shorter ones";
    BudgetNoAccount = "budget.no_account", "A budget was asked for but there is no such account.", "make one: atenea-sup budget set NAME USD";
    BudgetInsufficient = "budget.insufficient", "The account cannot cover the hold.", "ask for less, wait for runs that hold some of it, or raise the account: atenea-sup budget set NAME USD";
    BudgetBelowUsed = "budget.below_used", "The new limit is below what is spent and held already.", "set at least that much; holds are released when their runs settle";
    BudgetBadAmount = "budget.bad_amount", "An amount of money has the wrong form.", "write dollars with at most nine decimals, for example 1.50";
    BudgetBadAccount = "budget.bad_account", "The name of an account has the wrong form.", "use letters, digits, . _ - / :";
    BudgetNothingToSettle = "budget.nothing_to_settle", "The run has no unknown spend to settle.", "see `atenea-sup status RUN`";
    LimitTime = "limit.time", "The run's time ran out.", "raise limits.duration or --timeout";
    LimitMemory = "limit.memory", "The run used more memory than its limit.", "raise limits.memory or --memory";
    LimitPids = "limit.pids", "The run reached its limit of processes and threads: the kernel refused new ones with EAGAIN.", "raise limits.pids or --pids";
    LimitOutput = "limit.output", "The run wrote more output than its limit.", "raise limits.output or --output";
    LimitDisk = "limit.disk", "The run wrote more to disk than its limit.", "raise limits.disk or --disk";
    LimitEvents = "limit.events", "The run reached the bound of its recorded events.", "discard it: atenea-sup discard RUN";
    FsNotFound = "fs.not_found", "A path that is granted or needed does not exist.", "check the path";
    FsNotYours = "fs.not_yours", "A path cannot be opened with your own rights.", "the supervisor opens nothing for you that you could not open yourself";
    FsBadWorkspace = "fs.bad_workspace", "The workspace cannot be used.", "correct what the cause names, or choose another directory with --workspace";
    FsStateInWorkspace = "fs.state_in_workspace", "The state directory lies inside the workspace.", "choose another --state-dir or another --workspace";
    FsBadTarget = "fs.bad_target", "A mount target is not allowed.", "choose another place: an absolute, plain path outside the sandbox's own directories: for a mount --mount SRC:/data; for the workspace a directory that lies elsewhere, or `target = \"/work\"` in `[workspace]` of a manifest";
    FsHoldsSocket = "fs.holds_socket", "A granted directory holds a socket: whoever listens there could be reached from inside.", "grant a directory without sockets, or the single files that are needed";
    FsTooLarge = "fs.too_large", "The workspace is larger than the limit for snapshots.", "leave large files out: what .gitignore lists is not copied, and --workspace may name a smaller directory";
    FsChanged = "fs.changed", "A file changed while it was read.", "try again when nothing writes to the workspace";
    FsIo = "fs.io", "Reading or writing a file failed.", "see the cause; nothing half-done was left";
    FsDiskFull = "fs.disk_full", "The disk of the state directory is full.", "free space; cancel and cleanup still work, new runs are refused";
    ExportPathEscapes = "export.link_escapes", "A link in the workspace points outside.", "the link is left out and the rest is exported; write its target where it is needed by hand";
    ExportSpecialFile = "export.special_file", "The workspace holds a device, FIFO or socket.", "it is left out and the rest is exported";
    ExportSetuid = "export.setuid", "A file is setuid or setgid.", "the file is left out and the rest is exported; let a run leave it without the bit";
    ExportHardLink = "export.hard_link", "A file has several names; hard links are not exported.", "the names are left out and the rest is exported; let a run copy the file instead";
    ExportGitPath = "export.git_path", "A change lies below a .git directory or one of its spellings.", "it is left out and the rest is exported";
    ExportBadPath = "export.bad_path", "A path is not plain, or git's own check refuses what is there.", "it is left out and the rest is exported; let a run rename or correct it";
    ExportSubmodule = "export.submodule", "A change lies inside a submodule, which the exported commit cannot carry.", "run in the submodule's own directory instead, or take the change with --patch";
    ExportRefExists = "export.ref_moved", "The ref exists already or moved meanwhile.", "choose another --ref";
    ExportBadRef = "export.bad_ref", "The ref name is not valid below refs/.", "use for example refs/atenea/NAME";
    ExportNotRepository = "export.not_repository", "The workspace was no git repository, so there is nowhere to put a ref.", "use --patch FILE";
    ExportNothing = "export.nothing", "The run has no workspace to export: it was read-only or refused, is being exported, or was discarded.", "see `atenea-sup status RUN`";
    ExportNotEnded = "export.not_ended", "The run has not ended.", "wait for it: atenea-sup wait RUN";
    EgressNotGranted = "egress.not_granted", "The run tried to reach a destination that is not granted.", "ask for the destination in the manifest; nothing is granted in this version";
    EgressDnsRefused = "egress.dns_refused", "The run asked for a name that is not granted.", "ask for the name in the manifest; nothing is granted in this version";
    EgressBadRequest = "egress.bad_request", "The run sent something to its proxy that is no valid request.", "use an ordinary client";
    EgressLimit = "egress.limit", "The run reached a limit of its network boundary: connections, sizes or times.", "use fewer connections at once; the limits are in docs/egress.md";
    BrokerBadToken = "broker.bad_token", "A call to the broker carried no token, or one that is not valid for this run.", "use ATENEA_TOKEN of this run";
    BrokerNotGranted = "broker.not_granted", "A call to the broker asked for something that is not granted.", "ask for it in the manifest";
    BrokerBadRequest = "broker.bad_request", "A call to the broker was malformed or too large.", "what it takes is in docs/broker.md";
    BrokerLimit = "broker.limit", "The run reached a limit of the broker: connections, requests at once, sizes or times.", "use fewer requests at once; the limits are in docs/broker.md";
    ProcessNoSuchRun = "process.no_such_run", "There is no such run.", "list them: atenea-sup status --all";
    ProcessAmbiguousRun = "process.ambiguous_run", "The prefix fits more than one run.", "give more characters";
    ProcessNameTaken = "process.name_taken", "A run that has not ended has this name.", "use another --name, or wait for that run to end: atenea-sup wait NAME";
    ProcessNotFound = "process.not_found", "The command does not exist inside the sandbox.", "check the name; only the declared runtime and the workspace are visible";
    ProcessNotExecutable = "process.not_executable", "The command is not executable inside the sandbox.", "chmod +x, or name its interpreter";
    ProcessLaunchFailed = "process.launch_failed", "The sandbox could not be launched.", "run `atenea-sup doctor`; the cause names the step";
    ProcessSelfTestFailed = "process.self_test_failed", "Something that must be forbidden succeeded inside the sandbox, so the agent was not started.", "run `atenea-sup doctor`; do not use this host before it is clean";
    ProcessHelperDied = "process.helper_died", "The launcher helper died.", "start again; recovery kills what it left";
    ProcessBusy = "process.busy", "Too many runs are waiting.", "wait for runs to end, or raise sandbox.max_concurrent";
    ProcessStopping = "process.stopping", "The supervisor is stopping and admits nothing.", "start again when it has ended";
    ProcessIdempotencyMismatch = "process.idempotency_mismatch", "The idempotency key was used for another request.", "use a new key";
    ProcessRunEnded = "process.run_ended", "The run has ended already.", "see its receipt";
    ProcessNotAttachable = "process.not_attachable", "The run has no stream to attach to.", "see `atenea-sup logs RUN`";
    ProcessCleanupStuck = "process.cleanup_stuck", "Something of the run cannot be removed.", "see the reason in `atenea-sup status RUN`; it is tried again";
    JournalLocked = "journal.locked", "Another process holds the journal.", "use the supervisor that runs (atenea-sup info), or stop it";
    JournalDamaged = "journal.damaged", "The journal does not verify: a record or the chain is damaged.", "restore a backup, or `atenea-sup journal recover --accept-loss`";
    JournalTruncated = "journal.truncated", "The journal is shorter than its anchor, empty, or replaced.", "restore a backup, or `atenea-sup journal recover --accept-loss`";
    JournalNewer = "journal.newer", "The journal was written by a newer version.", "use that version or a newer one";
    JournalTooLarge = "journal.too_large", "A record is larger than its bound.", "this is a bound of the program; report it with the cause";
    JournalIo = "journal.io", "Reading or writing the journal failed.", "check the disk; the supervisor stops so that nothing is assumed";
    RecoveryAborted = "recovery.aborted", "The supervisor died before the run had a sandbox.", "start the run again";
    RecoveryLost = "recovery.lost", "The supervisor died while the agent ran; it was killed and its exit is unknown.", "see the receipt; unknown spend stays held";
    ApiBadRequest = "api.bad_request", "The request to the control API is malformed.", "client and supervisor may be of different versions: see `atenea-sup info`";
    ApiUnsupported = "api.unsupported", "The control API has no such operation.", "client and supervisor may be of different versions: see `atenea-sup info`";
}

impl Code {
    /// Parses the dotted text.
    pub fn parse(text: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_dotted_and_have_a_remedy() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert_eq!(code.as_str().split('.').count(), 2, "{code}");
            assert!(!code.cause().is_empty() && !code.help().is_empty(), "{code}");
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
    }
}
