//! The file and its owner, every setting, the directories. Needs no environment: [`Surroundings`]
//! are values, and every path lies in a directory of the test's own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use atenea_core::event::Period;
use atenea_core::manifest::{check, parse_toml};
use atenea_core::{Code, Limits, Nanos, Refusal};
use tempfile::TempDir;

use super::*;

/// A host of the test's own whose user is the one that runs the test. `as_root` is only about
/// which paths are chosen.
struct Host {
    dir: TempDir,
    around: Surroundings,
}

fn host() -> Host {
    let dir = TempDir::new().unwrap();
    let below = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    };
    let around = Surroundings {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        home: Some(below("home")),
        config_home: None,
        state_home: None,
        runtime_dir: Some(below("run-user")),
        shared_tmp: below("tmp"),
        system_root: below("root"),
    };
    Host { dir, around }
}

impl Host {
    /// The same host seen by an ordinary user. Files still belong to whoever runs the test, so
    /// only what makes no file of that user can be asked.
    fn seen_by(&self, uid: u32) -> Surroundings {
        Surroundings { uid, ..self.around.clone() }
    }

    fn write(&self, path: &Path, text: &str) -> PathBuf {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn fixtures(folder: &str) -> Vec<(String, String)> {
    let list = fs::read_dir(repository("fixtures/config").join(folder)).unwrap();
    let mut list: Vec<(String, String)> = list
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()))
        .collect();
    list.sort();
    list
}

fn code(result: Result<impl Sized, Refusal>) -> Code {
    result.err().map(|refusal| refusal.code).unwrap()
}

#[test]
fn no_file_is_needed() {
    let host = host();
    let config = file::load(None, &host.around).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.sandbox.mode, Mode::Enforced);
    assert!(!config.sandbox.allow_trusted_host);
    assert_eq!((config.sandbox.max_concurrent, config.sandbox.idle_ms), (8, 60_000));
    assert_eq!(config.sandbox.uid_range, UidRange { start: 1_900_000_000, count: 65_536 });
    assert_eq!((config.journal.snapshot_every, config.journal.reserve_bytes), (1_000, 16 << 20));
}

#[test]
fn the_example_is_valid_and_shows_the_defaults() {
    let text = fs::read_to_string(repository("docs/examples/atenea-sup.toml")).unwrap();
    let config = file::parse(&text).unwrap();
    let default = Config::default();
    assert_eq!(config.sandbox, default.sandbox);
    assert_eq!(config.default_limits, default.default_limits);
    assert_eq!(config.journal, default.journal);
    assert_eq!(config.runtime_mounts, default.runtime_mounts);
    let team = &config.budgets[&atenea_core::AccountName::parse("team-a").unwrap()];
    assert_eq!(*team, BudgetRule { usd: Nanos(250_000_000_000), per: Period::Month });
    assert_eq!(config.max_limits.memory_bytes, Some(16 << 30));
}

