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

/// Logs from `level` on, and warnings of everybody else. A second call changes nothing.
pub fn init(level: &str) {
    let filter = tracing_subscriber::EnvFilter::new(format!("warn,atenea_sup={level}"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(|| Stderr)
        // What it would say about a failure goes through `eprintln!`.
        .log_internal_errors(false);
    drop(log.try_init());
}
