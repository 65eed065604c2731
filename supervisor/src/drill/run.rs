//! Plays one case: the story with its kills, the recovery, the checks.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use atenea_core::RunId;

use crate::api::types::Info;
use crate::clock;
use crate::config::Config;
use crate::crash::{Crash, Victim};

use super::Plant;
use super::case::Case;
use super::check::{self, Course, Said};
use super::facts::{self, Fact};
use super::look::{self, Wanted};
use super::play::{self, Seen};
use super::scene::{self, Life, Scene};
use super::story::{Act, Setting};

/// What came of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// What must not be.
    pub(super) findings: Vec<String>,
    /// How long it took, milliseconds.
    pub(super) ms: u64,
    /// Where it lies, when it was kept.
    pub(super) kept: Option<PathBuf>,
}

/// How cases are played.
#[derive(Clone, Copy)]
pub(super) struct Manner<'a> {
    pub(super) config: &'a Config,
    /// Keep the places of cases with findings.
    pub(super) keep: bool,
    /// What is left behind on purpose.
    pub(super) plant: Option<Plant>,
}

/// Plays a case in a place of its own.
pub(super) async fn run(case: &Case, manner: Manner<'_>) -> Report {
    let began = clock::now().boot_ms;
    let mut report = Report::default();
    let large = case.story.acts.iter().any(|act| matches!(act, Act::Run(ask) if ask.large));
    match Scene::new(manner.config, case.setting, large) {
        Ok(scene) => {
            let mut drill = Drill::new(case, manner, &scene);
            drill.play().await;
            report.findings = drill.found;
            if manner.keep && !report.findings.is_empty() {
                report.kept = Some(scene.keep());
            }
        }
        Err(refusal) => report.findings.push(format!("no place for the case: {}", refusal.cause)),
    }
    report.ms = clock::now().boot_ms.saturating_sub(began);
    report
}

struct Drill<'a> {
    case: &'a Case,
    manner: Manner<'a>,
    scene: &'a Scene,
    seen: Seen,
    found: Vec<String>,
    /// Sessions of all supervisors: whoever is in one is theirs.
    sessions: Vec<u32>,
    durable: Vec<Vec<Fact>>,
    both_died: bool,
    /// The helper of the last supervisor.
    helper: Option<u32>,
}

impl<'a> Drill<'a> {
    fn new(case: &'a Case, manner: Manner<'a>, scene: &'a Scene) -> Self {
        Drill {
            case,
            manner,
            scene,
            seen: Seen::default(),
            found: Vec::new(),
            sessions: Vec::new(),
            durable: Vec::new(),
            both_died: false,
            helper: None,
        }
    }

    async fn play(&mut self) {
        let before = match look::picture(&self.scene.work()) {
            Ok(before) => before,
            Err(error) => return self.found.push(error),
        };
        for crash in self.case.crashes() {
            if let Err(what) = self.until_killed(crash).await {
                return self.found.push(what);
            }
        }
        let said = match self.recover().await {
            Ok(said) => said,
            Err(what) => return self.found.push(what),
        };
        let planted = self.manner.plant.map(|plant| Planted::new(plant, self.scene));
        self.found.extend(check::host(self.scene, &self.wanted()).await);
        match self.read() {
            Ok(all) => {
                let course = Course {
                    case: self.case,
                    seen: &self.seen,
                    said: &said,
                    before: &before,
                    durable: &self.durable,
                    facts: &all,
                };
                self.found.extend(course.check(self.scene));
            }
            Err(what) => self.found.push(what),
        }
        drop(planted);
    }

    /// One start with its kill.
    async fn until_killed(&mut self, crash: Crash) -> Result<(), String> {
        let first = self.durable.is_empty();
        let life = self.start(Some(crash)).await?;
        if life.is_ready() && first {
            let played =
                play::play(self.scene, self.case.story, self.case.setting, &mut self.seen).await;
            if let Err(what) = played
                && !self.scene.was_reached(crash)
            {
                self.found.push(what);
                let _ = play::stop(&self.scene.client()).await;
            }
        } else if life.is_ready() {
            play::stop(&self.scene.client()).await?;
        }
        self.scene.ended(life).await?;
        if !self.scene.was_reached(crash) {
            self.found.push(format!("{crash} was never reached"));
        }
        self.durable.push(self.read()?);
        // Nobody is left who could end a run without a sandbox when both are dead.
        self.both_died |= crash.victim == Victim::Both;
        if !self.both_died || self.case.setting != Setting::Host {
            let left = check::left(self.scene, &self.wanted()).await;
            self.found.extend(left.iter().map(|what| format!("{what} lives on after the kill")));
        }
        Ok(())
    }

    /// A start that nobody disturbs: it must put everything right.
    async fn recover(&mut self) -> Result<Said, String> {
        let life = self.start(None).await?;
        if !life.is_ready() {
            let word = life.word.clone();
            let _ = self.scene.ended(life).await;
            return Err(format!("the recovery does not come to an end: {word}"));
        }
        let client = self.scene.client();
        let info: Info = client.get("/v1/info").await.map_err(|refusal| refusal.cause)?;
        self.helper = u32::try_from(info.helper).ok();
        let said = check::ask(&client, &mut self.found).await;
        let runs = Wanted { marks: self.wanted().marks, ..Wanted::default() };
        self.found.extend(check::left(self.scene, &runs).await);
        self.found.extend(check::groups_of_runs(self.scene));
        if let Err(what) = play::works_again(&client, self.scene).await {
            self.found.push(what);
        }
        play::stop(&client).await?;
        self.scene.ended(life).await?;
        if let Err(what) = facts::verify(&self.scene.place.dirs.journal()) {
            self.found.push(what);
        }
        said.map_err(|refusal| format!("the recovered supervisor: {}", refusal.cause))
    }

    async fn start(&mut self, crash: Option<Crash>) -> Result<Life, String> {
        let life = self.scene.start(crash).await.map_err(|refusal| refusal.cause)?;
        self.sessions.push(life.pid());
        Ok(life)
    }

    fn read(&self) -> Result<Vec<Fact>, String> {
        facts::read(&self.scene.place.dirs.journal())
    }

    /// Everybody who must be gone when supervisors are dead and runs are over.
    fn wanted(&self) -> Wanted {
        Wanted {
            marks: self.known().iter().map(ToString::to_string).collect(),
            sessions: self.sessions.clone(),
            helpers: scene::helpers(self.scene).into_iter().chain(self.helper).collect(),
        }
    }

    /// Runs that were acknowledged or recorded.
    fn known(&self) -> Vec<RunId> {
        let facts = self.durable.last().into_iter().flatten();
        let recorded = facts.filter_map(|fact| fact.recorded.event.run().cloned());
        let mut all: Vec<RunId> = recorded.chain(self.seen.runs.iter().cloned()).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// Something that is left behind on purpose, until this is dropped.
struct Planted {
    child: Option<Child>,
    groups: Vec<PathBuf>,
}

impl Planted {
    fn new(plant: Plant, scene: &Scene) -> Self {
        let mut planted = Planted { child: None, groups: Vec::new() };
        match plant {
            Plant::File => drop(std::fs::write(scene.place.dirs.root().join("planted"), "")),
            Plant::Base => drop(std::fs::write(scene.work().join("file"), "changed\n")),
            Plant::Group => planted.groups = check::plant_groups(scene),
            Plant::Process => {
                let mut command = Command::new("sleep");
                command.arg("600").current_dir(scene.work()).stdin(Stdio::null());
                planted.child = command.spawn().ok();
            }
        }
        planted
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        for group in &self.groups {
            let _ = std::fs::remove_dir(group);
        }
    }
}
