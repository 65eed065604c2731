//! From decisions to a plan: pure, so that a test can print what a manifest becomes.

use atenea_core::{Code, Profile, Refusal};

use super::input::PlanInput;
use super::runtime::RuntimeEntry;
use super::{
    GroupLimits, HOME, INSIDE_ID, IdMap, Mount, MountKind, Namespace, OsBytes, SandboxPlan,
    admission, etc, target,
};

/// Arguments and environment together, bytes: below what `execve` takes (a quarter of an 8 MiB
/// stack), and below init's bound for its plan.
const ARGUMENT_BYTES_MAX: usize = 1 << 20;
/// One argument or variable, bytes (`MAX_ARG_STRLEN`).
const ARGUMENT_BYTES_EACH_MAX: usize = (128 << 10) - 1;
/// The root holds only directories, links and small files of ours.
const ROOT_BYTES: u64 = 1 << 20;
/// Inodes of the root: directories on the way to targets, files of `/etc`, devices.
const ROOT_INODES: u64 = 1024;

/// Compiles the plan of one run.
///
/// # Errors
/// A refusal with its code; nothing was made.
pub fn compile(input: PlanInput) -> Result<SandboxPlan, Refusal> {
    check_identity(&input)?;
    check_arguments(&input)?;
    let hostname = input.run.as_str().replace('_', "-");
    let mut mounts = base_mounts(&input, &hostname);
    runtime_mounts(&input, &mut mounts)?;
    granted_mounts(&input, &mut mounts)?;
    // Everything below the root that is ours, `/dev` and `/etc` included, becomes read-only at once.
    mounts.push(Mount { target: "/".into(), what: MountKind::Seal });
    admission::check_memory(&mounts, input.limits.memory_bytes)?;
    let cwd = input
        .cwd
        .or_else(|| input.workspace.as_ref().map(|workspace| workspace.target.clone()))
        .unwrap_or_else(|| HOME.into());
    Ok(SandboxPlan {
        run: input.run,
        profile: input.profile,
        mounts,
        namespaces: Namespace::ALL.to_vec(),
        ids: IdMap {
            outside_uid: input.outside_uid,
            outside_gid: input.outside_gid,
            inside_uid: INSIDE_ID,
            inside_gid: INSIDE_ID,
        },
        argv: input.argv,
        env: input.env.into_iter().map(|(name, value)| variable(&name, &value)).collect(),
        cwd,
        hostname,
        rlimits: input.rlimits,
        listeners: input.listeners,
        limits: GroupLimits::from(&input.limits),
        tty: input.tty,
    })
}

fn check_identity(input: &PlanInput) -> Result<(), Refusal> {
    if !input.profile.is_enforced() {
        // S2: an unsandboxed run has no plan, so it can never be taken for an enforced one.
        return Err(Refusal::new(
            Code::ManifestBadValue,
            format!("profile {} has no sandbox plan", input.profile),
        ));
    }
    if input.outside_uid == 0 || input.outside_gid == 0 {
        return Err(Refusal::new(Code::HostNoUidRange, "a run never gets host uid or gid 0"));
    }
    Ok(())
}

