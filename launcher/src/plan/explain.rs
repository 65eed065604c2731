//! The plan as text, one line an entry: for golden tests and for people.

use std::fmt;

use super::{Mount, MountKind, SandboxPlan};

impl fmt::Display for SandboxPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run {} profile {}", self.run, self.profile)?;
        for mount in &self.mounts {
            writeln!(f, "mount {mount}")?;
        }
        let ids = self.ids;
        writeln!(f, "namespaces {:?}", self.namespaces)?;
        writeln!(
            f,
            "ids {}:{} inside {}:{}",
            ids.outside_uid, ids.outside_gid, ids.inside_uid, ids.inside_gid
        )?;
        writeln!(f, "argv {:?}", self.argv)?;
        for variable in &self.env {
            writeln!(f, "env {variable}")?;
        }
        writeln!(f, "cwd {} hostname {} tty {:?}", self.cwd, self.hostname, self.tty)?;
        for limit in &self.rlimits {
            writeln!(f, "rlimit {} {} {}", limit.resource, limit.soft, limit.hard)?;
        }
        for listener in &self.listeners {
            let (role, transport) = (listener.role, listener.transport);
            writeln!(f, "listener {role:?} {transport:?} {}", listener.address)?;
        }
        let limits = self.limits;
        writeln!(
            f,
            "limits cpu_millis {} memory {} pids {}",
            limits.cpu_millis, limits.memory_bytes, limits.pids
        )?;
        Ok(())
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.target;
        match &self.what {
            MountKind::Tmpfs { size, nr_inodes, mode, of_agent } => {
                let owner = if *of_agent { "agent" } else { "host" };
                write!(f, "{target} tmpfs size={size} inodes={nr_inodes} mode={mode:o} {owner}")
            }
            MountKind::Bind { source, directory, read_only, .. } => {
                let access = if *read_only { "ro" } else { "rw" };
                let kind = if *directory { "directory" } else { "file" };
                write!(f, "{target} bind {access} {kind} {source}")
            }
            MountKind::Proc => write!(f, "{target} proc"),
            MountKind::Dev => write!(f, "{target} dev"),
            MountKind::Symlink { to } => write!(f, "{target} -> {to}"),
            MountKind::File { contents, mode } => {
                write!(f, "{target} file mode={mode:o} {contents}")
            }
            MountKind::Dir => write!(f, "{target} dir"),
            MountKind::Seal => write!(f, "{target} sealed read-only"),
        }
    }
}
