//! Step 9: start the agent.

use std::ffi::{CString, OsStr};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use atenea_init::wire::InitPlan;

use crate::failure::{Ending, Failure};
use crate::supervisor::Supervisor;
use crate::sys::fd::{Event, Stream};
use crate::sys::harden::Instruction;
use crate::sys::process::{Fork, StringArray};
use crate::sys::tty::Terminal;
use crate::sys::{fd, harden, process, signal, tty};

/// Searched when the plan's environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// A shell's answer for a command that does not exist.
const EXIT_NOT_FOUND: u8 = 127;
/// A shell's answer for a command that cannot be executed.
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// The program runs under this pid.
    Running(i32),
    /// `execve` failed with this errno.
    Refused(i32),
}

/// Exit status that a shell gives a command that could not be executed.
pub(crate) fn exit_status_of_refusal(errno: i32) -> u8 {
    if errno == libc::ENOENT { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE }
}

/// Everything the child needs, allocated before the fork.
struct Prepared<'a> {
    candidates: Vec<CString>,
    arguments: StringArray,
    environment: StringArray,
    cwd: &'a OsStr,
    program: &'a [Instruction],
    terminal: Option<Terminal>,
}

/// Starts the agent and waits until its program runs. The end of the supervision stream meanwhile
/// ends init, and with it the child.
pub(crate) fn start(
    supervisor: &Supervisor,
    plan: &InitPlan,
    program: &[Instruction],
    terminal: Option<Terminal>,
) -> Result<Start, Ending> {
    let prepared = prepare(plan, program, terminal).map_err(Failure::at("start"))?;
    let (reader, writer) = io::pipe().map_err(Failure::at("start"))?;
    match process::fork().map_err(Failure::at("start"))? {
        Fork::Child => {
            drop(reader);
            become_agent(&prepared, writer)
        }
        Fork::Parent(pid) => {
            drop(writer);
            drop(prepared);
            release_streams().map_err(Failure::at("start"))?;
            outcome(supervisor, reader, pid)
        }
    }
}

fn prepare<'a>(
    plan: &'a InitPlan,
    program: &'a [Instruction],
    terminal: Option<Terminal>,
) -> io::Result<Prepared<'a>> {
    Ok(Prepared {
        candidates: candidates(&plan.argv[0], &plan.env)?,
        arguments: StringArray::new(&plan.argv)?,
        environment: StringArray::new(&plan.env)?,
        cwd: OsStr::from_bytes(&plan.cwd),
        program,
        terminal,
    })
}

/// The paths to try, in order.
fn candidates(command: &[u8], environment: &[Vec<u8>]) -> io::Result<Vec<CString>> {
    if command.contains(&b'/') || command.is_empty() {
        return Ok(vec![CString::new(command)?]);
    }
    let path = environment.iter().find_map(|variable| variable.strip_prefix(b"PATH="));
    let directories = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
    // An empty entry would mean the working directory, which the agent's own files fill.
    let directories = directories.filter(|directory| !directory.is_empty());
    directories.map(|directory| Ok(CString::new([directory, b"/", command].concat())?)).collect()
}

/// init keeps no end of the agent's streams: nothing it prints may look like the agent's. (Their other
/// ends see no early end by this: bubblewrap's own process outside holds them until init ends.)
fn release_streams() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    Stream::ALL.into_iter().try_for_each(|stream| fd::replace_stream(null.as_fd(), stream))
}

/// Where the child failed; the first byte of its report.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Stage {
    Session = 1,
    Terminal = 2,
    Signals = 3,
    Descriptors = 4,
    Directory = 5,
    Seccomp = 6,
    Execute = 7,
}

impl Stage {
    fn name(byte: u8) -> &'static str {
        match byte {
            1 => "agent_session",
            2 => "agent_terminal",
            3 => "agent_signals",
            4 => "agent_descriptors",
            5 => "agent_directory",
            6 => "agent_seccomp",
            _ => "agent",
        }
    }
}

/// In the child: becomes the agent or reports why not.
fn become_agent(prepared: &Prepared<'_>, mut report: PipeWriter) -> ! {
    let (stage, error) = match try_become_agent(prepared) {
        Ok(error) => (Stage::Execute, error),
        Err(failed) => failed,
    };
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let [e0, e1, e2, e3] = errno.to_le_bytes();
    // When nobody reads, init is gone and this process with it.
    let _ = report.write_all(&[stage as u8, e0, e1, e2, e3]);
    process::exit_now(exit_status_of_refusal(errno).into())
}

/// Answers only a failed `execve`.
fn try_become_agent(prepared: &Prepared<'_>) -> Result<io::Error, (Stage, io::Error)> {
    let at = |stage| move |error| (stage, error);
    process::new_session().map_err(at(Stage::Session))?;
    if let Some(terminal) = &prepared.terminal {
        attach(terminal.slave.as_fd()).map_err(at(Stage::Terminal))?;
    }
    process::set_umask(0o022);
    signal::reset().map_err(at(Stage::Signals))?;
    // S5: 0, 1 and 2 are what is left after execve.
    fd::close_on_exec_from(3).map_err(at(Stage::Descriptors))?;
    std::env::set_current_dir(prepared.cwd).map_err(at(Stage::Directory))?;
    harden::load_program(prepared.program).map_err(at(Stage::Seccomp))?;
    Ok(execute(prepared))
}

fn attach(slave: BorrowedFd<'_>) -> io::Result<()> {
    tty::control(slave)?;
    Stream::ALL.into_iter().try_for_each(|stream| fd::replace_stream(slave, stream))
}

/// Tries the candidates; the answer is "no permission" when any said so, else the last one's.
fn execute(prepared: &Prepared<'_>) -> io::Error {
    let mut denied = None;
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for path in &prepared.candidates {
        let error = process::execute(path, &prepared.arguments, &prepared.environment);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => last = error,
            Some(libc::EACCES) => denied = Some(error),
            _ => return error,
        }
    }
    denied.unwrap_or(last)
}

/// Waits for the child's report; a closed pipe without one means that the program runs.
fn outcome(supervisor: &Supervisor, mut reader: PipeReader, pid: i32) -> Result<Start, Ending> {
    // A message stays in the socket for step 10; only the end of the stream counts here.
    let events = [Event::Readable(reader.as_fd()), Event::Closed(supervisor.as_fd())];
    let [_, closed] = fd::wait(events).map_err(Failure::at("start"))?;
    if closed {
        return Err(Ending::SupervisorGone);
    }
    let mut bytes = Vec::with_capacity(5);
    reader.by_ref().take(5).read_to_end(&mut bytes).map_err(Failure::at("start"))?;
    match *bytes {
        [] => Ok(Start::Running(pid)),
        [stage, e0, e1, e2, e3] => {
            let errno = i32::from_le_bytes([e0, e1, e2, e3]);
            if stage == Stage::Execute as u8 {
                return Ok(Start::Refused(errno));
            }
            Err(Failure::at(Stage::name(stage))(io::Error::from_raw_os_error(errno)).into())
        }
        _ => Err(Failure::new("start", "the child's report was cut").into()),
    }
}
