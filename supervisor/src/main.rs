//! `atenea-sup`: see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    atenea_sup::cli::main()
}
