//! What the helper needs for every launch; made once, so that it costs nothing later.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atenea_cgroup::{Base, Layout};
use atenea_core::{Code, Refusal};
use rustix::fs::{CWD, Mode, OFlags};

use crate::packet::sealed_memfd;
use crate::plan::FileIdentity;
use crate::protocol::HelperConfig;
use crate::seccomp;
use crate::spawn::Vetted;

pub(super) struct Context {
    pub(super) config: HelperConfig,
    pub(super) boot_id: String,
    pub(super) root: bool,
    pub(super) bubblewrap: PathBuf,
    pub(super) staging: PathBuf,
    pub(super) canary: PathBuf,
    /// Parts that may be missing on a host that cannot enforce: each keeps its refusal.
    pub(super) base: Result<Base, Refusal>,
    pub(super) init: Result<Vetted, Refusal>,
    seccomp: Result<OwnedFd, Refusal>,
}

impl Context {
    pub(super) fn new(config: HelperConfig) -> Result<Self, Refusal> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|e| Refusal::new(Code::HostNotLinux, format!("no boot id: {e}")))?;
        Ok(Context {
            boot_id: boot_id.trim().to_owned(),
            root: rustix::process::geteuid().is_root(),
            bubblewrap: config.bubblewrap.as_path().to_owned(),
            staging: config.staging.as_path().to_owned(),
            canary: config.canary.as_path().to_owned(),
            base: base(&config.instance),
            init: vetted(config.init.as_path()),
            seccomp: seccomp_memfd(),
            config,
        })
    }

    pub(super) fn base(&self) -> Result<&Base, Refusal> {
        self.base.as_ref().map_err(Clone::clone)
    }

    /// Whether the base is still where it was made.
    pub(super) fn has_base(&self) -> bool {
        self.base.as_ref().is_ok_and(|base| base.is_there().unwrap_or(true))
    }

    /// Makes the base anew.
    pub(super) fn renew_base(&mut self) {
        self.base = base(&self.config.instance);
    }

    pub(super) fn init(&self) -> Result<&Vetted, Refusal> {
        self.init.as_ref().map_err(Clone::clone)
    }

    /// The seccomp program. Opened anew each time: a file position is shared by all who hold the same
    /// open file.
    pub(super) fn seccomp(&self) -> Result<OwnedFd, Refusal> {
        use std::os::fd::AsRawFd;
        let fd = self.seccomp.as_ref().map_err(Clone::clone)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Refusal::new(Code::HostNoSeccomp, format!("the program is lost: {e}")))
    }

    /// Why no sandbox can be made, as far as it is known without trying.
    pub(super) fn seccomp_refusal(&self) -> Option<Refusal> {
        self.seccomp.as_ref().err().cloned()
    }
}

fn base(instance: &str) -> Result<Base, Refusal> {
    let layout = Layout::detect().map_err(|error| group_refusal(&error))?;
    Base::open_or_create(&layout, instance).map_err(|error| {
        let refusal = group_refusal(&error);
        match error {
            atenea_cgroup::Error::NotWritable { .. } => refusal.with_help(delegation(&layout)),
            _ => refusal,
        }
    })
}

/// Which groups this process is in: it has to be in others, or these have to be its user's.
fn delegation(layout: &Layout) -> String {
    let groups: Vec<String> =
        layout.own_groups().iter().map(|group| group.display().to_string()).collect();
    format!(
        "run as root, or start from control groups that belong to this user; this process is in \
         {}; how to get them: docs/operations.md, section \"Control groups for an ordinary user\"",
        groups.join(", ")
    )
}

/// An error of the control groups as a refusal, with its causes.
pub(super) fn group_refusal(error: &atenea_cgroup::Error) -> Refusal {
    let code = match error {
        atenea_cgroup::Error::Busy { .. } | atenea_cgroup::Error::Replaced { .. } => {
            Code::ProcessCleanupStuck
        }
        atenea_cgroup::Error::BadLimit { .. } => Code::ManifestBadLimit,
        atenea_cgroup::Error::LimitNotSet { .. } | atenea_cgroup::Error::LimitDiffers { .. } => {
            Code::HostNoCgroup
        }
        error if error.is_host_support() => Code::HostNoCgroup,
        _ => Code::ProcessLaunchFailed,
    };
    let mut cause = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        cause = format!("{cause}: {source}");
        next = source.source();
    }
    Refusal::new(code, cause)
}

fn vetted(path: &Path) -> Result<Vetted, Refusal> {
    let refused =
        |why: String| Refusal::new(Code::HostNoInit, format!("{}: {why}", path.display()));
    let meta = std::fs::metadata(path).map_err(|e| refused(e.to_string()))?;
    if !meta.is_file() || meta.mode() & 0o005 != 0o005 {
        return Err(refused("must be a file that everybody may read and execute".to_owned()));
    }
    // A link would be bound as a link; the file itself is what was vetted.
    let path = std::fs::canonicalize(path).map_err(|e| refused(e.to_string()))?;
    Ok(Vetted { path, identity: FileIdentity { dev: meta.dev(), ino: meta.ino() } })
}

fn seccomp_memfd() -> Result<OwnedFd, Refusal> {
    let refused = |why: String| Refusal::new(Code::HostNoSeccomp, why);
    let program = seccomp::agent_filter().map_err(|e| refused(e.to_string()))?;
    let made: io::Result<OwnedFd> = sealed_memfd("atenea-seccomp", &program);
    made.map_err(|e| refused(e.to_string()))
}
