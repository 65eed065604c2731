//! Go, exit, signals, the end of the supervision stream, orphans.

use atenea_init::wire::{FromInit, ToInit};

use crate::harness::{Setup, open_directory, read_until};

#[test]
fn the_exit_status_is_reported_exactly_and_mirrored() {
    let mut running = Setup::new(&["sh", "-c", "echo out; echo err >&2; exit 7"]).run();
    let status = running.exited();
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert_eq!(running.output(), "out\n");
    assert_eq!(running.errors(), "err\n");
    assert!(running.hear().is_none());
    assert_eq!(running.status(), Some(7));
}

#[test]
fn an_exit_with_137_is_not_taken_for_a_kill() {
    let mut exits = Setup::new(&["sh", "-c", "exit 137"]).run();
    let mut killed = Setup::new(&["sh", "-c", "kill -9 $$"]).run();
    let (exited, killed) = (exits.exited(), killed.exited());
    assert!(libc::WIFEXITED(exited) && libc::WEXITSTATUS(exited) == 137);
    assert!(libc::WIFSIGNALED(killed) && libc::WTERMSIG(killed) == 9);
}

#[test]
fn use_of_resources_covers_the_descendants_that_were_waited_for() {
    let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let command =
        format!("sh -c '{burn}'; head -c 60000000 /dev/zero | tail -c 50000000 >/dev/null");
    let mut running = Setup::new(&["sh", "-c", &command]).run();
    match running.hear() {
        Some(FromInit::Exited { wait_status: 0, user_us, system_us, max_rss_kib }) => {
            assert!(user_us > 0, "{user_us}");
            assert!(system_us > 0);
            assert!(max_rss_kib > 40_000, "{max_rss_kib}");
        }
        other => panic!("{other:?}, stderr {}", running.errors()),
    }
}

#[test]
fn a_signal_reaches_the_agent_and_its_group_once() {
    // A real-time signal, because a second one of it would be kept.
    let script = "import os, signal, sys
counted = signal.SIGRTMIN + 2
signal.pthread_sigmask(signal.SIG_BLOCK, [counted, signal.SIGTERM])
if os.fork() == 0:
    signal.sigwait([counted]); print('child', flush=True); os._exit(0)
print('ready', flush=True)
signal.sigwait([counted]); os.wait(); print('agent', flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(4 if counted in signal.sigpending() else 3)";
    let mut running = Setup::new(&["python3", "-c", script]).run();
    read_until(&mut running.stdout, "ready\n");
    running.tell(&ToInit::Signal { signal: libc::SIGRTMIN() + 2 });
    let seen = read_until(&mut running.stdout, "agent\n");
    assert_eq!(seen, "child\nagent\n");
    running.tell(&ToInit::Signal { signal: libc::SIGTERM });
    let status = running.exited();
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3, "{status:#x}");
}

#[test]
fn a_sleeper_dies_of_the_signal_that_was_passed_on() {
    let mut running = Setup::new(&["sleep", "1000"]).run();
    running.tell(&ToInit::Signal { signal: libc::SIGTERM });
    let status = running.exited();
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM);
    assert_eq!(running.status(), Some(128 + libc::SIGTERM));
}

#[test]
fn s1_no_agent_ever_starts_when_the_helper_dies_before_go() {
    for round in 0..80 {
        let mut running = Setup::new(&["echo", "started"]).start();
        // Half of them die before init is ready.
        if round % 2 == 1 {
            running.ready();
        }
        running.leave();
        assert_eq!(running.output(), "", "round {round}");
    }
}

#[test]
fn all_processes_end_with_the_helper() {
    let script = "for i in 1 2 3; do setsid sh -c 'trap : TERM HUP; sleep 1000; sleep 1000' & done
        trap : TERM HUP; echo ready; sleep 1000; sleep 1000";
    let mut running = Setup::new(&["sh", "-c", script]).run();
    read_until(&mut running.stdout, "ready");
    running.leave();
    // Each of them holds standard output, so its end is the end of all.
    assert_eq!(running.output(), "");
}

#[test]
fn the_helper_may_die_while_the_agent_is_being_started() {
    for round in 0..20 {
        let mut running = Setup::new(&["sh", "-c", "trap : TERM HUP; sleep 1000"]).start();
        running.ready();
        running.tell(&ToInit::Go);
        running.leave();
        assert_eq!(running.output(), "", "round {round}");
    }
}

#[test]
fn init_has_a_program_of_its_own_while_the_agent_runs() {
    // It is loaded right after the agent was started, so the agent may be first.
    let script = "import os
while 'Seccomp:\\t2' not in open('/proc/1/status').read(): os.sched_yield()
print('filtered')";
    let mut running = Setup::new(&["python3", "-c", script]).run();
    assert_eq!(running.exited(), 0);
    assert_eq!(running.output(), "filtered\n");
}