#[test]
fn each_valid_configuration_is_accepted() {
    for (name, text) in fixtures("valid") {
        file::parse(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn each_invalid_configuration_is_refused_with_its_key() {
    let list = fixtures("invalid");
    assert!(list.len() > 30, "only {} fixtures", list.len());
    for (name, text) in list {
        let line = text.lines().next().and_then(|line| line.strip_prefix("# expect: ")).unwrap();
        let (key, word) = line.split_once(" suggest ").unwrap_or((line, ""));
        let refusal = file::parse(&text).err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert_eq!(refusal.code, Code::HostConfig, "{name}: {refusal}");
        assert!(refusal.cause.contains(key), "{name}: {refusal}");
        assert!(refusal.help.contains(word), "{name}: {refusal}");
    }
}

#[test]
fn limits_of_the_file_are_what_manifests_are_checked_with() {
    let text = "[limits.default]\nmemory = \"256MiB\"\ngrace = \"1s\"\n[limits.max]\npids = 10";
    let ceilings = file::parse(text).unwrap().ceilings();
    let manifest = "version = 1\n[command]\nargv = [\"a\"]\n[workspace]\npath = \"/w\"\n";
    let manifest = |more: &str| parse_toml(&format!("{manifest}{more}")).unwrap();
    let checked = check(&manifest(""), &ceilings).unwrap();
    let expected =
        Limits { memory_bytes: 256 << 20, grace_ms: 1_000, pids: 10, ..Limits::default() };
    assert_eq!(checked.limits(), &expected);
    let refused = check(&manifest("[limits]\npids = 11"), &ceilings);
    assert_eq!(code(refused), Code::ManifestAboveCeiling);
}

#[test]
fn the_first_file_of_the_search_counts_alone() {
    let host = host();
    let load = |option: Option<&Path>, around: &Surroundings| {
        file::load(option, around).unwrap().sandbox.max_concurrent
    };
    host.write(Path::new("root/etc/atenea/atenea-sup.toml"), "[sandbox]\nmax_concurrent = 1");
    assert_eq!(load(None, &host.around), 1);
    host.write(Path::new("home/.config/atenea/atenea-sup.toml"), "[sandbox]\nmax_concurrent = 2");
    assert_eq!(load(None, &host.around), 2);
    host.write(Path::new("xdg/atenea/atenea-sup.toml"), "[sandbox]\nmax_concurrent = 3");
    let xdg = Some(host.dir.path().join("xdg"));
    let around = Surroundings { config_home: xdg, ..host.around.clone() };
    assert_eq!(load(None, &around), 3);
    let named = host.write(Path::new("named.toml"), "[sandbox]\nmax_concurrent = 4");
    assert_eq!(load(Some(&named), &around), 4);
    assert_eq!(file::load(Some(&named), &around).unwrap().file, Some(named));
}

#[test]
fn a_named_file_that_is_not_there_is_refused() {
    let host = host();
    let refusal = file::load(Some(Path::new("/nonexistent.toml")), &host.around).unwrap_err();
    assert_eq!(refusal.code, Code::HostConfig);
    assert!(refusal.cause.contains("/nonexistent.toml"), "{refusal}");
}

// S7: whoever can write the file could allow unsandboxed runs.
#[test]
fn a_file_that_somebody_else_can_write_is_refused() {
    let host = host();
    let path = host.write(Path::new("c.toml"), "");
    assert!(file::load(Some(&path), &host.around).is_ok(), "the control");
    set_mode(&path, 0o646);
    assert_eq!(code(file::load(Some(&path), &host.around)), Code::HostConfig);
    set_mode(&path, 0o664);
    assert!(file::load(Some(&path), &host.around).is_ok(), "its own group may");
    let other_group = Surroundings { gid: host.around.gid + 1, ..host.around.clone() };
    assert_eq!(code(file::load(Some(&path), &other_group)), Code::HostConfig);
}

#[test]
fn a_file_that_is_none_or_not_ours_is_refused_without_waiting() {
    let host = host();
    let fifo = host.dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(code(file::load(Some(&fifo), &host.around)), Code::HostConfig);
    assert_eq!(code(file::load(Some(host.dir.path()), &host.around)), Code::HostConfig);
    let path = host.write(Path::new("c.toml"), "");
    let owner = fs::metadata(&path).unwrap().uid();
    let stranger = host.seen_by(owner + 1);
    // Root's files are everybody's; any other owner is refused.
    assert_eq!(file::load(Some(&path), &stranger).is_ok(), owner == 0);
}

#[test]
fn a_file_larger_than_its_bound_is_refused() {
    let host = host();
    let path = host.write(Path::new("c.toml"), &"#".repeat((1 << 20) + 1));
    assert_eq!(code(file::load(Some(&path), &host.around)), Code::HostConfig);
}

#[test]
fn the_state_directory_follows_option_variable_and_user() {
    let host = host();
    let user = host.seen_by(1_000);
    let home = host.dir.path().join("home");
    assert_eq!(places::state_dir(None, &user).unwrap(), home.join(".local/state/atenea"));
    let xdg = Surroundings { state_home: Some("/xdg".into()), ..user.clone() };
    assert_eq!(places::state_dir(None, &xdg).unwrap(), Path::new("/xdg/atenea"));
    assert_eq!(places::state_dir(Some(Path::new("/s")), &xdg).unwrap(), Path::new("/s"));
    assert!(places::state_dir(Some(Path::new("s")), &xdg).unwrap().is_absolute());
    let root = Surroundings { uid: 0, ..xdg };
    assert_eq!(places::state_dir(None, &root).unwrap(), root.system(SYSTEM_STATE_DIR));
    let nowhere = Surroundings { home: None, ..user };
    assert_eq!(code(places::state_dir(None, &nowhere)), Code::HostStateDir);
}

/// The mode a state directory of the user that runs the test must have.
fn wanted_mode(around: &Surroundings) -> u32 {
    if around.is_root() { 0o711 } else { 0o700 }
}

#[test]
fn a_new_state_directory_is_private_from_birth() {
    let host = host();
    let path = host.dir.path().join("a/b/state");
    let made = dirs::ensure_state_dir(&path, &host.around).unwrap();
    assert_eq!(made, fs::canonicalize(&path).unwrap());
    assert_eq!(mode(&made), wanted_mode(&host.around));
    fs::create_dir(made.join("journal")).unwrap();
    assert_eq!(dirs::ensure_state_dir(&path, &host.around).unwrap(), made, "a second time");
}

#[test]
fn a_state_directory_that_became_readable_is_tightened() {
    let host = host();
    let path = host.dir.path().join("state");
    fs::create_dir(&path).unwrap();
    for mark in [false, true] {
        set_mode(&path, 0o755);
        dirs::ensure_state_dir(&path, &host.around).unwrap();
        assert_eq!(mode(&path), wanted_mode(&host.around));
        if !mark {
            fs::create_dir(path.join("journal")).unwrap();
        }
    }
}

#[test]
fn a_directory_that_is_something_else_is_left_alone() {
    let host = host();
    let home = host.dir.path().join("project");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("file"), "").unwrap();
    set_mode(&home, 0o755);
    assert_eq!(code(dirs::ensure_state_dir(&home, &host.around)), Code::HostStateDir);
    assert_eq!(mode(&home), 0o755, "its mode is not touched");
    let shared = host.dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o1777);
    assert_eq!(code(dirs::ensure_state_dir(&shared, &host.around)), Code::HostStateDir);
    assert_eq!(mode(&shared), 0o1777);
    for path in ["/", ".."] {
        assert_eq!(code(dirs::ensure_state_dir(Path::new(path), &host.around)), Code::HostStateDir);
    }
}

#[test]
fn a_state_directory_that_is_a_link_or_a_file_is_refused() {
    let host = host();
    let real = host.dir.path().join("real");
    dirs::ensure_state_dir(&real, &host.around).unwrap();
    let link = host.dir.path().join("link");
    symlink(&real, &link).unwrap();
    let with_slash = PathBuf::from(format!("{}/", link.display()));
    let dangling = host.dir.path().join("dangling");
    symlink(host.dir.path().join("nowhere"), &dangling).unwrap();
    let file = host.write(Path::new("file"), "");
    for path in [link, with_slash, dangling, file] {
        let refusal = dirs::ensure_state_dir(&path, &host.around).unwrap_err();
        assert_eq!(refusal.code, Code::HostStateDir);
        assert!(refusal.cause.contains("symbolic link"), "{refusal}");
    }
    assert!(!host.dir.path().join("nowhere").exists());
}

#[test]
fn a_state_directory_of_another_user_is_refused_and_not_touched() {
    let host = host();
    let path = host.dir.path().join("state");
    fs::create_dir(&path).unwrap();
    set_mode(&path, 0o755);
    let stranger = host.seen_by(host.around.uid + 1);
    let refusal = dirs::ensure_state_dir(&path, &stranger).unwrap_err();
    assert_eq!(refusal.code, Code::HostStateDir);
    assert!(refusal.cause.contains("belongs to uid"), "{refusal}");
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn one_state_directory_has_one_socket_whatever_way_leads_to_it() {
    let host = host();
    let real = host.dir.path().join("deep/state");
    fs::create_dir_all(&real).unwrap();
    symlink(host.dir.path().join("deep"), host.dir.path().join("short")).unwrap();
    let socket = |path: &Path| places::socket_path(path, &host.around).unwrap();
    assert_eq!(socket(&real), socket(&host.dir.path().join("short/state")));
    assert_ne!(socket(&real), socket(&host.dir.path().join("deep")));
    // Also before it is made.
    let later = host.dir.path().join("short/later/state");
    let before = socket(&later);
    let made = dirs::ensure_state_dir(&later, &host.around).unwrap();
    assert_eq!((socket(&made), socket(&later)), (before.clone(), before));
}

#[test]
fn a_socket_lies_in_the_runtime_directory_only_when_that_is_ours() {
    let host = host();
    let state = host.dir.path().join("state");
    let owner = fs::metadata(host.dir.path()).unwrap().uid();
    let user = |uid, around: Surroundings| {
        places::socket_path(&state, &Surroundings { uid, ..around }).unwrap()
    };
    let private = |uid| host.dir.path().join(format!("tmp/atenea-{uid}"));
    // The runtime directory of the test belongs to whoever runs it.
    let runtime = host.around.runtime_dir.clone().unwrap();
    if owner != 0 {
        assert!(user(owner, host.around.clone()).starts_with(runtime.join("atenea")));
    }
    assert!(user(owner + 1, host.around.clone()).starts_with(private(owner + 1)));
    set_mode(&runtime, 0o777);
    assert!(user(owner + 1, host.around.clone()).starts_with(private(owner + 1)));
    let none = Surroundings { runtime_dir: None, ..host.around.clone() };
    assert!(user(1_000, none).starts_with(private(1_000)));
}

#[test]
fn roots_own_state_directory_has_the_systems_socket() {
    let host = host();
    let root = host.seen_by(0);
    let state = root.system(SYSTEM_STATE_DIR);
    assert_eq!(places::socket_path(&state, &root).unwrap(), root.system(SYSTEM_SOCKET));
    let other = places::socket_path(Path::new("/srv/x"), &root).unwrap();
    assert!(other.starts_with(root.system("/run/atenea")) && !other.ends_with("control.sock"));
}

#[test]
fn a_socket_path_always_fits_into_its_address() {
    let host = host();
    let long = host.dir.path().join("x".repeat(120));
    fs::create_dir(&long).unwrap();
    set_mode(&long, 0o700);
    let around = Surroundings { runtime_dir: Some(long.clone()), ..host.seen_by(1_000) };
    let socket = places::socket_path(&long, &around).unwrap();
    assert!(socket.as_os_str().len() < 107, "{}", socket.display());
    let nowhere = Surroundings { shared_tmp: long.clone(), ..around };
    assert_eq!(code(places::socket_path(&long, &nowhere)), Code::HostStateDir);
}

#[test]
fn the_directory_of_a_socket_is_made_private_and_one_of_others_is_refused() {
    let host = host();
    let uid = host.around.uid;
    let dir = match host.around.is_root() {
        true => host.around.system("/run/atenea"),
        false => host.dir.path().join(format!("tmp/atenea-{uid}")),
    };
    let socket = dir.join("s.sock");
    dirs::ensure_socket_dir(&socket, &host.around).unwrap();
    assert_eq!(mode(&dir), if host.around.is_root() { 0o755 } else { 0o700 });
    dirs::check_socket_dir(&socket, &host.around).unwrap();
    // Somebody made the directory of another user first, or put a link there.
    let squatted = host.dir.path().join(format!("tmp/atenea-{}", uid + 1));
    fs::create_dir(&squatted).unwrap();
    let stranger = host.seen_by(uid + 1);
    let refused = dirs::ensure_socket_dir(&squatted.join("s.sock"), &stranger);
    assert_eq!(code(refused), Code::HostStateDir);
    let trusted = dirs::check_socket_dir(&squatted.join("s.sock"), &stranger).is_ok();
    assert_eq!(trusted, uid == 0, "root's directories are trusted, other users' are not");
    let link = host.dir.path().join("link");
    symlink(&dir, &link).unwrap();
    assert_eq!(code(dirs::check_socket_dir(&link.join("s"), &host.around)), Code::HostStateDir);
    assert!(dirs::check_socket_dir(Path::new("/nonexistent/s"), &host.around).is_ok());
}

#[test]
fn a_directory_named_by_a_person_keeps_its_mode() {
    let host = host();
    let dir = host.dir.path().join("named");
    fs::create_dir(&dir).unwrap();
    set_mode(&dir, 0o750);
    dirs::ensure_socket_dir(&dir.join("s.sock"), &host.around).unwrap();
    assert_eq!(mode(&dir), 0o750);
}
