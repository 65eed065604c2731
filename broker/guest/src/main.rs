//! `atenea-guest`: what an agent or script inside a run uses to talk to the broker of the run.
//!
//! It knows two things, both from its environment: `ATENEA_BROKER` and `ATENEA_TOKEN`. It is small
//! and builds static, because it runs on whatever the run's runtime is. It never prints the token.
#![forbid(unsafe_code)]

mod broker;

use std::io::Write;
use std::process::ExitCode;

use broker::{Failure, Place};

const HELP: &str = "\
Asks the broker of this run.

Usage: atenea-guest COMMAND

Commands:
  grants   print what this run was granted, as JSON
  budget   print what of this run's budget is held and reported, as JSON

Options:
  -h, --help     print this
  -V, --version  print the version

Environment:
  ATENEA_BROKER  where the broker is: http://127.0.0.1:7411
  ATENEA_TOKEN   the token of this run

Exit status: 0 ok, 1 the answer is not understood, 2 wrong usage or environment, 4 refused by the
broker (the code is on stderr), 5 the broker cannot be reached or is busy.
";

/// Exit statuses; the same meanings as in `atenea-sup`.
const NOT_UNDERSTOOD: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 4;
const UNREACHED: u8 = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["grants"] => ask("/v1/grants"),
        ["budget"] => ask("/v1/budget"),
        ["-h" | "--help" | "help"] => print(HELP),
        ["-V" | "--version"] => print(&format!("atenea-guest {}\n", env!("CARGO_PKG_VERSION"))),
        [] => usage("there is no command"),
        other => usage(&format!("{other:?} is not a command")),
    }
}

fn ask(path: &str) -> ExitCode {
    match environment().and_then(|(place, token)| broker::get(&place, &token, path)) {
        Ok(value) => print(&format!("{value}\n")),
        Err(failure) => report(&failure),
    }
}

fn environment() -> Result<(Place, String), Failure> {
    let read = |name: &'static str| {
        std::env::var(name).map_err(|_| Failure::Environment(format!("{name} is not set")))
    };
    Ok((Place::parse(&read("ATENEA_BROKER")?)?, read("ATENEA_TOKEN")?))
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader went away; there is nobody to tell.
        Err(_) => ExitCode::from(NOT_UNDERSTOOD),
    }
}

fn usage(cause: &str) -> ExitCode {
    eprintln!("error: {cause}\n  help: atenea-guest --help");
    ExitCode::from(USAGE)
}

fn report(failure: &Failure) -> ExitCode {
    match failure {
        Failure::Environment(cause) => {
            eprintln!("error: {cause}\n  help: atenea-guest works inside a run only");
            ExitCode::from(USAGE)
        }
        Failure::Unreached(cause) => {
            eprintln!("error: the broker cannot be reached: {cause}");
            ExitCode::from(UNREACHED)
        }
        Failure::Refused { status, code, cause, help } => {
            eprintln!("error[{code}]: {cause}\n  help: {help}");
            ExitCode::from(if *status == 503 { UNREACHED } else { REFUSED })
        }
        Failure::NotUnderstood(cause) => {
            eprintln!("error: the broker's answer is not understood: {cause}");
            ExitCode::from(NOT_UNDERSTOOD)
        }
    }
}