#[test]
fn two_hundred_orphans_are_reaped() {
    let script = r"
import os
orphans = []
for _ in range(200):
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os.close(reader); os.read(os.open('/dev/null', os.O_RDONLY), 1); os._exit(0)
        os.write(writer, str(grandchild).encode()); os._exit(0)
    os.close(writer); orphans.append(int(os.read(reader, 20))); os.close(reader)
    os.waitpid(middle, 0)
while orphans:
    try:
        os.kill(orphans[-1], 0)
        os.sched_yield()
    except ProcessLookupError:
        orphans.pop()
print('none left')
";
    let mut running = Setup::new(&["python3", "-c", script]).run();
    assert_eq!(running.exited(), 0);
    assert_eq!(running.output(), "none left\n");
}

#[test]
fn a_grandchild_that_holds_the_streams_delays_nothing() {
    let mut running = Setup::new(&["sh", "-c", "setsid sleep 1000 & exit 4"]).run();
    let status = running.exited();
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 4);
    assert_eq!(running.output(), "");
}

#[test]
fn a_missing_command_is_enoent_and_127() {
    let mut running = Setup::new(&["no-such-command"]).start();
    running.ready();
    running.tell(&ToInit::Go);
    assert_eq!(running.hear(), Some(FromInit::ExecFailed { errno: libc::ENOENT }));
    assert!(running.hear().is_none());
    assert_eq!(running.status(), Some(127));
}

#[test]
fn a_command_that_is_no_program_is_eacces_and_126() {
    let mut running = Setup::new(&["/usr/share"]).start();
    running.ready();
    running.tell(&ToInit::Go);
    assert_eq!(running.hear(), Some(FromInit::ExecFailed { errno: libc::EACCES }));
    assert_eq!(running.status(), Some(126));
}

#[test]
fn s5_the_agent_has_three_descriptors_the_plans_environment_and_clean_signals() {
    let script = "ls /proc/$$/fd; env | sort; grep -E 'Sig(Blk|Ign)|NoNewPrivs|Seccomp:|Cap' /proc/self/status";
    let mut running = Setup::new(&["dash", "-c", script]).run();
    assert_eq!(running.exited(), 0);
    let output = running.output();
    let (descriptors, rest) = output.split_at(6);
    assert_eq!(descriptors, "0\n1\n2\n");
    let rest: Vec<&str> = rest.lines().collect();
    assert_eq!(
        rest,
        [
            "HOME=/home/agent",
            "LANG=C.UTF-8",
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "PWD=/home/agent",
            "SigBlk:\t0000000000000000",
            "SigIgn:\t0000000000000000",
            "CapInh:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "CapAmb:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ]
    );
}

#[test]
fn limits_of_the_plan_hold_and_core_files_are_off() {
    let mut setup = Setup::new(&["bash", "-c", "ulimit -n; ulimit -Hn; ulimit -c"]);
    setup.plan.rlimits = vec![(libc::RLIMIT_NOFILE, 256, 512)];
    let mut running = setup.run();
    assert_eq!(running.exited(), 0);
    assert_eq!(running.output(), "256\n512\n0\n");
}

#[test]
fn init_survives_what_the_agent_sends_to_it() {
    let script = "for s in 1 2 3 6 9 10 13 14 15 17 19 24 31; do kill -$s 1; done
        cat /proc/1/environ /proc/1/maps 2>&1 | sort -u; exit 9";
    let mut running = Setup::new(&["bash", "-c", script]).run();
    let status = running.exited();
    assert_eq!(libc::WEXITSTATUS(status), 9);
    let output = running.output();
    assert_eq!(output.matches("Permission denied").count(), 2, "{output}");
}

#[test]
fn an_empty_path_entry_does_not_mean_the_working_directory() {
    let directory = open_directory();
    std::fs::copy("/usr/bin/true", directory.path().join("planted")).unwrap();
    let mut setup = Setup::new(&["planted"]);
    setup.plan.env = vec![b"PATH=::/usr/bin:".to_vec()];
    setup.plan.cwd = b"/run/work".to_vec();
    let bind = ["--ro-bind", directory.path().to_str().unwrap(), "/run/work"];
    setup.last.splice(0..0, bind.iter().map(|word| (*word).to_owned()));
    let mut running = setup.start();
    running.ready();
    running.tell(&ToInit::Go);
    assert_eq!(running.hear(), Some(FromInit::ExecFailed { errno: libc::ENOENT }));
    // Control: it can be executed by its path.
    setup.plan.argv = vec![b"./planted".to_vec()];
    assert_eq!(setup.run().exited(), 0);
}
