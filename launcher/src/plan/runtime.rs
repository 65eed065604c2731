//! The declared runtime: which immutable parts of the host an agent sees, read-only.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atenea_core::{Code, Refusal};

use super::{FileIdentity, OsBytes};

/// Directories that are links on hosts with a merged `/usr`, real ones elsewhere.
const TOP: [&str; 5] = ["/bin", "/sbin", "/lib", "/lib64", "/lib32"];
/// Parts of `/etc` that programs need and that hold no secret: certificates, the choice of
/// alternatives, the cache of the dynamic linker.
const ETC: [&str; 3] = ["/etc/ssl/certs", "/etc/alternatives", "/etc/ld.so.cache"];

/// One declared part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEntry {
    /// A file or directory, read-only, at the same path inside.
    Bind {
        /// Path outside and inside.
        path: OsBytes,
        /// What was vetted.
        vetted: FileIdentity,
        /// Whether it is a directory.
        directory: bool,
    },
    /// A link as the host has it.
    Symlink {
        /// Path inside.
        path: OsBytes,
        /// Where it points.
        to: OsBytes,
    },
}

impl RuntimeEntry {
    /// Path inside.
    pub fn path(&self) -> &OsBytes {
        match self {
            RuntimeEntry::Bind { path, .. } | RuntimeEntry::Symlink { path, .. } => path,
        }
    }
}

/// The declared list, in mount order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostRuntime {
    /// Its parts.
    pub entries: Vec<RuntimeEntry>,
}

impl HostRuntime {
    /// Looks at this host: `/usr`, the top-level links into it, and the parts of `/etc` that exist,
    /// then `more` (declared in the configuration; each must exist).
    ///
    /// # Errors
    /// `fs.not_found` when `/usr` or a further path is missing.
    pub fn discover(more: &[&Path]) -> Result<Self, Refusal> {
        let mut entries = vec![required(Path::new("/usr"))?];
        entries.extend(TOP.iter().chain(&ETC).filter_map(|path| present(Path::new(path))));
        for path in more {
            entries.push(required(path)?);
        }
        Ok(HostRuntime { entries })
    }
}

fn required(path: &Path) -> Result<RuntimeEntry, Refusal> {
    present(path).ok_or_else(|| {
        Refusal::new(
            Code::FsNotFound,
            format!("the declared runtime path {} does not exist", path.display()),
        )
    })
}

/// A part that may be absent: what is not on the host is not inside either.
fn present(path: &Path) -> Option<RuntimeEntry> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    if meta.is_symlink() {
        let to = std::fs::read_link(path).ok()?;
        return Some(RuntimeEntry::Symlink { path: path.into(), to: to.as_path().into() });
    }
    (meta.is_dir() || meta.is_file()).then(|| RuntimeEntry::Bind {
        path: path.into(),
        vetted: FileIdentity { dev: meta.dev(), ino: meta.ino() },
        directory: meta.is_dir(),
    })
}
