//! The repository keeps its own rules. Each rule is a function of `atenea_model_tests::tidy`, whose
//! unit tests show that it can fail.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

use std::collections::{BTreeMap, BTreeSet};

use atenea_model_tests::pages::{ERRORS, error_pages};
use atenea_model_tests::tidy::crates::{Manifest, unexplained};
use atenea_model_tests::tidy::{Tracked, book, source, tracked};

fn files() -> Vec<Tracked> {
    let files = tracked().unwrap();
    assert!(
        files.iter().any(|f| f.path == "supervisor/core/src/decide.rs"),
        "git lists the sources"
    );
    files
}

fn rust(files: &[Tracked]) -> impl Iterator<Item = &Tracked> {
    files.iter().filter(|f| f.path.rsplit_once('.').is_some_and(|(_, ext)| ext == "rs"))
}

fn assert_none(found: Vec<String>) {
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn in_each<'a>(
    files: impl Iterator<Item = &'a Tracked>,
    rule: impl Fn(&Tracked) -> Vec<String>,
) -> Vec<String> {
    files.flat_map(|f| rule(f).into_iter().map(|what| format!("{}: {what}", f.path))).collect()
}

fn text<'a>(files: &'a [Tracked], path: &str) -> &'a str {
    &files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("{path} is not tracked")).text
}

fn members(files: &[Tracked]) -> Vec<String> {
    let members = Manifest::parse(text(files, "Cargo.toml")).unwrap().members();
    assert!(members.len() >= 12, "{members:?}");
    members
}

#[test]
fn files_and_functions_are_short() {
    let files = files();
    let lines = |f: &Tracked| source::too_long(&f.text).into_iter().collect();
    let functions = |f: &Tracked| source::long_functions(&f.text);
    assert_none(in_each(rust(&files), lines));
    assert_none(in_each(rust(&files), functions));
}

#[test]
fn no_source_has_what_is_banned_in_its_place() {
    let files = files();
    assert_none(in_each(rust(&files), |f| source::banned_words(&f.path, &f.text)));
}

#[test]
fn no_text_names_a_path_of_a_build_machine() {
    assert_none(in_each(files().iter(), |f| source::machine_paths(&f.text)));
}

#[test]
fn every_crate_without_a_place_for_it_forbids_unsafe() {
    let files = files();
    let mut found = Vec::new();
    for member in members(&files) {
        let root = |f: &&Tracked| {
            let inside = f.path.strip_prefix(&format!("{member}/src/")).unwrap_or_default();
            let program = inside.strip_prefix("bin/").is_some_and(|name| !name.contains('/'));
            inside == "lib.rs" || inside == "main.rs" || program
        };
        let roots: Vec<&Tracked> = rust(&files).filter(root).collect();
        assert!(!roots.is_empty(), "{member} has no root file");
        let may = source::UNSAFE_CRATES.contains(&member.as_str());
        let open = roots.iter().filter(|f| !may && !source::forbids_unsafe(&f.text));
        found.extend(open.map(|f| format!("{} does not forbid unsafe code", f.path)));
    }
    assert_none(found);
}

#[test]
fn arrows_between_crates_point_one_way_and_the_core_stays_pure() {
    let files = files();
    let mut found = Vec::new();
    for member in members(&files) {
        let manifest = Manifest::parse(text(&files, &format!("{member}/Cargo.toml"))).unwrap();
        found.extend(manifest.wrong_arrows());
        found.extend(manifest.impure_libraries());
        found.extend(manifest.own_versions());
    }
    assert_none(found);
}

#[test]
fn every_library_has_a_reason_and_a_licence() {
    assert_none(unexplained(text(&files(), "Cargo.toml")));
}

#[test]
fn every_invariant_is_listed_and_those_in_force_are_upheld_and_shown() {
    let files = files();
    let rows = book::rows(text(&files, "docs/invariants.md")).unwrap();
    assert_none(book::missing(&rows));
    assert_none(book::broken(&rows, &files));
}

#[test]
fn the_pages_of_codes_are_those_that_make_docs_writes() {
    let files = files();
    let wanted = error_pages();
    let found: BTreeMap<&str, &str> = files
        .iter()
        .filter_map(|f| {
            f.path.strip_prefix(&format!("{ERRORS}/")).map(|name| (name, f.text.as_str()))
        })
        .collect();
    let names: BTreeSet<&str> = wanted.keys().map(String::as_str).collect();
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), names, "run make docs");
    for (name, text) in &wanted {
        assert_eq!(found[name.as_str()], text, "{name}: run make docs");
    }
}
