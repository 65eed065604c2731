//! Starts that init refuses before any self-test.

use std::process::{Command, Stdio};

use crate::harness::{Setup, init_program, strings};

#[test]
fn s5_a_descriptor_beyond_the_plan_is_refused() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.last_fd = 6;
    setup.around = strings(&["bash", "-c", "exec 6</dev/null; exec \"$@\"", "around"]);
    let mut running = setup.start();
    assert_eq!(running.failed("descriptors").1, "open beyond the plan: [6]");
    assert_eq!(running.output(), "");
}

#[test]
fn a_capability_that_is_left_is_refused() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.first = strings(&["--cap-add", "CAP_NET_RAW"]);
    let mut running = setup.start();
    let detail = running.failed("capabilities").1;
    assert!(detail.contains("effective") && detail.contains("bounding"), "{detail}");
    assert_eq!(running.output(), "");
}

#[test]
fn an_agent_that_would_be_root_is_refused() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.last.extend(strings(&["--uid", "0"]));
    assert_eq!(setup.start().failed("identity").1, "the agent's uid would be 0");
}

#[test]
fn a_plan_of_another_version_is_refused() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.plan.version = "0.0.0".to_owned();
    assert!(setup.start().failed("plan").1.contains("0.0.0"));
}

#[test]
fn a_program_that_filters_nothing_or_cannot_be_loaded_is_refused() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.program = Vec::new();
    setup.start().failed("seccomp_program");
    setup.program = vec![0x06, 0, 0, 0, 0, 0, 0xff, 0x7f];
    setup.start().failed("seccomp_program");
    setup.program = vec![0; 7];
    setup.start().failed("seccomp_program");
    // A jump behind the end.
    setup.program = [[0x20, 0, 0, 0, 0, 0, 0, 0], [0x05, 0, 0, 0, 9, 0, 0, 0]].concat();
    assert_eq!(setup.start().failed("load_seccomp").0, libc::EINVAL);
}

#[test]
fn a_program_that_kills_the_probe_before_an_act_proves_nothing() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.program = [[0x20, 0, 0, 0, 0, 0, 0, 0], [0x06, 0, 0, 0, 0, 0, 0, 0x80]].concat();
    let detail = setup.start().failed("self_test").1;
    assert!(detail.contains("probe ended before write_etc"), "{detail}");
}

#[test]
fn a_working_directory_that_does_not_exist_is_refused() {
    let mut setup = Setup::new(&["echo", "ran"]);
    setup.plan.cwd = b"/nowhere".to_vec();
    let mut running = setup.start();
    running.ready();
    running.tell(&atenea_init::wire::ToInit::Go);
    assert_eq!(running.failed("agent_directory").0, libc::ENOENT);
    assert_eq!(running.output(), "");
}

#[test]
fn outside_of_a_launch_it_only_tells_its_version() {
    let version = Command::new(init_program()).arg("--version").output().unwrap();
    let expected = format!("atenea-init {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(version.stdout).unwrap(), expected);
    // Closes what this process may have inherited, so that there is no plan.
    let script = "exec 3<&- 4<&- 5<&-; exec \"$@\"";
    for argument in ["", "--help"] {
        let words = [script, "close", init_program().to_str().unwrap(), argument];
        let words = words.iter().filter(|word| !word.is_empty());
        let answer =
            Command::new("sh").arg("-c").args(words).stdin(Stdio::null()).output().unwrap();
        assert_eq!(answer.status.code(), Some(2));
        assert!(String::from_utf8(answer.stderr).unwrap().starts_with("atenea-init: "));
    }
}
