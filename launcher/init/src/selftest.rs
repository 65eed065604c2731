//! Step 7: proves that forbidden acts are refused (S4).
//!
//! The acts run in probe processes under the agent's seccomp program and with what the agent will
//! have. An act that kills its probe is answered by the next probe, which goes on after it. A probe
//! says what it is about to try, so that only a death after that counts for the act.

use std::io::{self, PipeWriter, Read, Write};

use atenea_init::wire::{InitPlan, MESSAGE_BYTES_MAX, SelfTest};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::sys::harden::Instruction;
use crate::sys::process::{Ended, Fork};
use crate::sys::{fd, harden, process};

mod acts;
mod errno;

use acts::{ACTS, Act};

/// A probe that takes longer hangs in an act: far above the milliseconds that all of them take.
const PROBE_SECONDS_MAX: u32 = 10;
/// What a probe may write: more than its report can be.
const NOTES_BYTES_MAX: u64 = 2 * MESSAGE_BYTES_MAX as u64;
/// Longest detail of one act, characters, so that the report stays below a message.
const DETAIL_CHARS_MAX: usize = 200;

/// What a probe writes.
#[derive(Serialize, Deserialize)]
enum Note {
    /// The next act is about to be tried.
    Trying,
    /// It was tried.
    Tried(SelfTest),
    /// The probe could not get ready.
    Unready { errno: i32 },
}

/// Tries every act. Fails when one of them was not refused, so that the agent is never started.
pub(crate) fn run(plan: &InitPlan, program: &[Instruction]) -> Result<Vec<SelfTest>, Failure> {
    let mut results: Vec<SelfTest> = Vec::new();
    while let Some(acts) = ACTS.get(results.len()..).filter(|rest| !rest.is_empty()) {
        let (notes, ended) = probe(acts, plan, program)?;
        collect(acts, notes, ended, &mut results)?;
    }
    let reached: Vec<String> = results
        .iter()
        .filter(|result| !result.refused)
        .map(|result| format!("{}: {}", result.name, result.detail))
        .collect();
    if reached.is_empty() {
        Ok(results)
    } else {
        Err(Failure::new("self_test", reached.join("; ")))
    }
}

/// Runs one probe to its end.
fn probe(
    acts: &[Act],
    plan: &InitPlan,
    program: &[Instruction],
) -> Result<(Vec<Note>, Ended), Failure> {
    let (reader, writer) = io::pipe().map_err(Failure::at("self_test"))?;
    let pid = match process::fork().map_err(Failure::at("self_test"))? {
        Fork::Child => {
            drop(reader);
            // A writer that fails leaves notes missing, which the parent sees.
            let _ = try_acts(acts, plan, program, writer);
            process::exit_now(0)
        }
        Fork::Parent(pid) => pid,
    };
    drop(writer);
    let mut bytes = Vec::new();
    reader.take(NOTES_BYTES_MAX).read_to_end(&mut bytes).map_err(Failure::at("self_test"))?;
    let ended = process::reap(pid, true).map_err(Failure::at("self_test"))?;
    let ended = ended.ok_or_else(|| Failure::new("self_test", "the probe is gone"))?;
    let mut rest = bytes.as_slice();
    let mut notes = Vec::new();
    while !rest.is_empty() {
        let note = rmp_serde::from_read(&mut rest);
        notes.push(note.map_err(|error| Failure::new("self_test", error.to_string()))?);
    }
    Ok((notes, ended))
}

/// In the probe.
fn try_acts(
    acts: &[Act],
    plan: &InitPlan,
    program: &[Instruction],
    mut writer: PipeWriter,
) -> io::Result<()> {
    harden::end_within(PROBE_SECONDS_MAX);
    if let Err(error) = fd::close_on_exec_from(3).and_then(|()| harden::load_program(program)) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        return write(&mut writer, &Note::Unready { errno });
    }
    for act in acts {
        write(&mut writer, &Note::Trying)?;
        write(&mut writer, &Note::Tried(judge(act, (act.attempt)(plan))))?;
    }
    Ok(())
}

fn write(writer: &mut PipeWriter, note: &Note) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(note).map_err(io::Error::other)?;
    writer.write_all(&bytes)
}

/// An act is refused when every attempt failed with an error that means "refused" for it. Any other
/// error means that the call got through to where its arguments were looked at.
fn judge(act: &Act, attempts: Vec<io::Result<String>>) -> SelfTest {
    let mut refused = !attempts.is_empty();
    let mut details: Vec<String> = Vec::new();
    for attempt in attempts {
        let detail = match attempt {
            Ok(reached) => {
                refused = false;
                format!("reached {reached}")
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                refused &= act.refusals.contains(&errno);
                errno::name(errno)
            }
        };
        if !details.contains(&detail) {
            details.push(detail);
        }
    }
    let detail = details.join(", ").chars().take(DETAIL_CHARS_MAX).collect();
    SelfTest { name: act.name.to_owned(), refused, detail }
}

/// Adds a probe's results; the act in which it died gets one as well.
fn collect(
    acts: &[Act],
    notes: Vec<Note>,
    ended: Ended,
    results: &mut Vec<SelfTest>,
) -> Result<(), Failure> {
    let mut tried = 0;
    let mut trying = false;
    for note in notes {
        match note {
            Note::Trying => trying = true,
            Note::Tried(result) => {
                trying = false;
                tried += 1;
                results.push(result);
            }
            Note::Unready { errno } => {
                return Err(Failure::at("load_seccomp")(io::Error::from_raw_os_error(errno)));
            }
        }
    }
    match acts.get(tried) {
        None => Ok(()),
        Some(act) if trying && libc::WIFSIGNALED(ended.status) => {
            results.push(death(act, libc::WTERMSIG(ended.status)));
            Ok(())
        }
        Some(act) => {
            let detail = format!("probe ended before {}, status {:#x}", act.name, ended.status);
            Err(Failure::new("self_test", detail))
        }
    }
}

/// The kernel's SIGSYS is a refusal; any other death proves nothing unless the act says so.
fn death(act: &Act, signal: i32) -> SelfTest {
    let refused = signal == libc::SIGSYS || act.fatal.contains(&signal);
    let detail = match signal {
        libc::SIGSYS => "killed".to_owned(),
        libc::SIGALRM => format!("hung for {PROBE_SECONDS_MAX} seconds"),
        signal => format!("died of signal {signal}"),
    };
    SelfTest { name: act.name.to_owned(), refused, detail }
}
