//! The command line, defined once: parsing, help, man page and completion come from here.

use std::path::PathBuf;

use atenea_core::event::Period;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::layout::Stream;

/// Supervises runs of untrusted agents: contained, accounted, cleaned up, provable.
#[derive(Debug, Parser)]
#[command(name = "atenea-sup", version, about, max_term_width = 100)]
#[command(after_help = "RUN is an id, an unambiguous prefix of one, or a name.\n\
    Exit status of `run` and `wait`: the command's own; 128+N when it died of signal N; 124 when its \
    time ran out; 125 when it was refused or lost; 2 wrong usage; 126/127 when it cannot be executed or found; 137 \
    when a limit killed it. Other commands, and `wait` for a run that does not exist: 0 ok, 1 no, 2 usage, 3 not found, 4 refused, 5 busy.")]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Configuration file
    #[arg(long, global = true, help_heading = "Options of every command", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State directory
    #[arg(long, global = true, help_heading = "Options of every command", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Socket of the supervisor to use
    #[arg(long, global = true, help_heading = "Options of every command", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Machine output on stdout: one JSON object, or one per line
    #[arg(long, global = true, help_heading = "Options of every command")]
    pub json: bool,
    /// Say less: no hints and no progress
    #[arg(short, long, global = true, help_heading = "Options of every command")]
    pub quiet: bool,
    /// Say more: -v each request, -vv its details; a supervisor that is started logs more, too
    #[arg(short, long, global = true, help_heading = "Options of every command", action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command under supervision; starts a supervisor when none runs
    #[command(after_help = "With --json, stdout has one object when the run was accepted and one \
        when it has ended; what the command writes is in `atenea-sup logs RUN`.")]
    Run(Box<RunArgs>),
    /// Show runs, their state, spend and leftovers
    Status {
        /// Only this run
        run: Option<String>,
        /// Ended ones too
        #[arg(long)]
        all: bool,
        /// Show again whenever something changes
        #[arg(long)]
        watch: bool,
    },
    /// End runs
    Cancel {
        /// The runs
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<String>,
        /// Time between the polite stop and the kill, for example 10s; 0s kills at once
        #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
        grace: Option<String>,
        /// Why, for the receipt
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Wait for a run and exit with its status
    Wait {
        /// The run
        run: String,
    },
    /// Print what a run wrote
    Logs {
        /// The run
        run: String,
        /// Go on until the run has ended
        #[arg(short, long)]
        follow: bool,
        /// Which stream
        #[arg(long, value_enum, default_value = "stdout")]
        stream: StreamArg,
    },
    /// Print the receipt of a run as JSON
    Receipt {
        /// The run
        run: String,
    },
    /// Show what a run changed in its workspace
    Diff {
        /// The run
        run: String,
    },
    /// Accept the changes of a run
    Export {
        /// The run
        run: String,
        /// Ref to make in the repository [default: refs/atenea/RUN]
        #[arg(long = "ref", value_name = "REF", conflicts_with = "patch")]
        reference: Option<String>,
        /// Write a patch to this file instead; `-` for stdout
        #[arg(long, value_name = "FILE")]
        patch: Option<PathBuf>,
    },
    /// Drop the workspace of a run; this cannot be undone
    Discard {
        /// The run
        run: String,
    },
    /// Budget accounts
    #[command(subcommand)]
    Budget(BudgetCommand),
    /// Allow a manifest for the step of a workflow that it names; without a file, list what is allowed
    #[command(
        after_help = "A manifest with `[approval] step = \"…\"` runs only while an approval of exactly this \
        content lives; with `[approval] required = true` in the configuration every run needs one. A new approval of a step \
        replaces the one before."
    )]
    Approve {
        /// The manifest, TOML or JSON
        file: Option<PathBuf>,
        /// The step that the manifest must name
        #[arg(long, value_name = "ID", requires = "file")]
        step: Option<String>,
        /// How long it lives [default: 24h]
        #[arg(long, value_name = "DURATION", requires = "file", allow_hyphen_values = true)]
        expires: Option<String>,
        /// Runs it allows [default: 1]
        #[arg(long, value_name = "N", requires = "file")]
        uses: Option<u32>,
    },
    /// Work with manifest files
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Can this host contain a run? One line for each feature, with the remedy
    Doctor,
    /// Show what runs tried and were not allowed to do
    Violations {
        /// Only of this run
        run: Option<String>,
        /// Only codes that start with this, for example egress
        #[arg(long, value_name = "CODE")]
        code: Option<String>,
    },
    /// The journal
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Which supervisor answers
    Info,
    /// Be the supervisor, in the foreground; for systemd
    #[command(
        after_help = "It tells systemd when it is ready and that it lives, reads its configuration \
        again on SIGHUP, and stops on SIGTERM or SIGINT by the rule of [daemon] on_stop; a second signal \
        cancels what is left."
    )]
    Daemon,
    /// Stop the supervisor: wait for runs, clean up, exit
    Stop {
        /// Cancel runs instead of waiting for them
        #[arg(long)]
        now: bool,
    },
    /// Drill recovery on this host: kill a supervisor at every step, let it recover, look from outside
    #[command(
        after_help = "Works in throw-away directories below TMPDIR, beside whatever else runs. \
        NAME is a place, a story, or PLACE/PROFILE/VICTIM/STORY. VICTIM is who is killed: supervisor, \
        helper or both. Exit status: 0 clean, 1 findings, 2 usage."
    )]
    Drill(crate::drill::DrillArgs),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// The supervisor itself; started by the other commands
    #[command(name = "__supervisor", hide = true)]
    Supervisor {
        /// Descriptor that is told when it is ready
        #[arg(long)]
        ready_fd: i32,
        /// Place at which it is killed: LABEL[:N][:VICTIM]
        #[arg(long)]
        crash: Option<crate::crash::Crash>,
    },
    /// The launcher helper; started by the supervisor
    #[command(name = "__launcher", hide = true)]
    Launcher,
    /// The workspace worker; started by the supervisor
    #[command(name = "__workspace", hide = true)]
    Workspace,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Approved manifest, TOML or JSON; the options below may only narrow it
    #[arg(long, help_heading = "Containment", value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// How the run is contained [default: read]
    #[arg(long, help_heading = "Containment", value_enum)]
    pub profile: Option<ProfileArg>,
    /// Directory to work on [default: the repository or directory here]
    #[arg(long, help_heading = "Containment", value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Network grant HOST[:PORT][/PROTO]; repeatable; refused by this version
    #[arg(long, help_heading = "Containment", value_name = "HOST")]
    pub allow: Vec<String>,
    /// Extra read-only grant SRC[:DST]; repeatable
    #[arg(long, help_heading = "Containment", value_name = "SRC[:DST]")]
    pub mount: Vec<String>,
    /// Pass one variable NAME[=VALUE]; repeatable; nothing else of the environment passes
    #[arg(long, help_heading = "Containment", value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Amount to hold, for example 1.50
    #[arg(long, help_heading = "Limits", value_name = "USD", allow_hyphen_values = true)]
    pub budget: Option<String>,
    /// CPUs, for example 1.5
    #[arg(long, help_heading = "Limits", value_name = "N", allow_hyphen_values = true)]
    pub cpus: Option<String>,
    /// Memory, for example 2GiB
    #[arg(long, help_heading = "Limits", value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// Processes and threads
    #[arg(long, help_heading = "Limits", value_name = "N", allow_hyphen_values = true)]
    pub pids: Option<String>,
    /// Bytes in each writable place
    #[arg(long, help_heading = "Limits", value_name = "SIZE", allow_hyphen_values = true)]
    pub disk: Option<String>,
    /// Bytes of output
    #[arg(long, help_heading = "Limits", value_name = "SIZE", allow_hyphen_values = true)]
    pub output: Option<String>,
    /// Time, for example 30m
    #[arg(long, help_heading = "Limits", value_name = "DURATION", allow_hyphen_values = true)]
    pub timeout: Option<String>,
    /// A name for people
    #[arg(long)]
    pub name: Option<String>,
    /// A running run whose hold pays for this one; refused by this version
    #[arg(long, value_name = "RUN")]
    pub parent: Option<String>,
    /// Makes a repeated request the same request
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Give the command its own terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Print the run id and return; stdin is /dev/null
    #[arg(short, long, conflicts_with = "tty")]
    pub detach: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// How a run is contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileArg {
    /// Read-only snapshot
    Read,
    /// Private writable clone
    WorkspaceWrite,
    /// On the host, unsandboxed and labelled so
    TrustedHost,
}

