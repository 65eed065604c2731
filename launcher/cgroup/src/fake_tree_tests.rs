//! Both layouts on directories that only look like hierarchies: what is read, what is written and
//! in which form. That the kernel then does it is shown by `tests/kernel` and on a unified host.

use std::fs;
use std::path::{Path, PathBuf};

use crate::dir::Dir;
use crate::layout::LEAF;
use crate::{Base, Controller, Error, Kind, Layout, Limits, limits};

struct Fake {
    root: tempfile::TempDir,
}

impl Fake {
    fn new() -> Self {
        Fake { root: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    /// Makes a file with its directories.
    fn put(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path)).unwrap()
    }

    fn line(&self, point: &str, root: &str, fs_type: &str, options: &str) -> String {
        let point = self.path().join(point);
        let point = point.display().to_string();
        let point = point.trim_end_matches('/');
        format!("30 1 0:30 {root} {point} rw - {fs_type} {fs_type} rw,{options}\n")
    }

    fn hybrid(&self, cgroup: &str, v1: &[&str]) -> crate::Result<Layout> {
        let mut mounts = self.line("unified", "/", "cgroup2", "nsdelegate");
        for name in v1 {
            fs::create_dir_all(self.path().join(name)).unwrap();
            mounts += &self.line(name, "/", "cgroup", name);
        }
        Layout::from_texts(Kind::Hybrid, self.path(), cgroup, mounts.as_bytes())
    }

    fn unified(&self, own: &str) -> crate::Result<Layout> {
        let mounts = self.line("", "/", "cgroup2", "nsdelegate");
        Layout::from_texts(Kind::Unified, self.path(), &format!("0::{own}\n"), mounts.as_bytes())
    }

    /// A delegated group as systemd makes it.
    fn delegated(&self, controllers: &str) {
        self.put("d/cgroup.controllers", controllers);
        self.put("d/cgroup.type", "domain\n");
        self.put("d/cgroup.subtree_control", "");
        self.put("d/supervisor/cgroup.procs", "");
        self.put("d/atenea-i/cgroup.subtree_control", "");
        self.put("cgroup.subtree_control", "");
    }
}

const HYBRID: &str = "5:pids:/a\n4:memory:/m/n\n2:cpu,cpuacct:/\n0::/v\n";

#[test]
fn a_hybrid_host_has_its_controllers_on_v1_and_an_own_group_in_each_hierarchy() {
    let fake = Fake::new();
    let layout = fake.hybrid(HYBRID, &["cpu,cpuacct", "memory", "pids"]).unwrap();
    let seen: Vec<_> = layout
        .trees()
        .iter()
        .map(|t| (t.name.as_str(), t.own.to_str().unwrap(), t.controllers.clone()))
        .collect();
    assert_eq!(
        seen,
        [
            ("v2", "v", vec![]),
            ("cpu,cpuacct", "", vec![Controller::Cpu]),
            ("memory", "m/n", vec![Controller::Memory]),
            ("pids", "a", vec![Controller::Pids]),
        ]
    );
}

#[test]
fn a_controller_that_is_on_neither_version_is_named() {
    let fake = Fake::new();
    fake.put("unified/v/cgroup.controllers", "hugetlb\n");
    let missing = fake.hybrid(HYBRID, &["cpu,cpuacct", "memory"]);
    let Err(error) = missing else { panic!("{missing:?}") };
    assert!(
        matches!(&error, Error::MissingController { controller: Controller::Pids, .. }),
        "{error:?}"
    );
    assert!(error.is_host_support());
}

#[test]
fn a_controller_of_a_hybrid_host_may_also_be_on_its_v2_tree() {
    let fake = Fake::new();
    fake.put("unified/v/cgroup.controllers", "pids\n");
    let layout = fake.hybrid(HYBRID, &["cpu,cpuacct", "memory"]).unwrap();
    assert_eq!(layout.trees()[0].controllers, [Controller::Pids]);
}

#[test]
fn a_host_without_a_v2_tree_is_told_apart_from_one_without_a_controller() {
    let fake = Fake::new();
    let mounts = fake.line("memory", "/", "cgroup", "memory");
    let none = Layout::from_texts(Kind::Hybrid, fake.path(), HYBRID, mounts.as_bytes());
    assert!(matches!(none, Err(Error::NoCgroup2 { .. })), "{none:?}");
}

#[test]
fn an_own_group_outside_of_what_is_mounted_is_refused_and_never_climbed_to() {
    let fake = Fake::new();
    fake.put("cgroup.controllers", "cpu memory pids\n");
    for (root, own) in [("/d", "/e"), ("/", "/../x")] {
        let mounts = fake.line("", root, "cgroup2", "nsdelegate");
        let text = format!("0::{own}\n");
        let outside = Layout::from_texts(Kind::Unified, fake.path(), &text, mounts.as_bytes());
        assert!(matches!(outside, Err(Error::Outside { .. })), "{root} {own}: {outside:?}");
    }
}

