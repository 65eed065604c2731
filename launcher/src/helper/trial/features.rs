//! Features that can be tried alone, so that a missing one has its own code and remedy.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use atenea_core::{Code, Refusal};
use rustix::mount::FsOpenFlags;
use rustix::process::PidfdFlags;

use super::super::context::Context;
use crate::probe::Feature;
use crate::sys;

/// All of them, what others need first.
pub(super) fn all(context: &Context) -> Vec<Feature> {
    vec![
        Feature::required("pidfd", pidfd()),
        Feature::required("bubblewrap", bubblewrap(context)),
        Feature::required("init", init(context)),
        Feature::required("cgroup", cgroup(context)),
        Feature::required("seccomp", seccomp(context)),
        Feature::required("user-namespaces", user_namespaces(context)),
        Feature::optional("landlock", landlock()),
        Feature::optional("overlay", overlay()),
        Feature::optional("quota", Ok("watched".to_owned())),
    ]
}

fn pidfd() -> Result<String, Refusal> {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .map(|_| "yes".to_owned())
        .map_err(|e| Refusal::new(Code::HostNoPidfd, format!("pidfd_open: {e}")))
}

fn bubblewrap(context: &Context) -> Result<String, Refusal> {
    let path = &context.bubblewrap;
    let meta = std::fs::metadata(path)
        .map_err(|e| Refusal::new(Code::HostNoBubblewrap, format!("{}: {e}", path.display())))?;
    if meta.mode() & 0o6000 != 0 {
        let cause = format!("{} has mode {:o}", path.display(), meta.mode() & 0o7777);
        return Err(Refusal::new(Code::HostBubblewrapSetuid, cause));
    }
    // The run's uid executes it.
    if meta.mode() & 0o005 != 0o005 || meta.uid() != 0 {
        let cause = format!(
            "{} has mode {:o} and owner {}; it must be root's, readable and executable by all",
            path.display(),
            meta.mode() & 0o7777,
            meta.uid()
        );
        return Err(Refusal::new(Code::HostNoBubblewrap, cause));
    }
    Ok(path.display().to_string())
}

/// The version is compared by init itself in every launch; here it is asked so that a wrong one has
/// a plain answer.
fn init(context: &Context) -> Result<String, Refusal> {
    let vetted = context.init()?;
    let refused =
        |why: String| Refusal::new(Code::HostNoInit, format!("{}: {why}", vetted.path.display()));
    let output = Command::new(&vetted.path)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|e| refused(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.split_whitespace().next_back().unwrap_or_default();
    if version == env!("CARGO_PKG_VERSION") {
        Ok(version.to_owned())
    } else {
        Err(refused(format!("is version {version:?}, needed is {}", env!("CARGO_PKG_VERSION"))))
    }
}

fn cgroup(context: &Context) -> Result<String, Refusal> {
    Ok(format!("{:?}", context.base()?.layout().kind()).to_lowercase())
}

fn seccomp(context: &Context) -> Result<String, Refusal> {
    if let Some(refusal) = context.seccomp_refusal() {
        return Err(refusal);
    }
    let path = "/proc/sys/kernel/seccomp/actions_avail";
    let actions = std::fs::read_to_string(path).unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "kill_process") {
        Ok("filter".to_owned())
    } else {
        Err(Refusal::new(Code::HostNoSeccomp, format!("{path} says {actions:?}")))
    }
}

/// Tried in a child, because a namespace is entered for good. The whole launch tries the rest.
fn user_namespaces(context: &Context) -> Result<String, Refusal> {
    let refused = |why: String| Refusal::new(Code::HostUsernsDenied, why);
    let root = context.root;
    let pid = match sys::process::fork().map_err(|e| refused(e.to_string()))? {
        sys::process::Fork::Child => {
            let uid = super::TRIAL_UID;
            let dropped = !root || crate::spawn::set_identity(uid, uid, &[]).is_ok();
            let made = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER);
            sys::process::exit_now(if dropped { made.map_or_else(|e| e as i32, |()| 0) } else { 1 })
        }
        sys::process::Fork::Parent(pid) => pid,
    };
    let pid = nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get());
    match nix::sys::wait::waitpid(pid, None) {
        Ok(nix::sys::wait::WaitStatus::Exited(_, 0)) => Ok("yes".to_owned()),
        Ok(nix::sys::wait::WaitStatus::Exited(_, errno)) => {
            Err(refused(format!("unshare: {}", std::io::Error::from_raw_os_error(errno))))
        }
        other => Err(refused(format!("unshare: {other:?}"))),
    }
}

fn landlock() -> Result<String, Refusal> {
    sys::process::landlock_abi()
        .map(|abi| format!("abi {abi}"))
        .map_err(|e| Refusal::new(Code::HostFeatureAbsent, format!("landlock: {e}")))
}

fn overlay() -> Result<String, Refusal> {
    rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .map(|_| "known to the kernel".to_owned())
        .map_err(|e| Refusal::new(Code::HostFeatureAbsent, format!("overlay: {e}")))
}
