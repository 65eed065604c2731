//! Where things may appear inside the sandbox, and what of the host may appear there.

use crate::{Code, Refusal};

use super::forms::{PATH_BYTES_MAX, quoted};
use super::model::Manifest;

/// Trees of the sandbox's own: the kernel's, ours, and the runtime's. Nothing is mounted on or
/// below them; a mount point inside a read-only runtime tree could not even be made.
const RESERVED: [&str; 13] = [
    "/proc", "/sys", "/dev", "/run", "/etc", "/atenea", "/usr", "/bin", "/sbin", "/lib", "/lib32",
    "/lib64", "/libx32",
];
/// Directories of the sandbox's own that may hold mounts but not be hidden by one.
const OWN: [&str; 2] = ["/tmp", "/home/agent"];
/// Trees of the host that hold sockets, devices or a view of other processes.
const UNSAFE_SOURCES: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/var/run"];

/// Whether the text is `/a/b`: absolute, at least one component, none of them empty, `.` or `..`.
pub fn is_plain_absolute(text: &str) -> bool {
    text.strip_prefix('/').is_some_and(is_plain_relative)
}

/// Whether the text is `a/b`: relative, no component empty, `.` or `..`, no NUL.
pub fn is_plain_relative(text: &str) -> bool {
    text.len() < PATH_BYTES_MAX
        && !text.contains('\0')
        && text.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255)
}

/// Whether `path` is `tree` or lies below it, compared by component.
pub fn is_within(path: &str, tree: &str) -> bool {
    path.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether granting this path of the host would grant sockets, devices or processes.
pub fn is_unsafe_source(path: &str) -> bool {
    UNSAFE_SOURCES.iter().any(|tree| is_within(path, tree) || is_within(tree, path))
}

/// Whether this can never be somebody's project: the root, or a file system of the kernel's.
pub(super) fn is_no_project(path: &str) -> bool {
    path == "/" || ["/proc", "/sys", "/dev"].iter().any(|tree| is_within(path, tree))
}

/// Checks every place of the sandbox a manifest puts something, alone and against each other.
///
/// # Errors
/// `fs.bad_target` naming the key.
pub(super) fn check(manifest: &Manifest) -> Result<(), Refusal> {
    let workspace = &manifest.workspace;
    let mut places: Vec<(String, &str)> = vec![(target_key(manifest), workspace.target())];
    for (index, mount) in manifest.mounts.iter().enumerate() {
        let key = if mount.target.is_some() { "target" } else { "source" };
        places.push((format!("mounts[{index}].{key}"), mount.target()));
    }
    for (index, path) in manifest.runtime.mounts.iter().enumerate() {
        places.push((format!("runtime.mounts[{index}]"), path));
    }
    for (key, target) in &places {
        alone(key, target)?;
    }
    // Sorted by component, a place directly follows the one it lies in, so neighbours suffice.
    places.sort_by(|(_, a), (_, b)| a.split('/').cmp(b.split('/')));
    for pair in places.windows(2) {
        if let [(outer_key, outer), (key, target)] = pair
            && is_within(target, outer)
        {
            let cause = format!("{key}: {} lies in {outer_key} {}", quoted(target), quoted(outer));
            return Err(Refusal::new(Code::FsBadTarget, cause)
                .with_help("give every grant a place of its own, outside of the others"));
        }
    }
    Ok(())
}

/// The key that decides where the workspace is seen.
fn target_key(manifest: &Manifest) -> String {
    match manifest.workspace.target.as_deref() {
        None | Some("same") => "workspace.path".to_owned(),
        Some(_) => "workspace.target".to_owned(),
    }
}

fn alone(key: &str, target: &str) -> Result<(), Refusal> {
    let refuse = |why: String| {
        let refusal = Refusal::new(Code::FsBadTarget, format!("{key}: {}: {why}", quoted(target)));
        Err(refusal.with_help(
            "choose an absolute, plain path outside the sandbox's own directories: --mount \
             SRC:/data, or in a manifest the key `target`, for example `target = \"/work\"`",
        ))
    };
    if !is_plain_absolute(target) {
        return refuse("it is no plain absolute path".to_owned());
    }
    if let Some(tree) = RESERVED.iter().find(|tree| is_within(target, tree)) {
        return refuse(format!("{tree} is the sandbox's own"));
    }
    if let Some(tree) = OWN.iter().find(|tree| is_within(tree, target)) {
        return refuse(format!("it would hide the sandbox's own {tree}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containment_is_by_component_not_by_prefix() {
        assert!(is_within("/srv/a", "/srv") && is_within("/srv", "/srv"));
        assert!(!is_within("/srvs", "/srv") && !is_within("/", "/srv"));
    }

    #[test]
    fn plain_paths_have_only_named_components() {
        for good in ["/a", "/a/b c", "/a/..b", "/a\nb", "/ä"] {
            assert!(is_plain_absolute(good), "{good:?}");
        }
        for bad in ["", "/", "a", "//a", "/a/", "/a//b", "/a/./b", "/a/../b", "/..", "/a\0"] {
            assert!(!is_plain_absolute(bad), "{bad:?}");
        }
        assert!(!is_plain_absolute(&format!("/{}", "x".repeat(256))));
        assert!(!is_plain_absolute(&"/x".repeat(PATH_BYTES_MAX)));
    }

    #[test]
    fn sources_that_hold_or_contain_sockets_are_unsafe() {
        for bad in ["/run", "/run/user/1", "/var/run", "/var", "/proc/1", "/dev", "/sys/fs"] {
            assert!(is_unsafe_source(bad), "{bad}");
        }
        for good in ["/opt/models", "/runner", "/var/lib/data", "/home/me"] {
            assert!(!is_unsafe_source(good), "{good}");
        }
    }
}