#[test]
fn on_a_unified_host_only_the_delegated_group_is_written_and_the_process_moves_to_a_leaf() {
    let fake = Fake::new();
    fake.delegated("cpu io memory pids\n");
    let layout = fake.unified("/d").unwrap();
    Base::open_or_create(&layout, "i").unwrap();
    assert_eq!(fake.get("d/supervisor/cgroup.procs"), "0");
    assert_eq!(fake.get("d/cgroup.subtree_control"), "+cpu +memory +pids");
    assert_eq!(fake.get("d/atenea-i/cgroup.subtree_control"), "+cpu +memory +pids");
    assert_eq!(fake.get("cgroup.subtree_control"), "", "an ancestor was written");
}

#[test]
fn controllers_that_are_enabled_already_are_not_written_again() {
    let fake = Fake::new();
    fake.delegated("cpu memory pids\n");
    fake.put("d/cgroup.subtree_control", "cpu pids\n");
    fake.put("d/atenea-i/cgroup.subtree_control", "cpu memory pids\n");
    Base::open_or_create(&fake.unified("/d").unwrap(), "i").unwrap();
    // The fake file keeps what a shorter write does not overwrite.
    assert!(fake.get("d/cgroup.subtree_control").starts_with("+memory"));
    assert_eq!(fake.get("d/atenea-i/cgroup.subtree_control"), "cpu memory pids\n");
}

#[test]
fn a_process_that_starts_in_our_leaf_uses_its_parent_but_no_other_leaf_of_that_name() {
    let fake = Fake::new();
    fake.delegated("cpu memory pids\n");
    fake.put("d/supervisor/cgroup.controllers", "cpu memory pids\n");
    let in_foreign_leaf = fake.unified("/d/supervisor").unwrap();
    assert_eq!(in_foreign_leaf.trees()[0].own, Path::new("d").join(LEAF));
    Base::open_or_create(&fake.unified("/d").unwrap(), "i").unwrap();
    let in_our_leaf = fake.unified("/d/supervisor").unwrap();
    assert_eq!(in_our_leaf.trees()[0].own, Path::new("d"));
    assert!(in_our_leaf.in_leaf());
}

#[test]
fn limits_are_written_in_the_form_of_v2() {
    let fake = Fake::new();
    for (file, text) in [
        ("cpu.max", "max 100000\n"),
        ("memory.max", "max\n"),
        ("memory.swap.max", "max\n"),
        ("memory.oom.group", "0\n"),
        ("pids.max", "max\n"),
    ] {
        fake.put(file, text);
    }
    let dir = Dir::open_mount(fake.path()).unwrap();
    let wanted = Limits { cpu_millis: 1_500, memory_bytes: 1 << 20, pids: 7 };
    limits::set(&dir, true, &Controller::ALL, &wanted).unwrap();
    assert_eq!(fake.get("cpu.max"), "150000 100000");
    assert_eq!(fake.get("memory.max"), "1048576");
    assert_eq!(fake.get("memory.swap.max"), "0");
    assert_eq!(fake.get("memory.oom.group").trim(), "1");
    assert_eq!(fake.get("pids.max"), "7");
}

#[test]
fn a_limit_whose_file_is_missing_is_an_error_that_names_it_and_creates_no_file() {
    let fake = Fake::new();
    let dir = Dir::open_mount(fake.path()).unwrap();
    let wanted = Limits { cpu_millis: 1_500, memory_bytes: 1 << 20, pids: 7 };
    let refused = limits::set(&dir, false, &[Controller::Pids], &wanted);
    let Err(Error::LimitNotSet { file, source, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(file, fake.path().join("pids.max"));
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
    assert!(!file.exists());
}

#[test]
fn a_process_that_is_not_in_a_leaf_shares_its_group_with_a_supervisor_that_it_starts() {
    let fake = Fake::new();
    fake.delegated("cpu memory pids\n");
    fake.put("d/supervisor/cgroup.controllers", "cpu memory pids\n");
    fake.put("cgroup.controllers", "cpu memory pids\n");
    assert!(fake.unified("/d").unwrap().is_shared());
    assert!(fake.unified("/d/supervisor").unwrap().is_shared(), "a leaf of somebody else");
    Base::open_or_create(&fake.unified("/d").unwrap(), "i").unwrap();
    assert!(!fake.unified("/d/supervisor").unwrap().is_shared());
    // The root of the hierarchy may hold processes.
    assert!(!fake.unified("/").unwrap().is_shared());
    let hybrid = Fake::new();
    let hybrid = hybrid.hybrid(HYBRID, &["cpu,cpuacct", "memory", "pids"]);
    assert!(!hybrid.unwrap().is_shared());
}
