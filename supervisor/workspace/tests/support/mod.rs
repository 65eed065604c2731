//! Real repositories in throw-away directories.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use atenea_core::Refusal;
use atenea_workspace::export::Message;
use atenea_workspace::{
    Clone as PrivateClone, CloneOptions, Identity, NoProgress, RawPath, SealOptions, Sealed,
    Snapshot, SnapshotOptions, Source, clone_private, import_ref, inspect, knows, pack_export,
    seal, snapshot,
};
use tempfile::TempDir;

/// A directory for one test: `project` is the user's, the rest is the supervisor's.
pub struct Bench {
    pub dir: TempDir,
    pub project: PathBuf,
    pub cache: PathBuf,
    pub ws: PathBuf,
    pub store: PathBuf,
}

pub fn bench() -> Bench {
    bench_named("project")
}

pub fn bench_named(name: &str) -> Bench {
    bench_within(&std::env::temp_dir(), name)
}

pub fn bench_within(place: &Path, name: &str) -> Bench {
    let dir = tempfile::tempdir_in(place).unwrap();
    let root = dir.path().canonicalize().unwrap();
    let project = root.join(name);
    std::fs::create_dir(&project).unwrap();
    Bench {
        cache: root.join("cache"),
        ws: root.join("run/ws"),
        store: root.join("run/base.git"),
        project,
        dir,
    }
}

impl Bench {
    pub fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    /// A repository with one commit.
    pub fn repository(self) -> Self {
        git(&self.project, &["init", "-q", "-b", "main"]);
        self.write("README.md", "hello\n");
        self.write("src/main.rs", "fn main() {}\n");
        self.write(".gitignore", "target/\n*.log\n");
        self.write("run.sh", "#!/bin/sh\n");
        chmod(&self.project.join("run.sh"), 0o755);
        std::os::unix::fs::symlink("README.md", self.project.join("link")).unwrap();
        self.commit("first");
        self
    }

    pub fn commit(&self, message: &str) -> String {
        git(&self.project, &["add", "-A"]);
        git(&self.project, &["commit", "-q", "-m", message]);
        git(&self.project, &["rev-parse", "HEAD"]).trim().to_owned()
    }

    pub fn write(&self, path: impl AsRef<OsStr>, text: impl AsRef<[u8]>) {
        write(&self.project.join(Path::new(&path)), text);
    }

    pub fn edit(&self, path: impl AsRef<OsStr>, text: impl AsRef<[u8]>) {
        write(&self.ws.join(Path::new(&path)), text);
    }

    pub fn source(&self) -> Source {
        inspect(&self.project, None).unwrap()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(&SnapshotOptions::default())
    }

    pub fn snapshot_with(&self, options: &SnapshotOptions) -> Snapshot {
        snapshot(&self.source(), &self.cache, options, &mut NoProgress).unwrap()
    }

    pub fn clone(&self) -> PrivateClone {
        self.clone_with(&CloneOptions { identity: ada(), ..CloneOptions::default() })
    }

    pub fn clone_with(&self, options: &CloneOptions) -> PrivateClone {
        std::fs::create_dir_all(self.ws.parent().unwrap()).unwrap();
        let (ws, store) = (&self.ws, &self.store);
        clone_private(&self.source(), ws, store, &self.cache, options, &mut NoProgress).unwrap()
    }

    pub fn seal(&self) -> Sealed {
        seal(&self.ws, &self.store, &SealOptions::default(), &mut NoProgress).unwrap()
    }
}

pub fn ada() -> Identity {
    Identity {
        name: Some("Ada \"A\" \\ L".to_owned()),
        email: Some("ada@example.org".to_owned()),
        ..Identity::default()
    }
}

/// An export.
#[derive(Debug)]
pub struct Exported {
    pub commit: String,
    pub base: Option<String>,
    pub repeated: bool,
}

/// The three steps of an export, as the supervisor orders them.
pub fn export_ref(
    store: &Path,
    sealed: &Sealed,
    source: &Source,
    name: &RawPath,
    expected: Option<&str>,
    message: &Message,
    identity: &Identity,
) -> Result<Exported, Refusal> {
    let meta = std::fs::read(store.join("base.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&meta).unwrap();
    let known = meta["base_commit"].as_str().is_some_and(|base| knows(source, base).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let pack = dir.path().join("pack");
    let packed = pack_export(store, sealed, known, message, identity, &pack, None)?;
    let repeated = import_ref(source, name, &packed.commit, expected, &pack)?;
    Ok(Exported { commit: packed.commit, base: packed.base, repeated })
}

pub fn raw(path: impl AsRef<[u8]>) -> RawPath {
    RawPath(path.as_ref().to_vec())
}

pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

pub fn write(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// git as the user or agent has it, with a configuration that does not depend on the machine.
pub fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_DATE", "1700000000 +0000")
        .env("GIT_COMMITTER_DATE", "1700000000 +0000")
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.org"])
        .args(["-c", "protocol.file.allow=always", "-c", "safe.directory=*"]);
    command
}

pub fn git(dir: &Path, args: &[&str]) -> String {
    String::from_utf8_lossy(&git_bytes(dir, args)).into_owned()
}

pub fn git_bytes(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = git_command(dir).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Every file below a directory with its content, kind, mode and change time.
pub fn picture(dir: &Path) -> std::collections::BTreeMap<PathBuf, String> {
    use std::os::unix::fs::MetadataExt;
    let mut seen = std::collections::BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            String::new()
        } else if meta.is_symlink() {
            format!("{:?}", std::fs::read_link(&path).unwrap())
        } else if meta.is_file() {
            format!("{:?}", std::fs::read(&path).unwrap())
        } else {
            "special".to_owned()
        };
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        seen.insert(path, format!("{:o} {times:?} {content}", meta.mode()));
    }
    seen
}
