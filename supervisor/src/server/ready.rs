//! What a starting supervisor says to whoever started it: one line to a command, readiness to
//! systemd.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use atenea_core::Refusal;

use super::notify;

/// Who waits for the start.
#[derive(Debug)]
pub struct Ready {
    told: Told,
}

#[derive(Debug)]
enum Told {
    /// A command, through the write end of its pipe.
    Starter(Option<File>),
    /// systemd, or a terminal that reads the log.
    Systemd,
}

impl Ready {
    /// A command that waits for `ready`, or for the refusal as JSON, on a descriptor. It is passed as
    /// standard input, which is then `/dev/null`.
    pub fn starter(fd: i32) -> Self {
        let pipe = match fd {
            0 => std::io::stdin().as_fd().try_clone_to_owned().ok().map(File::from),
            _ => None,
        };
        if let Ok(null) = File::open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
        }
        Ready { told: Told::Starter(pipe) }
    }

    /// A service manager.
    pub fn systemd() -> Self {
        Ready { told: Told::Systemd }
    }

    /// Whether the supervisor stays until somebody stops it.
    pub(super) fn is_daemon(&self) -> bool {
        matches!(self.told, Told::Systemd)
    }

    /// It listens.
    pub(super) fn ready(mut self) {
        match &mut self.told {
            Told::Starter(pipe) => say(pipe, b"ready\n"),
            Told::Systemd => notify::ready(),
        }
    }

    /// It cannot start.
    pub(super) fn refused(mut self, refusal: &Refusal) {
        match &mut self.told {
            Told::Starter(pipe) => {
                if let Ok(text) = serde_json::to_vec(refusal) {
                    say(pipe, &text);
                }
            }
            Told::Systemd => notify::refused(refusal),
        }
    }
}

fn say(pipe: &mut Option<File>, text: &[u8]) {
    if let Some(pipe) = pipe {
        // A starter that went away needs no answer.
        let _ = pipe.write_all(text);
    }
}
