//! The log of a process that has to live on when nothing can be written any more.
//!
//! A log lies on the disk that fills up. `eprintln!` panics when it cannot be written, and a panic
//! ends the supervisor with every run in it; what cannot be logged is dropped here instead.

use std::io::{self, Write};

/// Standard error; what cannot be written is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Half a line is no worse than none.
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs from `level` on, and warnings of everybody else.
pub fn init(level: &str) {
    install(&format!("warn,atenea_sup={level}"), true);
}

/// What `-v` of a client shows: lines for a person, of this program only.
pub fn trace(level: &str) {
    install(&format!("off,atenea_sup={level}"), false);
}

/// A second call changes nothing.
fn install(filter: &str, whole: bool) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_ansi(false)
        .with_target(whole)
        .with_writer(|| Stderr)
        // What it would say about a failure goes through `eprintln!`.
        .log_internal_errors(false);
    drop(if whole { log.try_init() } else { log.without_time().try_init() });
}
