//! `drill`: kills real supervisors at every labelled place, lets them recover, and looks from
//! outside whether everything is right again.
//!
//! Each case has a throw-away place of its own: state directory, workspace, configuration. It starts
//! supervisors of this very program, plays a story as a person would, and is over when a supervisor
//! that nobody disturbed has stopped in order. A place that a case does not come along is a finding
//! too, so that the table cannot claim what was not tried.

mod case;
mod check;
mod facts;
mod look;
mod play;
mod report;
mod run;
mod scene;
mod story;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use atenea_core::{Code, Refusal};
use clap::{Args, ValueEnum};

use crate::cli::Done;
use crate::cli::args::Global;
use crate::cli::output::Output;
use crate::{clock, config};

use case::Case;
use report::Table;
use run::{Manner, Report};

/// Cases at once, when nothing else is asked for: each has two processes that work.
const JOBS_MAX: usize = 4;

/// Options of `drill`.
#[derive(Debug, Args)]
pub struct DrillArgs {
    /// Places, stories or whole cases [default: every place once]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Show places and stories; kill nothing
    #[arg(long)]
    pub list: bool,
    /// Every place in every story, with every profile and every victim
    #[arg(long)]
    pub all: bool,
    /// Cases at once [default: one for each processor, at most 4]
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Keep the directories of cases with findings
    #[arg(long)]
    pub keep: bool,
    /// Leave something behind on purpose: shows that it is found
    #[arg(long, value_enum, value_name = "WHAT")]
    pub plant: Option<Plant>,
}

/// What can be left behind on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// A file in the state directory
    File,
    /// A process in the workspace
    Process,
    /// A control group of the supervisor
    Group,
    /// A changed file in the project
    Base,
}

/// Drills, and says what was found. Exit status 1 when anything was.
///
/// # Errors
/// `host.config`.
pub(crate) fn drill(global: &Global, output: &Output, args: &DrillArgs) -> Done {
    if global.state_dir.is_some() || global.socket.is_some() {
        let cause = "a drill makes its own state directories and sockets";
        output
            .refusal(&Refusal::new(Code::ApiBadRequest, cause).with_help(
                "leave out --state-dir and --socket; TMPDIR says where the drill works",
            ));
        return Ok(crate::exit::USAGE);
    }
    if args.list {
        report::list(output);
        return Ok(0);
    }
    let Some(cases) = chosen(args) else {
        output.must_say(
            "error: there is no place, story or case of this name; see: atenea-sup drill --list",
        );
        return Ok(crate::exit::USAGE);
    };
    let config = config::load(global.config.as_deref())?;
    let manner = Manner { config: &config, keep: args.keep, plant: args.plant };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The cases that are under way come to their end; places are removed by them.
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Refusal::new(Code::HostNoSupervisor, format!("signals: {e}")))?;
    }
    let began = clock::now().boot_ms;
    let mut table = Table::new(output, cases.len());
    play_all(&cases, manner, jobs(args), &stop, |case, report| table.add(case, report));
    Ok(table.end(clock::now().boot_ms.saturating_sub(began), stop.load(Ordering::Relaxed)))
}

fn jobs(args: &DrillArgs) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    args.jobs.unwrap_or(processors.min(JOBS_MAX)).max(1)
}

/// The cases that a person means; `None` when a name stands for nothing.
fn chosen(args: &DrillArgs) -> Option<Vec<Case>> {
    let usual = if args.all { case::all() } else { case::usual() };
    if args.names.is_empty() {
        return Some(usual);
    }
    let mut cases: Vec<Case> = Vec::new();
    for name in &args.names {
        let of = |pool: Vec<Case>| -> Vec<Case> {
            pool.into_iter().filter(|case| case.is_named(name)).collect()
        };
        let found = match of(usual.clone()) {
            found if found.is_empty() => of(case::all()),
            found => found,
        };
        if found.is_empty() {
            return None;
        }
        cases.extend(found);
    }
    Some(cases)
}

/// Plays cases, several at once; gives each report in the order in which they end.
fn play_all(
    cases: &[Case],
    manner: Manner<'_>,
    jobs: usize,
    stop: &AtomicBool,
    mut ended: impl FnMut(&Case, &Report),
) {
    let next = AtomicUsize::new(0);
    let (tell, reports) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(cases.len()) {
            let (next, tell) = (&next, tell.clone());
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    let _ = tell.send((case, play_one(case, manner)));
                }
            });
        }
        drop(tell);
        for (case, report) in reports {
            ended(case, &report);
        }
    });
}

/// A case has a runtime of its own, so that cases do not wait for each other.
fn play_one(case: &Case, manner: Manner<'_>) -> Report {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run::run(case, manner)),
        Err(error) => {
            Report { findings: vec![format!("no runtime: {error}")], ..Report::default() }
        }
    }
}
