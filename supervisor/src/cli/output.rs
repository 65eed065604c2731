//! stdout is data, stderr is talk.

use std::io::{IsTerminal, Write};

use atenea_core::Refusal;
use serde::Serialize;

use super::args::Global;
use super::text::safe_lines;
use crate::api::types::Problem;

/// How to speak to whoever called.
#[derive(Clone, Debug)]
pub struct Output {
    /// Machine output.
    pub json: bool,
    /// No talk.
    pub quiet: bool,
    /// stderr is a terminal.
    pub interactive: bool,
    /// Begin of a command that people are told to give.
    pub program: String,
}

impl Output {
    /// From the global options.
    pub fn new(global: &Global) -> Self {
        Output {
            json: global.json,
            quiet: global.quiet,
            interactive: std::io::stderr().is_terminal(),
            program: super::hint::program(global),
        }
    }

    /// One JSON object on a line of stdout.
    pub fn object<T: Serialize>(&self, value: &T) {
        if let Ok(text) = serde_json::to_string(value) {
            print_all(&format!("{text}\n"));
        }
    }

    /// Data for people on stdout. What deceives a reader is escaped, whatever is in it.
    pub fn data(&self, text: &str) {
        print_all(&safe_lines(text));
    }

    /// Talk on stderr.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            self.must_say(text);
        }
    }

    /// What also somebody who wants no talk has to know.
    pub fn must_say(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{}", safe_lines(text));
    }

    /// A line of progress on stderr: redrawn on a terminal.
    pub fn progress(&self, text: &str) {
        if self.quiet {
            return;
        }
        let mut err = std::io::stderr();
        let _ = if self.interactive {
            write!(err, "\r\x1b[K{text}").and_then(|()| err.flush())
        } else {
            writeln!(err, "{text}")
        };
    }

    /// Ends a line of progress.
    pub fn progress_done(&self) {
        if self.interactive && !self.quiet {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// The same refusal with commands that lead to the same supervisor.
    pub fn pasteable(&self, refusal: &Refusal) -> Refusal {
        refusal.clone().with_help(super::hint::with_program(&refusal.help, &self.program))
    }

    /// A refusal: text on stderr; with `--json` an object on stdout as well.
    pub fn refusal(&self, refusal: &Refusal) {
        let refusal = self.pasteable(refusal);
        self.must_say(&refusal.to_string());
        if self.json {
            self.object(&Problem {
                code: refusal.code.to_string(),
                cause: refusal.cause.clone(),
                help: refusal.help.clone(),
                run: None,
            });
        }
    }
}

/// Writes to stdout; a reader that went away ends the program quietly, as others do.
pub fn print_all(text: &str) {
    print_bytes(text.as_bytes());
}

/// The same for bytes.
pub fn print_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(141);
    }
}

/// Ends the program when nobody reads stdout any more, also while it has nothing to write: a reader
/// that took its line, as `head -1` does, must not wait for the next one.
pub(super) fn end_with_reader() {
    use rustix::event::{PollFd, PollFlags, poll};
    std::thread::spawn(|| {
        let stdout = std::io::stdout();
        // Nothing is asked for: only errors and hang-ups wake, which a file never has.
        let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
        while poll(&mut ends, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
        if ends.iter().any(|end| end.revents().intersects(PollFlags::ERR | PollFlags::HUP)) {
            std::process::exit(141);
        }
    });
}
