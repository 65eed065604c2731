//! The same tests as an ordinary user: in control groups that root delegated to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Test;

pub(crate) const TESTS: &[Test] = &[("all_of_it_works_as_an_ordinary_user", as_an_ordinary_user)];

const USER: u32 = 65_534;

/// Groups made for the user, removed at the end.
struct Delegated(Vec<PathBuf>);

impl Delegated {
    /// One group below the own one in each hierarchy that a run needs.
    fn new() -> Self {
        let name = format!("atenea-delegated-{}", std::process::id());
        let mut made = Delegated(Vec::new());
        for line in std::fs::read_to_string("/proc/self/cgroup").unwrap().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, own) = (fields.next().unwrap(), fields.next().unwrap());
            let mount = match controllers {
                "" if Path::new("/sys/fs/cgroup/unified").exists() => "unified",
                "" => "",
                "cpu" | "memory" | "pids" | "cpu,cpuacct" => controllers,
                _ => continue,
            };
            let own = own.trim_start_matches('/');
            let dir = Path::new("/sys/fs/cgroup").join(mount).join(own).join(&name);
            std::fs::create_dir(&dir).unwrap();
            made.0.push(dir.clone());
            std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
            for entry in std::fs::read_dir(&dir).unwrap() {
                let file = entry.unwrap().file_name();
                let name = file.to_str().unwrap();
                if ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"]
                    .contains(&name)
                {
                    std::os::unix::fs::chown(dir.join(name), Some(USER), Some(USER)).unwrap();
                }
            }
        }
        made
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for dir in &self.0 {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn as_an_ordinary_user() {
    // Each test of the other process has its own bound.
    nix::unistd::alarm::cancel();
    let delegated = Delegated::new();
    let enter: String = delegated
        .0
        .iter()
        .map(|dir| format!("echo $$ > {}/cgroup.procs && ", dir.display()))
        .collect();
    let user = USER.to_string();
    let script = format!(
        "{enter}exec setpriv --reuid {user} --regid {user} --clear-groups --inh-caps=-all \
         --bounding-set=-all --no-new-privs \"$0\" \"$@\""
    );
    let own = std::env::current_exe().unwrap();
    let filters: Vec<String> =
        std::env::args().skip(1).filter(|a| a.starts_with("user:")).collect();
    let status = Command::new("sh")
        .args(["-c", &script])
        .arg(own)
        .args(filters.iter().map(|filter| filter.trim_start_matches("user:")))
        .status()
        .unwrap();
    assert!(status.success(), "as uid {USER}: {status}");
    for dir in &delegated.0 {
        std::fs::remove_dir(dir).unwrap_or_else(|e| panic!("{} is left: {e}", dir.display()));
    }
}
