//! What bubblewrap is told. The tree is made already, so it is one bind and `/proc`.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use atenea_core::Code;

use super::{Failure, failed};
use crate::packet::sealed_memfd;
use crate::plan::{INIT_PATH, SandboxPlan};

/// Where bubblewrap finds its arguments: just above the descriptors of `atenea-init`.
pub(super) const ARGS_FD: i32 = 6;

/// The arguments, NUL-separated, in a memfd: their size has no bound there.
pub(super) fn memfd(plan: &SandboxPlan, staging: &Path) -> io::Result<OwnedFd> {
    let mut bytes = Vec::new();
    for word in words(plan) {
        bytes.extend_from_slice(word.as_bytes());
        bytes.push(0);
    }
    // `--dev-bind` keeps the few device files usable; every mount has its own nodev otherwise.
    for word in [b"--dev-bind".as_slice(), staging.as_os_str().as_bytes(), b"/"] {
        bytes.extend_from_slice(word);
        bytes.push(0);
    }
    for word in [b"--proc".as_slice(), b"/proc", b"--chdir", b"/"] {
        bytes.extend_from_slice(word);
        bytes.push(0);
    }
    sealed_memfd("atenea-arguments", &bytes)
}

/// Options without paths. Every namespace is named: the collective option means *try* for some.
/// No `--block-fd`: bubblewrap takes the end of its writer for "go".
fn words(plan: &SandboxPlan) -> Vec<String> {
    let ids = plan.ids;
    let mut words: Vec<String> = [
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-uts",
        "--unshare-cgroup",
        "--disable-userns",
        "--die-with-parent",
        "--as-pid-1",
        "--new-session",
        "--clearenv",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(["--uid".to_owned(), ids.inside_uid.to_string()]);
    words.extend(["--gid".to_owned(), ids.inside_gid.to_string()]);
    words.extend(["--hostname".to_owned(), plan.hostname.clone()]);
    words
}

/// The short command line itself.
pub(super) fn argv(_args: &OwnedFd) -> Vec<CString> {
    let number = CString::new(ARGS_FD.to_string()).unwrap_or_default();
    let init = CString::new(INIT_PATH).unwrap_or_default();
    vec![c"bwrap".into(), c"--args".into(), number, c"--".into(), init]
}

/// Executes bubblewrap with an empty environment.
pub(super) fn exec(bubblewrap: &Path, argv: &[CString]) -> Result<Infallible, Failure> {
    let no_environment: [CString; 0] = [];
    let step = || failed(Code::HostNoBubblewrap, "bubblewrap", bubblewrap.display().to_string());
    let path = CString::new(bubblewrap.as_os_str().as_bytes())
        .map_err(|_| step()(io::Error::from(io::ErrorKind::InvalidInput)))?;
    nix::unistd::execve(&path, argv, &no_environment)
        .map_err(|errno| step()(io::Error::from(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bubblewrap_is_never_told_to_try_or_to_block() {
        let plan = crate::plan::fixture();
        let words = words(&plan);
        assert!(!words.iter().any(|word| word.ends_with("-try") || word.contains("block")));
        assert!(!words.iter().any(|word| word == "--unshare-all" || word == "--unshare-net"));
        for name in ["user", "ipc", "pid", "uts", "cgroup"] {
            assert!(words.contains(&format!("--unshare-{name}")), "{name}");
        }
        assert!(words.contains(&"--disable-userns".to_owned()));
    }
}
