//! S6: the supervisor is nobody's deputy. It serves its own user and root, and what it opens for a
//! client is what the client could open.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::delegated::Delegated;
use crate::hostile::nameless;
use crate::ordinary_user::{USER, install};
use crate::support::{World, git, host, picture, repository};

/// Asks who listens whether it is well, and prints the first line of the answer.
const ASK: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
try:
    s.sendall(b'GET /v1/health HTTP/1.1\\r\\nhost: atenea\\r\\nconnection: close\\r\\n\\r\\n')
    print(s.makefile().readline().strip())
except (ConnectionResetError, BrokenPipeError):
    print()";

#[test]
fn s6_a_supervisor_answers_its_own_user_and_root_and_nobody_else() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let world = World::new();
    world.sup(&["status"]).ends(0);
    let info = world.sup(&["--json", "info"]).ends(0).object();
    let socket = info["socket"].as_str().unwrap();
    // Its file mode keeps others away already: here it does not.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let user = USER.to_string();
    let mut ask = Command::new("setpriv");
    ask.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--inh-caps=-all"]);
    ask.args(["timeout", "60", "python3", "-c", ASK, socket]);
    assert_eq!(host(&mut ask).ends(0).out, "\n", "another user was answered");
    let log = std::fs::read_to_string(world.state().join("supervisor.log")).unwrap();
    assert!(log.contains(&format!("refused a connection of uid {USER}")), "{log}");
    // Control: the same question of its own user.
    let out = host(Command::new("timeout").args(["60", "python3", "-c", ASK, socket])).ends(0);
    assert_eq!(out.out, "HTTP/1.1 200 OK\n");
}

#[test]
fn s6_a_path_that_its_user_cannot_open_is_not_opened_for_a_run() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let world = World::new();
    let groups = Delegated::new();
    let program = install(&world);
    let home = world.dir().join("home");
    std::fs::write(home.join("project/own"), "own\n").unwrap();
    let secret = world.dir().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("key"), "key\n").unwrap();
    let closed = |mode| {
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    closed(0o700);
    let sup = |args: &[&str]| groups.as_user(&home, &program, args);
    // Control: a run of this user works.
    assert_eq!(sup(&["run", "--", "cat", "own"]).ends(0).out, "own\n");
    // Its limits hold as well, also for what is open without a name.
    let held = nameless("held.append(f)");
    let write = ["run", "--profile", "workspace-write", "--disk", "16MiB", "--", "sh", "-c", &held];
    sup(&write).ends(137).says("limit.disk");
    let path = secret.to_str().unwrap();
    let key = format!("{path}/key");
    let workspace = ["run", "--workspace", path, "--", "cat", "key"];
    let mount = ["run", "--mount", &key, "--", "cat", &key];
    for profile in ["read", "workspace-write"] {
        let args = [&["run", "--profile", profile][..], &workspace[1..]].concat();
        let out = sup(&args).ends(125).says("fs.not_yours");
        assert!(!out.out.contains("key"), "{out:?}");
    }
    sup(&mount).ends(125).says("fs.not_yours");
    // Control: with the right to read them they are opened.
    closed(0o755);
    assert_eq!(sup(&workspace).ends(0).out, "key\n");
    assert_eq!(sup(&mount).ends(0).out, "key\n");
    sup(&["stop"]).ends(0);
}

#[test]
fn s6_a_ref_that_the_repositorys_owner_cannot_write_is_not_written_by_root_and_not_called_badly_named()
 {
    assert!(rustix::process::geteuid().is_root(), "this test changes owners: run it as root");
    let world = World::new();
    let work = world.work();
    repository(&work);
    let give = |path: &Path, uid| std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
    give(&work, USER);
    picture(&work).iter().for_each(|(path, ..)| give(path, USER));
    // Its owner has to reach it, and may not make a ref in it.
    std::fs::set_permissions(world.dir(), std::fs::Permissions::from_mode(0o711)).unwrap();
    give(&work.join(".git/refs"), 0);
    world.shell(&["--profile", "workspace-write"], "echo two >> file").ends(0);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    world.sup(&["export", &run]).ends(4).says("fs.not_yours");
    assert_eq!(git(&work, &["for-each-ref", "--format=%(refname)"]), "refs/heads/main\n");
    // Control: with the right to do it, the same name is a good one.
    give(&work.join(".git/refs"), USER);
    world.sup(&["export", &run]).ends(0);
}

#[test]
fn to_look_into_processes_is_in_force_for_nobody_most_of_the_time_and_no_child_gets_it() {
    assert!(rustix::process::geteuid().is_root(), "only root has it: run this test so");
    let world = World::new();
    world.sup(&["run", "--", "true"]).ends(0);
    let status = format!("/proc/{}/status", world.supervisor().pid);
    let status = std::fs::read_to_string(status).unwrap();
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
    };
    // CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE.
    let look = 1 << 19 | 1 << 40;
    assert_eq!(set("CapPrm") & look, look);
    for name in ["CapEff", "CapBnd", "CapInh", "CapAmb"] {
        assert_eq!(set(name) & look, 0, "{name}");
    }
}

#[test]
fn other_users_of_the_host_cannot_reach_a_workspace_whatever_mode_the_agent_gives_it() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let world = World::new();
    let open = "echo secret > own; chmod 777 . own; echo ready; sleep 1000";
    let run = world.ready(&["--profile", "workspace-write"], open);
    let guard = world.run_dir(&run).join("ws");
    let file = guard.join("tree/own");
    let path = file.to_str().unwrap();
    let user = USER.to_string();
    let read = || {
        let mut cat = Command::new("setpriv");
        cat.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--inh-caps=-all"]);
        host(cat.args(["cat", path]))
    };
    assert_eq!(read().ends(1).out, "");
    // Control: without the guard the agent's modes would let everybody in.
    std::fs::set_permissions(&guard, std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::set_permissions(world.dir(), std::fs::Permissions::from_mode(0o711)).unwrap();
    assert_eq!(read().ends(0).out, "secret\n");
    world.sup(&["cancel", &run, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &run]).ends(137);
}
