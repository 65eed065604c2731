//! Configuration: where the file is, what it may say, and the directories that follow from options
//! and environment.
//!
//! No file is needed. A key this program does not know is refused, and so is one it knows and
//! cannot enforce yet: a setting that is read and ignored would be a promise nobody keeps (S2).
//! The file can loosen what runs may do, so it must belong to root or to the caller and be
//! writable by nobody else (S7).

mod dirs;
mod file;
mod in_force;
mod places;
mod settings;

use std::path::{Path, PathBuf};

use atenea_core::Refusal;

pub use in_force::InForce;
pub use places::{SYSTEM_SOCKET, SYSTEM_STATE_DIR, Surroundings};
pub use settings::{
    Bubblewrap, BudgetRule, Config, Daemon, Engine, JournalSettings, Mode, OnStop, Sandbox,
    UidRange,
};

/// Reads the configuration: `file` when given, else the first that exists of the user's and the
/// system's, else the defaults.
///
/// # Errors
/// `host.config` naming the file and the key.
pub fn load(file: Option<&Path>) -> Result<Config, Refusal> {
    file::load(file, &Surroundings::of_process())
}

/// The state directory, absolute; makes nothing.
///
/// # Errors
/// `host.state_dir` when nothing says where it is.
pub fn state_dir(option: Option<&Path>) -> Result<PathBuf, Refusal> {
    places::state_dir(option, &Surroundings::of_process())
}

/// Makes the state directory, or checks and tightens the one there is; returns its path without
/// symbolic links.
///
/// # Errors
/// `host.state_dir` when it is a link, belongs to somebody else or cannot be made.
pub fn ensure_state_dir(path: &Path) -> Result<PathBuf, Refusal> {
    dirs::ensure_state_dir(path, &Surroundings::of_process())
}

/// The socket of a state directory; makes nothing.
///
/// # Errors
/// `host.state_dir` when no place for it is short enough.
pub fn socket_path(state_dir: &Path) -> Result<PathBuf, Refusal> {
    places::socket_path(state_dir, &Surroundings::of_process())
}

/// Makes the directory of a socket, or checks the one there is.
///
/// # Errors
/// `host.state_dir` when it is a link, belongs to somebody else or cannot be made.
pub fn ensure_socket_dir(socket: &Path) -> Result<(), Refusal> {
    dirs::ensure_socket_dir(socket, &Surroundings::of_process())
}

/// Refuses a socket whose directory somebody else could have put there: a client calls it before
/// it connects and sends a manifest.
///
/// # Errors
/// `host.state_dir` when the directory is a link or belongs neither to root nor to the caller.
pub fn check_socket_dir(socket: &Path) -> Result<(), Refusal> {
    dirs::check_socket_dir(socket, &Surroundings::of_process())
}

#[cfg(test)]
mod tests;