impl From<ProfileArg> for atenea_core::Profile {
    fn from(arg: ProfileArg) -> Self {
        match arg {
            ProfileArg::Read => atenea_core::Profile::Read,
            ProfileArg::WorkspaceWrite => atenea_core::Profile::WorkspaceWrite,
            ProfileArg::TrustedHost => atenea_core::Profile::TrustedHost,
        }
    }
}

/// A captured stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamArg {
    /// Standard output, or the terminal
    Stdout,
    /// Standard error
    Stderr,
}

impl From<StreamArg> for Stream {
    fn from(arg: StreamArg) -> Self {
        match arg {
            StreamArg::Stdout => Stream::Stdout,
            StreamArg::Stderr => Stream::Stderr,
        }
    }
}

/// Budget accounts.
#[derive(Debug, Subcommand)]
pub enum BudgetCommand {
    /// List accounts
    List,
    /// Make or change an account
    Set {
        /// Its name
        name: String,
        /// Its limit in dollars, for example 25 or 1.50
        #[arg(allow_negative_numbers = true)]
        usd: String,
        /// When its spend starts anew (UTC) [default: as it is; total for a new account]
        #[arg(long, value_enum)]
        per: Option<PeriodArg>,
    },
    /// Show one account
    Show {
        /// Its name
        name: String,
    },
}

/// Calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeriodArg {
    /// Each day
    Day,
    /// Each month
    Month,
    /// Never
    Total,
}

impl From<PeriodArg> for Period {
    fn from(arg: PeriodArg) -> Self {
        match arg {
            PeriodArg::Day => Period::Day,
            PeriodArg::Month => Period::Month,
            PeriodArg::Total => Period::Total,
        }
    }
}

/// Work with manifest files.
#[derive(Debug, Subcommand)]
pub enum ManifestCommand {
    /// Say whether a manifest is good
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print its digest
    Digest {
        /// The file
        file: PathBuf,
    },
    /// Print every grant in plain words
    Explain {
        /// The file
        file: PathBuf,
    },
}

/// The journal.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Check chain and anchor
    Verify,
    /// Print sizes and counts
    Stats,
    /// Print every record as one JSON object a line
    Dump,
    /// The way out of a refused journal: a person accepts what is lost
    Recover {
        /// Say that you accept the loss
        #[arg(long, required = true)]
        accept_loss: bool,
    },
}
