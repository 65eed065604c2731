//! Where things are, by options and environment. Nothing is made here.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atenea_core::{Code, Digest, Refusal};

/// The system's state directory: root's, unless told otherwise.
pub const SYSTEM_STATE_DIR: &str = "/var/lib/atenea";
/// The socket of the system's supervisor.
pub const SYSTEM_SOCKET: &str = "/run/atenea/control.sock";
/// The system's configuration file.
pub(super) const SYSTEM_CONFIG: &str = "/etc/atenea/atenea-sup.toml";
/// Directory of root's sockets.
const SYSTEM_RUNTIME_DIR: &str = "/run/atenea";
/// The kernel's `sun_path` has 108 bytes with the final NUL.
const SOCKET_BYTES_MAX: usize = 106;
/// Hexadecimal digits of the state directory's digest in a socket's name: 64 bits.
const HASH_DIGITS: usize = 16;

/// What of the process decides where things are. A value, so that tests need no environment.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// `$HOME`
    pub home: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`
    pub config_home: Option<PathBuf>,
    /// `$XDG_STATE_HOME`
    pub state_home: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`
    pub runtime_dir: Option<PathBuf>,
    /// Where private directories may be made by anybody; `/tmp`.
    pub shared_tmp: PathBuf,
    /// Root of system paths; `/`.
    pub system_root: PathBuf,
}

impl Surroundings {
    /// Those of this process. Relative directories in variables are ignored, as XDG demands.
    pub fn of_process() -> Self {
        let absolute = |name: &str| {
            let value: Option<OsString> = std::env::var_os(name);
            value.map(PathBuf::from).filter(|path| path.is_absolute())
        };
        Surroundings {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            home: absolute("HOME"),
            config_home: absolute("XDG_CONFIG_HOME"),
            state_home: absolute("XDG_STATE_HOME"),
            runtime_dir: absolute("XDG_RUNTIME_DIR"),
            shared_tmp: PathBuf::from("/tmp"),
            system_root: PathBuf::from("/"),
        }
    }

    /// Whether the process is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// An absolute path of the system, below the root.
    pub(super) fn system(&self, path: &str) -> PathBuf {
        self.system_root.join(path.trim_start_matches('/'))
    }

    /// Configuration files in the order of search. Whose they are is checked when one is opened.
    pub(super) fn config_files(&self) -> Vec<PathBuf> {
        let home = || self.home.as_ref().map(|home| home.join(".config"));
        let user = self.config_home.clone().or_else(home);
        let user = user.map(|config| config.join("atenea/atenea-sup.toml"));
        user.into_iter().chain([self.system(SYSTEM_CONFIG)]).collect()
    }
}

/// See [`super::state_dir`].
pub(super) fn state_dir(option: Option<&Path>, around: &Surroundings) -> Result<PathBuf, Refusal> {
    if let Some(path) = option {
        return std::path::absolute(path).map_err(|error| {
            Refusal::new(Code::HostStateDir, format!("--state-dir {}: {error}", path.display()))
        });
    }
    // Root keeps state in one place, whatever variables a sudo has let through.
    if around.is_root() {
        return Ok(around.system(SYSTEM_STATE_DIR));
    }
    let home = || around.home.as_ref().map(|home| home.join(".local/state"));
    match around.state_home.clone().or_else(home) {
        Some(state) => Ok(state.join("atenea")),
        None => Err(Refusal::new(
            Code::HostStateDir,
            "neither HOME nor XDG_STATE_HOME is an absolute path",
        )
        .with_help("set HOME, or give --state-dir")),
    }
}

/// See [`super::socket_path`].
pub(super) fn socket_path(state_dir: &Path, around: &Surroundings) -> Result<PathBuf, Refusal> {
    let real = real_path(state_dir).map_err(|error| {
        Refusal::new(Code::HostStateDir, format!("{}: {error}", state_dir.display()))
    })?;
    if around.is_root() && real == around.system(SYSTEM_STATE_DIR) {
        return Ok(around.system(SYSTEM_SOCKET));
    }
    let digest = Digest::of(real.as_os_str().as_bytes()).to_string();
    let hash: String = digest.chars().skip("b3:".len()).take(HASH_DIGITS).collect();
    let name = format!("{hash}.sock");
    socket_dirs(around)
        .into_iter()
        .map(|dir| dir.join(&name))
        .find(|path| path.as_os_str().len() <= SOCKET_BYTES_MAX)
        .ok_or_else(|| {
            let cause = format!("no place for a socket has at most {SOCKET_BYTES_MAX} bytes");
            Refusal::new(Code::HostStateDir, cause).with_help("give a short --socket")
        })
}

/// The path without symbolic links, also when its last components are not there yet: the client
/// that asks before the directory is made must find the supervisor that asks afterwards.
fn real_path(path: &Path) -> std::io::Result<PathBuf> {
    let absolute: PathBuf = std::path::absolute(path)?.components().collect();
    for there in absolute.ancestors() {
        match std::fs::canonicalize(there) {
            Ok(real) => {
                let rest = absolute.strip_prefix(there).unwrap_or(Path::new(""));
                return Ok(real.join(rest).components().collect());
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(absolute)
}

/// Directories of sockets, best first.
fn socket_dirs(around: &Surroundings) -> Vec<PathBuf> {
    if around.is_root() {
        return vec![around.system(SYSTEM_RUNTIME_DIR)];
    }
    let runtime = around.runtime_dir.as_deref().filter(|dir| is_private(dir, around.uid));
    let private = around.shared_tmp.join(format!("atenea-{}", around.uid));
    runtime.map(|dir| dir.join("atenea")).into_iter().chain([private]).collect()
}

/// Whether this is the caller's own directory that nobody else can write to: a variable that a
/// `su` has left behind names somebody else's.
fn is_private(dir: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(dir)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o022 == 0)
}
