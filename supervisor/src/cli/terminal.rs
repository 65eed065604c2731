//! The client's own terminal and standard input.

use std::io::Read;

use atenea_core::{Code, Refusal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use crate::api::types::{FRAME_BYTES_MAX, FrameKind, TtySize};

/// Size of the terminal on stdin or stdout; 24 × 80 when there is none.
///
/// # Errors
/// None today; callers treat one as "no terminal".
pub(super) fn size_of_terminal() -> Result<TtySize, Refusal> {
    let size = tcgetwinsize(std::io::stdin()).or_else(|_| tcgetwinsize(std::io::stdout()));
    Ok(size.map_or(TtySize { rows: 24, cols: 80 }, |s| TtySize {
        rows: s.ws_row.max(1),
        cols: s.ws_col.max(1),
    }))
}

/// Raw mode of the terminal on stdin, until it is dropped.
pub(super) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Enters it; `None` when stdin is no terminal.
    ///
    /// # Errors
    /// When the terminal refuses.
    pub(super) fn enter() -> Result<Option<Self>, Refusal> {
        let Ok(before) = tcgetattr(std::io::stdin()) else { return Ok(None) };
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).map_err(|e| {
            Refusal::new(Code::ProcessNotAttachable, format!("the terminal refuses raw mode: {e}"))
        })?;
        Ok(Some(RawMode { before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Reads stdin in a thread of its own and sends it as frames; an empty frame is its end. The thread
/// may wait in `read` for ever: the process exits without it.
pub(super) fn read_stdin(frames: mpsc::Sender<(FrameKind, Vec<u8>)>) {
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0u8; FRAME_BYTES_MAX];
        loop {
            let read = stdin.read(&mut buffer).unwrap_or(0);
            let piece = buffer.get(..read).unwrap_or_default().to_vec();
            if frames.blocking_send((FrameKind::Stdin, piece)).is_err() || read == 0 {
                return;
            }
        }
    });
}