fn check_arguments(input: &PlanInput) -> Result<(), Refusal> {
    if input.argv.first().is_none_or(|command| command.as_bytes().is_empty()) {
        return Err(Refusal::new(Code::ManifestNoCommand, "there is no command"));
    }
    let mut sum = 0usize;
    let words = input.argv.iter().map(|word| (0, word));
    let values = input.env.iter().map(|(name, value)| (name.len() + 1, value));
    for (extra, word) in words.chain(values) {
        let len = word.as_bytes().len() + extra;
        sum += len + 1;
        if word.has_nul() {
            return Err(Refusal::new(
                Code::ManifestBadValue,
                "an argument or variable holds a NUL byte",
            ));
        }
        if len > ARGUMENT_BYTES_EACH_MAX || sum > ARGUMENT_BYTES_MAX {
            return Err(Refusal::new(
                Code::ManifestTooLarge,
                format!("arguments and environment take more than {ARGUMENT_BYTES_MAX} bytes"),
            ));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    for (name, _) in &input.env {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let good = !name.is_empty()
            && name.bytes().all(plain)
            && !name.as_bytes().first().is_some_and(u8::is_ascii_digit);
        if !good || !seen.insert(name) {
            return Err(Refusal::new(
                Code::ManifestBadValue,
                format!("variable name {name:?} is not plain, or given twice"),
            ));
        }
    }
    Ok(())
}

/// Root, `/proc`, `/dev`, the writable filesystems in memory, `/etc`.
fn base_mounts(input: &PlanInput, hostname: &str) -> Vec<Mount> {
    let tmpfs = |target: &str, size: u64, mode, of_agent| Mount {
        target: target.into(),
        what: MountKind::Tmpfs { size, nr_inodes: admission::inodes(size), mode, of_agent },
    };
    let root =
        MountKind::Tmpfs { size: ROOT_BYTES, nr_inodes: ROOT_INODES, mode: 0o755, of_agent: false };
    let mut mounts = vec![
        Mount { target: "/".into(), what: root },
        Mount { target: "/proc".into(), what: MountKind::Proc },
        Mount { target: "/dev".into(), what: MountKind::Dev },
        tmpfs("/dev/shm", input.tmpfs.shm, 0o1777, true),
        tmpfs("/tmp", input.tmpfs.tmp, 0o1777, true),
        tmpfs(HOME, input.tmpfs.home, 0o700, true),
    ];
    mounts.push(Mount { target: "/etc".into(), what: MountKind::Dir });
    mounts.extend(etc::files(hostname));
    mounts
}

/// The declared runtime. Parts of `/etc` may be declared beside our own files, nothing else in a
/// tree of the sandbox; and none may meet another.
fn runtime_mounts(input: &PlanInput, mounts: &mut Vec<Mount>) -> Result<(), Refusal> {
    for (index, entry) in input.runtime.entries.iter().enumerate() {
        let path = entry.path();
        let others = input.runtime.entries.iter().take(index).map(RuntimeEntry::path);
        let own_files = mounts.iter().map(|mount| &mount.target);
        let in_etc = path.as_bytes().starts_with(b"/etc/");
        if !in_etc {
            target::check(path)?;
        }
        let own_files = own_files.filter(|file| in_etc && file.as_bytes().starts_with(b"/etc/"));
        if let Some(other) = others.chain(own_files).find(|other| target::overlap(path, other)) {
            return Err(meets(path, other));
        }
    }
    mounts.extend(input.runtime.entries.iter().map(|entry| match entry.clone() {
        RuntimeEntry::Bind { path, vetted, directory } => Mount {
            target: path.clone(),
            what: MountKind::Bind { source: path, vetted, directory, read_only: true },
        },
        RuntimeEntry::Symlink { path, to } => {
            Mount { target: path, what: MountKind::Symlink { to } }
        }
    }));
    Ok(())
}

/// The workspace, then the grants. None may meet another mount of the host: a mount point inside one
/// would lie in a tree that somebody else, possibly an agent, has written.
fn granted_mounts(input: &PlanInput, mounts: &mut Vec<Mount>) -> Result<(), Refusal> {
    let mut taken: Vec<OsBytes> =
        input.runtime.entries.iter().map(|entry| entry.path().clone()).collect();
    let workspace = input.workspace.iter().map(|workspace| {
        let read_only = input.profile == Profile::Read;
        (&workspace.source, workspace.vetted, true, read_only, &workspace.target)
    });
    let grants = input
        .grants
        .iter()
        .map(|grant| (&grant.source, grant.vetted, grant.directory, true, &grant.target));
    for (source, vetted, directory, read_only, at) in workspace.chain(grants) {
        target::check(at)?;
        // A mount on or above one of our own filesystems would hide it.
        if let Some(ours) = ["/tmp", HOME]
            .iter()
            .find(|ours| target::is_at_or_below(ours.as_bytes(), at.as_bytes()))
        {
            return Err(meets(at, &OsBytes::from(*ours)));
        }
        if let Some(other) = taken.iter().find(|other| target::overlap(at, other)) {
            return Err(meets(at, other));
        }
        taken.push(at.clone());
        mounts.push(Mount {
            target: at.clone(),
            what: MountKind::Bind { source: source.clone(), vetted, directory, read_only },
        });
    }
    Ok(())
}

fn meets(at: &OsBytes, other: &OsBytes) -> Refusal {
    Refusal::new(Code::FsBadTarget, format!("target {at} and {other} lie in one another"))
        .with_help("choose another target; mounts may not be nested")
}

fn variable(name: &str, value: &OsBytes) -> OsBytes {
    let mut both = name.as_bytes().to_vec();
    both.push(b'=');
    both.extend_from_slice(value.as_bytes());
    both.into()
}

#[cfg(test)]
#[path = "compile_tests.rs"]
pub(super) mod tests;
