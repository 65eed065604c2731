//! Starts a sandbox and plays the helper's part.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use atenea_init::wire::{FromInit, InitPlan, MESSAGE_BYTES_MAX, SelfTest, ToInit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType,
};

/// Nothing here takes this long; a test that would hang fails instead.
const HANG_SECONDS: i64 = 120;
/// The user who starts sandboxes when the tests run as root.
const ORDINARY_USER: &str = "65534";
/// Puts the descriptors where init expects them and closes all others, then becomes the rest of the
/// arguments. `$1` to `$3` are the descriptors' present numbers.
const PLACE_DESCRIPTORS: &str = r#"
    exec 3<&"$1" 4<&"$2" 5<&"$3"; shift 3
    keep=$1; shift
    for entry in /proc/$$/fd/*; do
        number=${entry##*/}
        if [ "$number" -gt "$keep" ]; then eval "exec $number<&-"; fi
    done
    exec "$@"
"#;

/// Where files of these tests are: readable by every user.
pub(crate) fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The static program: `ATENEA_INIT` when set, else built here once.
pub(crate) fn init_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(path) = std::env::var_os("ATENEA_INIT") {
            return PathBuf::from(path);
        }
        let target = "x86_64-unknown-linux-gnu";
        let directory = scratch().with_file_name("init-static");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "-p", "atenea-init", "--target", target])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", &directory)
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .status()
            .unwrap();
        assert!(status.success(), "atenea-init cannot be built statically");
        directory.join(target).join("debug/atenea-init")
    })
}

/// What a test changes.
pub(crate) struct Setup {
    pub(crate) plan: InitPlan,
    pub(crate) program: Vec<u8>,
    /// Arguments of bubblewrap in front of the usual ones.
    pub(crate) first: Vec<String>,
    /// The usual arguments that isolate.
    pub(crate) isolation: Vec<String>,
    /// Arguments of bubblewrap after the usual ones.
    pub(crate) last: Vec<String>,
    /// Commands around bubblewrap, run by the ordinary user.
    pub(crate) around: Vec<String>,
    /// Commands around everything, run by the test's user.
    pub(crate) outside: Vec<String>,
    /// The last descriptor that is not closed.
    pub(crate) last_fd: u32,
}

pub(crate) fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Setup {
    /// A usual sandbox for this command.
    pub(crate) fn new(command: &[&str]) -> Self {
        let canary = scratch().join("canary");
        std::fs::write(&canary, "seen").unwrap();
        let bytes = |text: &str| text.as_bytes().to_vec();
        let environment = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/agent", "LANG=C.UTF-8"];
        Self {
            plan: InitPlan {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                argv: command.iter().map(|word| bytes(word)).collect(),
                env: environment.iter().map(|variable| bytes(variable)).collect(),
                cwd: bytes("/home/agent"),
                tty: None,
                rlimits: Vec::new(),
                canary: canary.into_os_string().into_encoded_bytes(),
            },
            program: crate::seccomp::agent_filter().unwrap(),
            first: Vec::new(),
            isolation: strings(&[
                "--unshare-user",
                "--unshare-pid",
                "--unshare-ipc",
                "--unshare-uts",
                "--unshare-cgroup",
                "--unshare-net",
                "--disable-userns",
            ]),
            last: strings(&["--remount-ro", "/"]),
            around: Vec::new(),
            outside: Vec::new(),
            last_fd: 5,
        }
    }

    fn command(&self, fds: [&OwnedFd; 3]) -> Vec<String> {
        let mut words = self.outside.clone();
        if rustix::process::geteuid().is_root() {
            words.extend(strings(&["setpriv", "--reuid", ORDINARY_USER, "--regid", ORDINARY_USER]));
            words.extend(strings(&["--clear-groups", "--"]));
        }
        words.extend(strings(&["bash", "-c", PLACE_DESCRIPTORS, "place"]));
        words.extend(fds.iter().map(|fd| fd.as_raw_fd().to_string()));
        words.push(self.last_fd.to_string());
        words.extend(self.around.iter().cloned());
        words.push("bwrap".to_owned());
        words.extend(self.first.iter().cloned());
        words.extend(self.isolation.iter().cloned());
        words.extend(strings(&[
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            "--as-pid-1",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/bin",
            "/bin",
            "--symlink",
            "usr/lib",
            "/lib",
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--tmpfs",
            "/home/agent",
            "--tmpfs",
            "/run",
            "--dir",
            "/etc",
        ]));
        let program = init_program().to_str().unwrap();
        words.extend(strings(&["--ro-bind", program, "/run/atenea-init"]));
        words.extend(self.last.iter().cloned());
        words.push("/run/atenea-init".to_owned());
        words
    }

    /// Starts it.
    pub(crate) fn start(&self) -> Running {
        let plan = rmp_serde::to_vec_named(&self.plan).unwrap();
        let (plan, program) = (memory(&plan), memory(&self.program));
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        // High numbers, so that none of them is one of the places.
        let keep = |fd: &OwnedFd| {
            let high = rustix::io::fcntl_dupfd_cloexec(fd, 100).unwrap();
            rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
            high
        };
        let (theirs, plan, program) = (keep(&theirs), keep(&plan), keep(&program));
        let words = self.command([&theirs, &plan, &program]);
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = File::from(OwnedFd::from(child.stdout.take().unwrap()));
        let stderr = File::from(OwnedFd::from(child.stderr.take().unwrap()));
        Running { child, socket: Some(ours), stdin, stdout, stderr }
    }

    /// Starts it, expects Ready, says Go, expects Started.
    pub(crate) fn run(&self) -> Running {
        let mut running = self.start();
        running.ready();
        running.tell(&ToInit::Go);
        match running.hear() {
            Some(FromInit::Started { .. }) => running,
            other => panic!("{other:?}, stderr {}", running.errors()),
        }
    }
}

