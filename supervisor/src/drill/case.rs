//! Cases: which place in which story, who is killed, and whether it happens again in recovery.

use std::fmt;

use crate::crash::{Crash, Place, Point, Side, Victim};

use super::story::{STORIES, Setting, Story, story};

/// A crash, and the places that a start after it comes along.
pub(super) struct Situation {
    pub(super) name: &'static str,
    pub(super) means: &'static str,
    story: &'static str,
    first: Crash,
    places: &'static [Place],
}

impl Situation {
    /// Whether the start after the crash comes along a place.
    pub(super) fn comes_along(&self, place: Place) -> bool {
        self.places.contains(&place)
    }
}

const fn both(place: Place, side: Side) -> Crash {
    Crash { point: Point { place, side }, nth: 1, victim: Victim::Both }
}

/// What supervisor and helper can be killed in the middle of, before the start that is killed again.
pub(super) const SITUATIONS: &[Situation] = &[
    Situation {
        name: "again-running",
        means: "killed while a run works, and again in the recovery",
        story: "cancel",
        first: both(Place::CancelRequested, Side::Before),
        places: &[
            Place::HelperStarted,
            Place::Locked,
            Place::Folded,
            Place::Scanned,
            Place::Probed,
            Place::SupervisorStarted,
            Place::Recorded,
            Place::UnknownRemoved,
            Place::RevokeToken,
            Place::TokenRevoked,
            Place::RemoveGroup,
            Place::GroupRemoved,
            Place::CloseBoundary,
            Place::BoundaryClosed,
            Place::SealWorkspace,
            Place::WorkspaceSealed,
            Place::RunSettled,
            Place::WriteReceipt,
            Place::ReceiptOnDisk,
            Place::ReceiptIssued,
            Place::Settled,
            Place::Listening,
        ],
    },
    Situation {
        name: "again-preparing",
        means: "killed while a workspace is made, and again in the recovery",
        story: "work",
        first: both(Place::WorkspaceMade, Side::Before),
        places: &[Place::SupervisorStarted, Place::RemoveWorkspace, Place::WorkspaceRemoved],
    },
    Situation {
        name: "again-kept",
        means: "killed between keeping and recording a request, and again in the recovery",
        story: "work",
        first: both(Place::RequestKept, Side::Before),
        places: &[Place::Recorded, Place::LeftoverRemoved, Place::UnknownRemoved],
    },
    Situation {
        name: "again-exporting",
        means: "killed after a ref was made, and again in the recovery",
        story: "export",
        first: both(Place::Export, Side::After),
        places: &[Place::SupervisorStarted, Place::Export, Place::Exported],
    },
    Situation {
        name: "again-discarding",
        means: "killed while a workspace is deleted, and again in the recovery",
        story: "discard",
        first: both(Place::Discard, Side::Before),
        places: &[Place::SupervisorStarted, Place::Discard, Place::Discarded],
    },
];

/// One case.
#[derive(Clone)]
pub(super) struct Case {
    /// Where and who.
    pub(super) crash: Crash,
    pub(super) story: &'static Story,
    pub(super) setting: Setting,
    /// The crash before it, when the case is about the start after that.
    pub(super) again: Option<&'static Situation>,
}

impl Case {
    /// Crashes in their order, one for each start.
    pub(super) fn crashes(&self) -> Vec<Crash> {
        self.again.map(|situation| situation.first).into_iter().chain([self.crash]).collect()
    }

    /// The situation or story that it happens in.
    pub(super) fn course(&self) -> &'static str {
        self.again.map_or(self.story.name, |situation| situation.name)
    }

    /// Whether a person's words name this case: its place, its course, or all of it.
    pub(super) fn is_named(&self, word: &str) -> bool {
        let point = self.crash.point;
        [self.to_string().as_str(), &point.to_string(), point.place.label(), self.course()]
            .contains(&word)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (point, victim) = (self.crash.point, self.crash.victim.as_str());
        write!(f, "{point}/{}/{victim}/{}", self.setting.as_str(), self.course())
    }
}

