//! Step 10: reap, pass on, report, end.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use atenea_init::wire::{FromInit, ToInit};

use crate::failure::{Ending, Failure};
use crate::supervisor::{Supervisor, resize};
use crate::sys::fd::{self, Event};
use crate::sys::process::{self, Ended};
use crate::sys::signal::EVENT_BYTES;

/// Child events taken by one read; more of them only cost another read.
const EVENTS_PER_READ: usize = 16;

/// Resource use of all children reaped so far.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    user_us: u64,
    system_us: u64,
    max_rss_kib: u64,
}

impl Usage {
    fn add(&mut self, ended: &Ended) {
        self.user_us = self.user_us.saturating_add(ended.user_us);
        self.system_us = self.system_us.saturating_add(ended.system_us);
        self.max_rss_kib = self.max_rss_kib.max(ended.max_rss_kib);
    }
}

/// Runs until the agent itself ends. What it left behind is not waited for: it dies with init, so
/// a descendant that holds a stream delays nothing.
pub(crate) fn until_agent_ends(
    supervisor: &Supervisor,
    children: OwnedFd,
    terminal: Option<&OwnedFd>,
    agent: i32,
) -> Result<u8, Ending> {
    let mut usage = Usage::default();
    let mut children = File::from(children);
    loop {
        let events = [Event::Readable(children.as_fd()), Event::Readable(supervisor.as_fd())];
        let [child, order] = fd::wait(events).map_err(Failure::at("watch"))?;
        if child {
            clear(&mut children).map_err(Failure::at("watch"))?;
            if let Some(status) = reap_all(agent, &mut usage).map_err(Failure::at("watch"))? {
                let Usage { user_us, system_us, max_rss_kib } = usage;
                let wait_status = status;
                let exited = FromInit::Exited { wait_status, user_us, system_us, max_rss_kib };
                supervisor.tell(&exited, &[])?;
                return Ok(as_shell_status(status));
            }
        }
        if order {
            match supervisor.next()? {
                Some(ToInit::Signal { signal }) => pass_on(agent, signal),
                Some(ToInit::Resize { rows, cols }) => {
                    resize(terminal.map(AsFd::as_fd), rows, cols)?;
                }
                // S1: the agent is started once.
                Some(ToInit::Go) | None => {}
            }
        }
    }
}

/// Takes the pending events; what happened is learnt from wait4.
fn clear(children: &mut File) -> io::Result<()> {
    let mut buffer = [0; EVENT_BYTES * EVENTS_PER_READ];
    match children.read(&mut buffer) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reaps everything that ended; the agent's wait status when it is among it.
fn reap_all(agent: i32, usage: &mut Usage) -> io::Result<Option<i32>> {
    let mut status = None;
    while let Some(ended) = process::reap(-1, false)? {
        usage.add(&ended);
        if ended.pid == agent {
            status = Some(ended.status);
        }
    }
    Ok(status)
}

/// Sends a signal to the agent's process group. The agent leads its session, so it is always in that
/// group, and gets the signal once: programs take a second SIGINT for "at once".
fn pass_on(agent: i32, signal: i32) {
    // The group may have ended meanwhile, which the next event tells.
    let _ = process::signal_group(agent, signal);
}

/// The exit status a shell would have; only the fallback, the helper was told the exact one.
fn as_shell_status(status: i32) -> u8 {
    let status = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    };
    u8::try_from(status & 0xff).unwrap_or(u8::MAX)
}
