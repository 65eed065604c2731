//! The same tests as an ordinary user: in control groups that root delegated to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Test;

pub(crate) const TESTS: &[Test] = &[("all_of_it_works_as_an_ordinary_user", as_an_ordinary_user)];

const USER: u32 = 65_534;

/// Groups made for the user, removed at the end.
struct Delegated {
    /// Where its first process belongs.
    entered: Vec<PathBuf>,
    /// In the order in which they can be removed.
    made: Vec<PathBuf>,
}

impl Delegated {
    /// One group below the own one in each hierarchy that a run needs.
    fn new() -> Self {
        let name = format!("atenea-delegated-{}", std::process::id());
        let mut delegated = Delegated { entered: Vec::new(), made: Vec::new() };
        for line in std::fs::read_to_string("/proc/self/cgroup").unwrap().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, own) = (fields.next().unwrap(), fields.next().unwrap());
            let own = Path::new(own.trim_start_matches('/'));
            let root = Path::new("/sys/fs/cgroup");
            match controllers {
                "" if root.join("unified").exists() => {
                    delegated.on_hybrid(root.join("unified").join(own).join(&name));
                }
                "" => delegated.on_unified(&root.join(own), &name),
                "cpu" | "memory" | "pids" | "cpu,cpuacct" => {
                    delegated.on_hybrid(root.join(controllers).join(own).join(&name));
                }
                _ => {}
            }
        }
        delegated
    }

    fn on_hybrid(&mut self, dir: PathBuf) {
        self.give(dir.clone());
        self.entered.push(dir);
    }

    /// As systemd does with `Delegate=` and `DelegateSubgroup=`. This process is in a leaf, which cannot
    /// limit children: the group is made beside it, and has a leaf of its own.
    fn on_unified(&mut self, own: &Path, name: &str) {
        assert!(own.ends_with("supervisor"), "{}: start these tests in a leaf", own.display());
        let parent = own.parent().unwrap();
        std::fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory +pids").unwrap();
        let dir = parent.join(name);
        self.give(dir.clone());
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&dir, "user.delegate", b"1", flags).unwrap();
        let leaf = dir.join("supervisor");
        self.give(leaf.clone());
        self.entered.push(leaf);
    }

    /// Makes a group and gives it away.
    fn give(&mut self, dir: PathBuf) {
        std::fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
        for file in ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"] {
            let file = dir.join(file);
            if file.exists() {
                std::os::unix::fs::chown(file, Some(USER), Some(USER)).unwrap();
            }
        }
        self.made.insert(0, dir);
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for dir in &self.made {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn as_an_ordinary_user() {
    // Each test of the other process has its own bound.
    nix::unistd::alarm::cancel();
    let delegated = Delegated::new();
    let enter: String = delegated
        .entered
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
    for dir in &delegated.made {
        std::fs::remove_dir(dir).unwrap_or_else(|e| panic!("{} is left: {e}", dir.display()));
    }
}