/// Every point in every story that comes along, and again in every situation.
fn courses() -> Vec<(Point, &'static Story, Option<&'static Situation>)> {
    let mut all = Vec::new();
    for point in Point::all() {
        for name in point.place.stories() {
            all.extend(story(name).map(|story| (point, story, None)));
        }
    }
    for situation in SITUATIONS {
        let Some(story) = story(situation.story) else { continue };
        let points = Point::all().filter(|point| situation.comes_along(point.place));
        all.extend(points.map(|point| (point, story, Some(situation))));
    }
    all
}

/// The whole product.
pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (point, story, again) in courses() {
        for setting in story.settings {
            for victim in Victim::ALL {
                let crash = Crash { point, nth: 1, victim };
                cases.push(Case { crash, story, setting: *setting, again });
            }
        }
    }
    cases.retain(makes_sense);
    cases
}

/// Each course once: victims and settings take turns, so that all of them come.
pub(super) fn usual() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, (point, story, again)) in courses().into_iter().enumerate() {
        // Other stories of a place are for `--all`.
        let first = point.place.stories().first();
        if again.is_none() && first != Some(&story.name) {
            continue;
        }
        let Some(victim) = Victim::ALL.get(at % Victim::ALL.len()) else { continue };
        let crash = Crash { point, nth: 1, victim: *victim };
        // The first setting from its turn on in which the place is reached.
        let turns = story.settings.iter().cycle().skip(at % story.settings.len());
        let mut possible = turns
            .take(story.settings.len())
            .map(|setting| Case { crash, story, setting: *setting, again })
            .filter(makes_sense);
        cases.extend(possible.next());
    }
    cases
}

/// Whether a case can be: some places belong to some settings.
fn makes_sense(case: &Case) -> bool {
    let contained = case.setting != Setting::Host;
    match case.crash.point.place {
        Place::SealWorkspace
        | Place::WorkspaceSealed
        | Place::RemoveWorkspace
        | Place::WorkspaceRemoved => case.setting.keeps_work(),
        Place::PrepareWorkspace
        | Place::WorkspaceMade
        | Place::WorkspaceReady
        | Place::CompilePolicy
        | Place::BindBoundary => contained,
        _ => case.again.is_none_or(|s| s.first.point.place != Place::WorkspaceMade || contained),
    }
}

/// Stories and situations with what they mean.
pub(super) fn descriptions() -> Vec<(&'static str, &'static str)> {
    let stories = STORIES.iter().map(|story| (story.name, story.means));
    stories.chain(SITUATIONS.iter().map(|s| (s.name, s.means))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_point_has_a_usual_case_and_every_case_a_name_of_its_own() {
        let drilled: BTreeSet<String> =
            usual().iter().map(|case| case.crash.point.to_string()).collect();
        let points: BTreeSet<String> = Point::all().map(|point| point.to_string()).collect();
        assert_eq!(drilled, points);
        let names: BTreeSet<String> = all().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), all().len());
        for case in usual() {
            assert!(makes_sense(&case), "{case}");
            assert!(names.contains(&case.to_string()), "{case}");
        }
    }

    #[test]
    fn the_usual_cases_have_every_victim_and_every_setting() {
        let usual = usual();
        for victim in Victim::ALL {
            assert!(usual.iter().any(|case| case.crash.victim == victim), "{victim:?}");
        }
        for setting in Setting::ALL {
            assert!(usual.iter().any(|case| case.setting == setting), "{setting:?}");
        }
    }

    #[test]
    fn every_story_that_a_place_names_exists_and_every_story_is_named() {
        let named: BTreeSet<&str> =
            Place::ALL.iter().flat_map(|place| place.stories()).copied().collect();
        let there: BTreeSet<&str> = STORIES.iter().map(|story| story.name).collect();
        assert_eq!(named, there);
    }
}
