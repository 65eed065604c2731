//! A process that enters a group by itself and then executes a command: what the launcher's child
//! does after its fork.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atenea_cgroup::{Base, Layout, Limits, Place, RunGroup, Wait};

/// Generous: a wait ends by its event, this only bounds a failure.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) const LIMITS: Limits = Limits { cpu_millis: 2_000, memory_bytes: 256 << 20, pids: 400 };

const INSTANCE: &str = "ATENEA_CGROUP_TEST_INSTANCE";
const LIMITS_JSON: &str = "ATENEA_CGROUP_TEST_LIMITS";
const SCRIPT: &str = "ATENEA_CGROUP_TEST_SCRIPT";
const RUN: &str = "run";

/// An instance of its own per test; removed at the end, also when the test fails.
pub(crate) struct Instance {
    pub(crate) base: Base,
}

impl Instance {
    pub(crate) fn new(test: &str) -> Self {
        let layout = Layout::detect().expect("these tests need a writable cgroup");
        let instance = format!("test-{test}-{}", std::process::id());
        Instance { base: Base::open_or_create(&layout, &instance).unwrap() }
    }

    pub(crate) fn create(&self, limits: Limits) -> RunGroup {
        RunGroup::create(&self.base, RUN, &limits).unwrap()
    }

    /// Starts a process that makes the group, enters it and executes `sh -c script`.
    pub(crate) fn start(&self, limits: Limits, script: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "support::entry", "--nocapture", "--test-threads=1"])
            .env(INSTANCE, self.base.instance())
            .env(LIMITS_JSON, serde_json::to_string(&limits).unwrap())
            .env(SCRIPT, script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// A control file of a run, in the hierarchy that has this controller.
    pub(crate) fn file(&self, group: &RunGroup, controller: &str, file: &str) -> PathBuf {
        let places = group.identity().places;
        let on_v1 = |place: &&Place| place.hierarchy.split(',').any(|name| name == controller);
        let place = places.iter().find(on_v1).or(places.first()).unwrap();
        self.base.layout().path_of(place).unwrap().join(file)
    }

    /// The group that [`Instance::start`] made.
    pub(crate) fn group(&self) -> RunGroup {
        let mut groups = self.base.scan().unwrap();
        assert_eq!(groups.len(), 1);
        groups.remove(0)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        for group in self.base.scan().unwrap_or_default() {
            let ended = group.kill().and_then(|()| group.wait_empty(LONG));
            if matches!(ended, Ok(Wait::Empty)) {
                let _ = group.remove();
            }
        }
        let gone = self.base.remove_if_empty();
        assert!(std::thread::panicking() || matches!(gone, Ok(true)), "{gone:?}");
    }
}

/// Lines of a child's output from the one that says that the script runs.
pub(crate) fn read_until(child: &mut Child, wanted: &str) -> Vec<String> {
    use std::io::{BufRead as _, BufReader};
    let mut seen = Vec::new();
    let output = child.stdout.as_mut().unwrap();
    for line in BufReader::new(output).lines() {
        let line = line.unwrap();
        let done = line == wanted;
        seen.push(line);
        if done {
            return seen;
        }
    }
    panic!("the output ended without {wanted:?}: {seen:?}");
}

/// Not a test: the child of [`Instance::start`].
#[test]
fn entry() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let instance = std::env::var(INSTANCE).unwrap();
    let limits = serde_json::from_str(&std::env::var(LIMITS_JSON).unwrap()).unwrap();
    let base = Base::open_or_create(&Layout::detect().unwrap(), &instance).unwrap();
    let group = RunGroup::create(&base, RUN, &limits).unwrap();
    group.enter_current().unwrap();
    // The test harness has begun a line; the script's output starts on the next one.
    let script = format!("echo; {script}");
    let error = Command::new("/bin/sh").args(["-c", &script]).exec();
    panic!("exec failed: {error}");
}

/// Not a test: what an ordinary user is told.
#[test]
fn unprivileged_entry() {
    if std::env::var_os("ATENEA_CGROUP_TEST_UNPRIVILEGED").is_some() {
        println!("{:?}", Base::open_or_create(&Layout::detect().unwrap(), "nobody"));
    }
}
