//! The command line: a client of the control API. It decides nothing about runs.

pub mod args;
pub mod client;
pub(crate) mod commands;
mod completions;
pub mod connect;
mod doctor;
mod hint;
mod journal;
mod manifest;
pub mod output;
mod progress;
mod run;
mod scope;
pub mod terminal;
pub mod text;
mod usage;

use std::process::ExitCode;

use atenea_core::{Code, Refusal};
use clap::Parser;

use args::{Cli, Command};
use output::Output;

/// How a command ended, when it was not refused.
pub type Done = Result<u8, Refusal>;

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| usage::polished(error).exit());
    match cli.command {
        Command::Launcher => atenea_launcher::helper::main(crate::server::LAUNCHER_FD),
        Command::Workspace => atenea_workspace::worker::main(),
        Command::Supervisor { ready_fd, crash } => {
            if let Some(crash) = crash {
                crate::crash::arm(crash);
            }
            crate::server::main(&cli.global, crate::server::Ready::starter(ready_fd))
        }
        Command::Daemon => crate::server::main(&cli.global, crate::server::Ready::systemd()),
        command => client_main(&cli.global, command),
    }
}

fn client_main(global: &args::Global, command: Command) -> ExitCode {
    let output = Output::new(global);
    init_trace(global.verbose);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let refused = match &command {
        Command::Run(_) => |_| crate::exit::RUN_FAILED,
        Command::Wait { .. } => status_of_wait,
        _ => status_of,
    };
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
            ExitCode::from(refused(refusal.code))
        }
    }
}

/// `-v` shows each request and its answer, `-vv` what belongs to them.
fn init_trace(verbose: u8) {
    match verbose {
        0 => {}
        1 => crate::log::trace("debug"),
        _ => crate::log::trace("trace"),
    }
}

/// Exit status of a refused `wait`: 125 stands for a run whose end cannot be known, not for a wrong
/// name.
fn status_of_wait(code: Code) -> u8 {
    match code {
        Code::ProcessNoSuchRun | Code::ProcessAmbiguousRun => status_of(code),
        _ => crate::exit::RUN_FAILED,
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
            output::print_bytes(&completions::script(shell));
            Ok(0)
        }
        Command::Drill(args) => crate::drill::drill(global, output, &args),
        Command::Doctor => doctor::doctor(global, output).await,
        other => commands::dispatch(global, output, other).await,
    }
}