/// A memory file with this content, as the launcher makes them.
fn memory(bytes: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("atenea-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(bytes).unwrap();
    OwnedFd::from(file)
}

/// A started sandbox.
pub(crate) struct Running {
    child: Child,
    socket: Option<OwnedFd>,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: File,
    stderr: File,
}

impl Running {
    /// Sends a message.
    pub(crate) fn tell(&self, message: &ToInit) {
        let bytes = rmp_serde::to_vec_named(message).unwrap();
        rustix::net::send(self.socket.as_ref().unwrap(), &bytes, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next message and its descriptors; `None` at the end of the stream.
    pub(crate) fn hear_with_fds(&self) -> Option<(FromInit, Vec<OwnedFd>)> {
        let socket = self.socket.as_ref().unwrap();
        wait_readable(socket);
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags).unwrap();
        let fds = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            })
            .collect();
        if received.bytes == 0 {
            return None;
        }
        Some((rmp_serde::from_slice(&buffer[..received.bytes]).unwrap(), fds))
    }

    /// The next message.
    pub(crate) fn hear(&self) -> Option<FromInit> {
        self.hear_with_fds().map(|(message, _)| message)
    }

    /// Expects Ready.
    pub(crate) fn ready(&mut self) -> (Vec<SelfTest>, Vec<OwnedFd>) {
        match self.hear_with_fds() {
            Some((FromInit::Ready { self_test }, fds)) => (self_test, fds),
            other => panic!("{other:?}, stderr {}", self.errors()),
        }
    }

    /// Expects Failed with this step; its errno and detail.
    pub(crate) fn failed(&mut self, expected: &str) -> (i32, String) {
        match self.hear() {
            Some(FromInit::Failed { step, errno, detail }) if step == expected => (errno, detail),
            other => panic!("{other:?}, stderr {}", self.errors()),
        }
    }

    /// Expects Exited; its wait status.
    pub(crate) fn exited(&mut self) -> i32 {
        match self.hear() {
            Some(FromInit::Exited { wait_status, .. }) => wait_status,
            other => panic!("{other:?}, stderr {}", self.errors()),
        }
    }

    /// Closes the supervision socket, as the death of the helper does.
    pub(crate) fn leave(&mut self) {
        self.socket = None;
    }

    /// Everything on standard output until nobody holds it any more.
    pub(crate) fn output(&mut self) -> String {
        read_to_end(&mut self.stdout)
    }

    /// Everything on standard error until nobody holds it any more.
    pub(crate) fn errors(&mut self) -> String {
        self.stdin = None;
        read_to_end(&mut self.stderr)
    }

    /// bubblewrap's own exit status.
    pub(crate) fn status(mut self) -> Option<i32> {
        self.stdin = None;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ends the sandbox when a test failed in the middle.
        self.socket = None;
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_readable(fd: impl AsFd) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let bound = Timespec { tv_sec: HANG_SECONDS, tv_nsec: 0 };
    assert_ne!(poll(&mut fds, Some(&bound)).unwrap(), 0, "nothing came");
}

/// Reads what comes next.
pub(crate) fn read_some(file: &mut File) -> Vec<u8> {
    wait_readable(&*file);
    let mut buffer = vec![0; 64 << 10];
    match file.read(&mut buffer) {
        Ok(len) => buffer.truncate(len),
        // A terminal without a program.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => buffer.clear(),
        Err(error) => panic!("{error}"),
    }
    buffer
}

/// Reads until `wanted` came; answers all of it.
pub(crate) fn read_until(file: &mut File, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        let some = read_some(file);
        assert!(!some.is_empty(), "ended without {wanted:?}: {seen}");
        seen.push_str(&String::from_utf8_lossy(&some));
    }
    seen
}

fn read_to_end(file: &mut File) -> String {
    let mut seen = Vec::new();
    loop {
        let some = read_some(file);
        if some.is_empty() {
            return String::from_utf8_lossy(&seen).into_owned();
        }
        seen.extend(some);
    }
}

/// A directory that the ordinary user may enter.
pub(crate) fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).unwrap();
    directory
}
