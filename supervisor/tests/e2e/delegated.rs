//! Control groups that root made for an ordinary user.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ordinary_user::USER;
use crate::support::{Out, host};

/// Groups made for the user, removed at the end.
pub(crate) struct Delegated {
    /// Where its first process belongs.
    entered: Vec<PathBuf>,
    /// In the order in which they can be removed.
    made: Vec<PathBuf>,
}

impl Delegated {
    /// One group below the own one in each hierarchy that a run needs.
    pub(crate) fn new() -> Self {
        let name = format!("atenea-rights-{}", std::process::id());
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
        chown(&dir, Some(USER), Some(USER)).unwrap();
        for file in ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"] {
            let file = dir.join(file);
            if file.exists() {
                chown(file, Some(USER), Some(USER)).unwrap();
            }
        }
        self.made.insert(0, dir);
    }

    /// Runs the program as the user, in these groups.
    pub(crate) fn as_user(&self, home: &Path, program: &Path, args: &[&str]) -> Out {
        let enter = |dir: &PathBuf| format!("echo $$ > {}/cgroup.procs && ", dir.display());
        let enter: String = self.entered.iter().map(enter).collect();
        let user = USER.to_string();
        let script = format!(
            "{enter}exec setpriv --reuid {user} --regid {user} --clear-groups --inh-caps=-all \
             --bounding-set=-all --no-new-privs \"$0\" \"$@\""
        );
        let mut command = Command::new("timeout");
        command.args(["60", "sh", "-c", &script]).arg(program).args(args);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
        command.current_dir(home.join("project"));
        host(&mut command)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for dir in &self.made {
            let removed = std::fs::remove_dir(dir);
            assert!(std::thread::panicking() || removed.is_ok(), "{removed:?}: {}", dir.display());
        }
    }
}
