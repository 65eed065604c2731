//! A user of the machine without control groups of their own: what cannot be contained is refused,
//! and said.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::support::{Out, World, host, program};

pub(crate) const USER: u32 = 654_322;

/// Program and `atenea-init` where every user can execute them.
pub(crate) fn install(world: &World) -> std::path::PathBuf {
    let bin = world.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["atenea-sup", "atenea-init"] {
        std::fs::copy(program().with_file_name(name), bin.join(name)).unwrap();
    }
    for dir in ["home", "home/project"] {
        let dir = world.dir().join(dir);
        std::fs::create_dir(&dir).unwrap();
        chown(&dir, Some(USER), Some(USER)).unwrap();
    }
    for dir in [world.dir(), &bin] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    bin.join("atenea-sup")
}

fn as_user(home: &Path, program: &Path, args: &[&str]) -> Out {
    let mut command = Command::new("timeout");
    let user = USER.to_string();
    command.args(["60", "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.arg("--inh-caps=-all").arg(program).args(args);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
    command.current_dir(home.join("project"));
    host(&mut command)
}

#[test]
fn a_host_that_cannot_contain_a_run_refuses_it_and_never_runs_it_bare() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let world = World::new();
    let program = install(&world);
    let home = world.dir().join("home");
    let sup = |args: &[&str]| as_user(&home, &program, args);
    let doctor = sup(&["--json", "doctor"]).ends(1).object();
    assert_eq!(doctor["enforceable"], false);
    let text = sup(&["doctor"]).ends(1).out;
    for line in ["not tried mount-point-symlink ", "not tried sandbox ", "\n          host.no_"] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    for row in doctor["features"].as_array().unwrap() {
        let code = row["code"].as_str();
        assert!(code.is_none_or(|code| code.starts_with("host.")), "{row}");
    }
    // S2: refused with what is missing; nothing was executed.
    let out = sup(&["run", "--", "touch", "ran"]).ends(125);
    assert!(out.err.contains("error[host."), "{out:?}");
    assert!(!home.join("project/ran").exists());
    let state = home.join(".local/state/atenea");
    let mode = std::fs::metadata(&state).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o700, "a user's state is for the user only");
    sup(&["stop"]).ends(0);
}
