//! Names of groups: plain, short, never a path and never a control file.

use crate::{Error, Result};

/// Longest instance name.
pub const INSTANCE_CHARS_MAX: usize = 64;
/// Longest run name; a run id has 14 characters.
pub const RUN_CHARS_MAX: usize = 64;

fn is_plain(text: &str, max: usize) -> bool {
    // No dot: control files are named `controller.file`, so a name can never meet one of them.
    !text.is_empty()
        && text.len() <= max
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The directory of an instance.
pub(crate) fn instance_dir(instance: &str) -> Result<String> {
    if is_plain(instance, INSTANCE_CHARS_MAX) {
        Ok(format!("atenea-{instance}"))
    } else {
        Err(Error::BadName { name: instance.to_owned() })
    }
}

/// Checks the name of a run's directory.
pub(crate) fn check_run(name: &str) -> Result<()> {
    // v1 keeps these control files without a dot in every directory.
    let control = ["tasks", "notify_on_release", "release_agent"];
    if is_plain(name, RUN_CHARS_MAX) && !control.contains(&name) {
        Ok(())
    } else {
        Err(Error::BadName { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_paths_or_control_files_are_refused() {
        assert_eq!(instance_dir("default").unwrap(), "atenea-default");
        assert!(check_run("r_0123456789ab").is_ok());
        for bad in ["", ".", "..", "a/b", "tasks", "cgroup.procs", "a b", "ä", "x\0"] {
            assert!(check_run(bad).is_err(), "{bad:?}");
        }
        assert!(instance_dir("../x").is_err());
        assert!(instance_dir(&"x".repeat(INSTANCE_CHARS_MAX + 1)).is_err());
    }
}
