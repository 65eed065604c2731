//! The command line: a client of the control API. It decides nothing about runs.

pub mod args;
pub mod client;
mod commands;
pub mod connect;
mod journal;
mod manifest;
pub mod output;
mod run;
pub mod terminal;
pub mod text;

use std::process::ExitCode;

use atenea_core::{Code, Refusal};
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use output::Output;

/// How a command ended, when it was not refused.
pub type Done = Result<u8, Refusal>;

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Launcher => atenea_launcher::helper::main(crate::server::LAUNCHER_FD),
        Command::Workspace => crate::driver::worker_main(),
        Command::Supervisor { ready_fd } => crate::server::main(&cli.global, ready_fd),
        command => client_main(&cli.global, command),
    }
}

fn client_main(global: &args::Global, command: Command) -> ExitCode {
    let output = Output::new(global);
    // Read before the runtime has threads; the umask is the supervisor's business, not ours.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let is_run = matches!(command, Command::Run(_) | Command::Wait { .. });
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(dispatch(global, &output, command));
            // A read of stdin that nobody waits for must not keep the process.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Refusal::new(Code::HostNoSupervisor, error.to_string())),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(refusal) => {
            output.refusal(&refusal);
            let status = if is_run { crate::exit::RUN_FAILED } else { status_of(refusal.code) };
            ExitCode::from(status)
        }
    }
}

/// Exit status of a refused command other than `run` and `wait`.
fn status_of(code: Code) -> u8 {
    match code {
        Code::ProcessNoSuchRun
        | Code::FsNotFound
        | Code::BudgetNoAccount
        | Code::HostNoSupervisor => crate::exit::NOT_FOUND,
        Code::JournalLocked => crate::exit::BUSY,
        Code::JournalDamaged | Code::JournalTruncated => crate::exit::NO,
        _ => crate::exit::REFUSED,
    }
}

async fn dispatch(global: &args::Global, output: &Output, command: Command) -> Done {
    match command {
        Command::Run(run) => run::run(global, output, *run).await,
        Command::Manifest(command) => manifest::manifest(global, output, command),
        Command::Journal(command) => journal::journal(global, output, command).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut command = shown(&Cli::command());
            clap_complete::generate(shell, &mut command, "atenea-sup", &mut script);
            output::print_bytes(&script);
            Ok(0)
        }
        other => commands::dispatch(global, output, other).await,
    }
}

/// The commands that people are shown: completion scripts would offer the hidden ones too.
fn shown(whole: &clap::Command) -> clap::Command {
    let visible = whole.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new("atenea-sup")
        .version(env!("CARGO_PKG_VERSION"))
        .args(whole.get_arguments())
        .subcommands(visible)
}
