//! A control group for a supervisor that is started on demand, where a terminal's own cannot be used.
//!
//! On a unified host the group of a session holds its processes, so it cannot limit children. systemd gives
//! out groups: a scope with `Delegate=yes`, in which the supervisor is alone.

use std::path::Path;
use std::process::Command;

/// It is asked by its full name: what is in `PATH` is whose shell it is.
const SYSTEMD_RUN: &str = "/usr/bin/systemd-run";
/// Exists while systemd is process 1 (`sd_booted`).
const BOOTED: &str = "/run/systemd/system";

/// The command that starts `program` in a scope of its own, for its arguments to be added. `None` where
/// this process's group will do, or where nobody gives out groups.
pub(super) fn around(program: &Path) -> Option<Command> {
    let there = |path: &str| Path::new(path).exists();
    if !atenea_reaper::needs_group() || !there(BOOTED) || !there(SYSTEMD_RUN) {
        return None;
    }
    let mut command = Command::new(SYSTEMD_RUN);
    if !rustix::process::geteuid().is_root() {
        // The user's own manager: what it may give away is this user's.
        command.arg("--user");
    }
    command.args(["--scope", "--quiet", "--collect", "--property=Delegate=yes"]);
    command.args(["--description=atenea-sup supervisor", "--"]).arg(program);
    Some(command)
}
