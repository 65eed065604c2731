//! `atenea-init`: process 1 inside the sandbox.
//!
//! Hardens itself, proves that forbidden acts are refused, starts the agent when told to, reaps,
//! reports and ends, which ends everything in the pid namespace. It is linked statically, so it needs
//! no file of the sandbox.
//!
//! Steps, in the order of [`run`]:
//!
//! 1. check the descriptors: 0 to 5 and no other; read the plan and the agent's seccomp program;
//! 2. verify that no capability is left in any of the five sets and that the uid is not 0; set
//!    no-new-privs; become undumpable;
//! 3. make the terminal;
//! 4. Landlock: not used, the mount namespace decides what exists;
//! 5. set resource limits;
//! 6. check the agent's seccomp program; it is loaded by the probes of step 7 and by the agent's
//!    process of step 9. init's own, narrower one ([`narrow`]) follows in step 10, because a child
//!    inherits the programs of its parent;
//! 7. self-test: forbidden acts, tried under the agent's program (S4);
//! 8. tell the helper `Ready` and wait for `Go`; the end of the supervision stream, here or at any
//!    later time, ends init;
//! 9. start the agent;
//! 10. reap orphans, pass signals and terminal sizes on, report the agent's exit, end.

use std::io::Write as _;
use std::process::ExitCode;

mod agent;
mod failure;
mod narrow;
mod selftest;
mod setup;
mod supervisor;
#[expect(unsafe_code, reason = "system calls without a safe wrapper in the permitted dependencies")]
mod sys;
mod watch;

use failure::{Ending, Failure};
use supervisor::Supervisor;

/// Not started by the helper, or with arguments that init does not have.
const EXIT_USAGE: u8 = 2;
/// A step failed; the agent was not started.
const EXIT_FAILED: u8 = 1;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (None, _) => start(),
        (Some(argument), None) if argument == "--version" => {
            match writeln!(std::io::stdout(), "atenea-init {}", env!("CARGO_PKG_VERSION")) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(EXIT_FAILED),
            }
        }
        _ => {
            complain("takes no argument but --version");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Says what is wrong to whoever started it by hand; a reader that is gone changes nothing.
fn complain(what: &str) {
    let _ = writeln!(std::io::stderr(), "atenea-init: {what}");
}

fn start() -> ExitCode {
    if let Err(error) = sys::signal::plain_faults() {
        complain(&format!("signals: {error}"));
        return ExitCode::from(EXIT_FAILED);
    }
    let Some(inherited) = sys::fd::take_inherited() else {
        complain("no plan on descriptors 3 to 5: started by the launcher only");
        return ExitCode::from(EXIT_USAGE);
    };
    let supervisor = Supervisor::new(inherited.supervise);
    match run(&supervisor, inherited.plan, inherited.program) {
        Ok(status) => ExitCode::from(status),
        // The helper is gone: nobody is left to tell.
        Err(Ending::SupervisorGone) => ExitCode::from(EXIT_FAILED),
        Err(Ending::Failed(failure)) => {
            // A failed report changes nothing: init ends either way and the agent never started.
            let _ = supervisor.tell(&failure.message(), &[]);
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// The steps of init; answers its exit status, which tells what the agent's was as a shell does.
fn run(
    supervisor: &Supervisor,
    plan: std::os::fd::OwnedFd,
    program: std::os::fd::OwnedFd,
) -> Result<u8, Ending> {
    // 1
    supervisor.check()?;
    setup::check_descriptors()?;
    let plan = setup::read_plan(plan)?;
    let program = setup::read_program(program)?;
    // 2
    setup::harden()?;
    // 3
    let terminal = setup::terminal(plan.tty)?;
    // 4: Landlock is not used.
    // 5
    setup::limits(&plan.rlimits)?;
    // 6
    setup::check_program(&program)?;
    // 7
    let self_test = selftest::run(&plan, &program)?;
    // 8
    supervisor.ready(self_test, terminal.as_ref())?;
    supervisor.wait_for_go(terminal.as_ref())?;
    // 9
    let children = sys::signal::child_events().map_err(Failure::at("child_events"))?;
    let master = terminal.as_ref().map(|terminal| terminal.master.try_clone()).transpose();
    let master = master.map_err(Failure::at("terminal"))?;
    let pid = match agent::start(supervisor, &plan, &program, terminal)? {
        agent::Start::Running(pid) => pid,
        agent::Start::Refused(errno) => {
            supervisor.tell(&atenea_init::wire::FromInit::ExecFailed { errno }, &[])?;
            return Ok(agent::exit_status_of_refusal(errno));
        }
    };
    supervisor.tell(&atenea_init::wire::FromInit::Started { pid }, &[])?;
    // 10
    narrow::load().map_err(Failure::at("own_seccomp"))?;
    watch::until_agent_ends(supervisor, children, master.as_ref(), pid)
}
