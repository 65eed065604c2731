//! State directories with runs in them, and this program started again as somebody else.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use atenea_core::RunId;
use atenea_reaper::{Permission, State};

pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) state: State,
    pub(crate) run: RunId,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Fixture::within(&std::env::temp_dir())
    }

    pub(crate) fn within(place: &Path) -> Self {
        let dir = tempfile::tempdir_in(place).unwrap();
        let run = RunId::from_random(0x1234_5678_9abc);
        std::fs::create_dir_all(dir.path().join("runs").join(run.as_str()).join("ws")).unwrap();
        let state = State::open(dir.path()).unwrap();
        Fixture { dir, state, run }
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("runs").join(self.run.as_str())
    }

    pub(crate) fn ws(&self) -> PathBuf {
        self.run_dir().join("ws")
    }

    pub(crate) fn permission(&self) -> Permission {
        Permission::discarded(self.run.clone())
    }
}

/// A copy of this test program that any user may execute.
pub(crate) struct Program {
    dir: tempfile::TempDir,
}

impl Program {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        for path in [dir.path(), &path] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        Program { dir }
    }

    /// A directory of the ordinary user that tests use.
    pub(crate) fn users_dir(&self) -> PathBuf {
        let dir = self.dir.path().join("user");
        std::fs::create_dir_all(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
        dir
    }

    /// The command that runs one function of this program, for use in a shell as `$TEST`.
    pub(crate) fn call(&self, function: &str) -> String {
        let path = self.dir.path().join("test");
        format!("{} --exact {function} --nocapture --test-threads=1", path.display())
    }
}

pub(crate) const USER: u32 = 65_534;

/// Runs a shell script as an ordinary user without any right of root.
pub(crate) fn as_user(script: &str, dir: &Path, env: &[(&str, &str)]) -> Output {
    Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"])
        .args(["sh", "-euc", script])
        .current_dir(dir)
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}
