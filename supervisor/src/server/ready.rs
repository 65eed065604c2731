//! The one line a starting supervisor says to whoever started it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use atenea_core::Refusal;

/// The write end of the starter's pipe.
pub(super) struct Ready {
    pipe: Option<File>,
}

impl Ready {
    /// Takes the descriptor. The starter passes it as standard input, which is then `/dev/null`.
    pub(super) fn take(fd: i32) -> Self {
        let pipe = match fd {
            0 => std::io::stdin().as_fd().try_clone_to_owned().ok().map(File::from),
            _ => None,
        };
        if let Ok(null) = File::open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&null);
        }
        Ready { pipe }
    }

    /// It listens.
    pub(super) fn ready(mut self) {
        self.say(b"ready\n");
    }

    /// It cannot start.
    pub(super) fn refused(mut self, refusal: &Refusal) {
        if let Ok(text) = serde_json::to_vec(refusal) {
            self.say(&text);
        }
    }

    fn say(&mut self, text: &[u8]) {
        if let Some(pipe) = &mut self.pipe {
            // A starter that went away needs no answer.
            let _ = pipe.write_all(text);
        }
    }
}
