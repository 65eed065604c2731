//! What a drill says: a table for people, objects for programs.

use serde_json::json;

use crate::cli::output::Output;
use crate::cli::text::table;
use crate::clock;
use crate::crash::{Place, Point};

use super::case::{self, Case};
use super::run::Report;

/// Shows every place and every story.
pub(super) fn list(output: &Output) {
    let points: Vec<(Point, Vec<&str>)> = Point::all().map(|p| (p, courses(p.place))).collect();
    if output.json {
        for (point, courses) in &points {
            output.object(&json!({
                "place": point.to_string(), "means": point.place.means(), "stories": courses,
            }));
        }
        for (name, means) in case::descriptions() {
            output.object(&json!({ "story": name, "means": means }));
        }
        return;
    }
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|(point, courses)| {
            vec![point.to_string(), courses.join(" "), point.place.means().to_owned()]
        })
        .collect();
    output.data(&table(&["PLACE", "STORIES", "WHAT HAPPENS"], &rows));
    let rows: Vec<Vec<String>> = case::descriptions()
        .iter()
        .map(|(name, means)| vec![(*name).to_owned(), (*means).to_owned()])
        .collect();
    output.data(&format!("\n{}", table(&["STORY", "WHAT HAPPENS"], &rows)));
}

/// Stories and situations that come along a place.
fn courses(place: Place) -> Vec<&'static str> {
    let again = case::SITUATIONS.iter().filter(|s| s.comes_along(place)).map(|s| s.name);
    place.stories().iter().copied().chain(again).collect()
}

/// Collects reports and shows them.
pub(super) struct Table<'a> {
    output: &'a Output,
    planned: usize,
    rows: Vec<Vec<String>>,
    findings: Vec<String>,
    unclean: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(output: &'a Output, planned: usize) -> Self {
        Table { output, planned, rows: Vec::new(), findings: Vec::new(), unclean: 0 }
    }

    /// One case has ended.
    pub(super) fn add(&mut self, case: &Case, report: &Report) {
        let clean = report.findings.is_empty();
        self.unclean += usize::from(!clean);
        let result = if clean { "ok" } else { "finding" };
        if self.output.json {
            self.output.object(&json!({
                "case": case.to_string(),
                "place": case.crash.point.to_string(),
                "profile": case.setting.as_str(),
                "victim": case.crash.victim.as_str(),
                "story": case.course(),
                "kills": case.crashes().len(),
                "result": result,
                "findings": report.findings,
                "ms": report.ms,
                "kept": report.kept,
            }));
        }
        self.rows.push(vec![
            case.crash.point.to_string(),
            case.setting.as_str().to_owned(),
            case.crash.victim.as_str().to_owned(),
            case.course().to_owned(),
            clock::human_ms(report.ms),
            result.to_owned(),
        ]);
        let kept = report.kept.iter().map(|path| format!("kept in {}", path.display()));
        for what in report.findings.iter().cloned().chain(kept) {
            self.findings.push(format!("{case}: {what}"));
        }
        if self.output.interactive {
            let done = self.rows.len();
            let (planned, unclean) = (self.planned, self.unclean);
            self.output
                .progress(&format!("{done}/{planned} cases, {unclean} with findings: {case}"));
        }
    }

    /// Shows everything; gives the exit status.
    pub(super) fn end(mut self, ms: u64, interrupted: bool) -> u8 {
        self.output.progress_done();
        let (done, unclean) = (self.rows.len(), self.unclean);
        if self.output.json {
            self.output.object(&json!({
                "summary": true, "cases": done, "planned": self.planned,
                "clean": done - unclean, "with_findings": unclean,
                "interrupted": interrupted, "ms": ms,
            }));
        } else {
            self.rows.sort();
            let head = ["PLACE", "PROFILE", "VICTIM", "STORY", "TIME", "RESULT"];
            self.output.data(&table(&head, &self.rows));
            self.output.data(&self.summary(ms));
        }
        let whole = done == self.planned && unclean == 0;
        if whole { 0 } else { crate::exit::NO }
    }

    fn summary(&self, ms: u64) -> String {
        let (done, unclean) = (self.rows.len(), self.unclean);
        let mut text = String::from("\n");
        for finding in &self.findings {
            text.push_str(&format!("finding: {finding}\n"));
        }
        let (clean, time) = (done - unclean, clock::human_ms(ms));
        text.push_str(&format!(
            "{done} of {} cases in {time}: {clean} clean, {unclean} with findings\n",
            self.planned
        ));
        text
    }
}
