//! Every manifest in `fixtures/manifests` is accepted, or refused as its first line says.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its helpers")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use atenea_core::manifest::{
    Ceilings, Checked, MaxLimits, check, explain, parse_bytes, parse_json, parse_toml,
};
use atenea_core::{Code, Limits, Refusal};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/manifests").join(name)
}

fn fixtures(name: &str) -> Vec<(String, String)> {
    let mut list: Vec<(String, String)> = fs::read_dir(folder(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), text)
        })
        .collect();
    list.sort();
    list
}

fn ceilings() -> Ceilings {
    let max = MaxLimits {
        memory_bytes: Some(64 << 30),
        duration_ms: Some(24 * 3_600_000),
        ..MaxLimits::default()
    };
    Ceilings { defaults: Limits::default(), max }
}

fn judge(parsed: Result<atenea_core::manifest::Manifest, Refusal>) -> Result<Checked, Refusal> {
    check(&parsed?, &ceilings())
}

/// What the first line of a fixture promises: code, path, and the word that is suggested.
fn expectation(name: &str, text: &str) -> (Code, String, Option<String>) {
    let line = text.lines().next().and_then(|line| line.strip_prefix("# expect: "));
    let line = line.unwrap_or_else(|| panic!("{name}: no `# expect:` line"));
    let (code, rest) = line.split_once(" at ").unwrap_or_else(|| panic!("{name}: no path"));
    let (path, word) = match rest.split_once(" suggest ") {
        Some((path, word)) => (path, Some(word.to_owned())),
        None => (rest, None),
    };
    (Code::parse(code).unwrap_or_else(|| panic!("{name}: {code}?")), path.to_owned(), word)
}

fn assert_refused(name: &str, text: &str, refusal: &Refusal) {
    let (code, path, word) = expectation(name, text);
    assert_eq!(refusal.code, code, "{name}: {refusal}");
    assert!(refusal.cause.contains(&path), "{name}: {path:?} is not named: {refusal}");
    if let Some(word) = word {
        assert!(refusal.help.contains(&format!("`{word}`")), "{name}: {refusal}");
    }
}

#[test]
fn each_invalid_manifest_is_refused_with_its_code_and_path() {
    let list = fixtures("invalid");
    assert!(list.len() > 100, "only {} fixtures", list.len());
    for (name, text) in &list {
        match judge(parse_bytes(text.as_bytes())) {
            Err(refusal) => assert_refused(name, text, &refusal),
            Ok(_) => panic!("{name} was accepted"),
        }
    }
}

/// Dates, NaN and infinity exist in TOML alone.
fn as_json(text: &str) -> Option<String> {
    let value: toml::Table = toml::from_str(text).ok()?;
    let finite = ["= nan", "= inf", "2026-01-01"].iter().all(|only| !text.contains(only));
    finite.then(|| serde_json::to_string(&value).unwrap())
}

#[test]
fn each_invalid_manifest_is_refused_the_same_when_it_is_json() {
    let mut compared = 0;
    for (name, text) in fixtures("invalid") {
        let Some(json) = as_json(&text) else { continue };
        let refusal = judge(parse_json(&json)).unwrap_err();
        assert_refused(&name, &text, &refusal);
        assert_eq!(Some(refusal), judge(parse_toml(&text)).err(), "{name}");
        compared += 1;
    }
    assert!(compared > 100, "only {compared} fixtures could be compared");
}

#[test]
fn each_valid_manifest_is_accepted_and_explained() {
    let list = fixtures("valid");
    assert!(list.len() >= 7, "only {} fixtures", list.len());
    for (name, text) in &list {
        let manifest = parse_bytes(text.as_bytes()).unwrap_or_else(|why| panic!("{name}: {why}"));
        let checked = check(&manifest, &ceilings()).unwrap_or_else(|why| panic!("{name}: {why}"));
        // S3: what will run is what the digest is of.
        assert_eq!(checked.digest(), manifest.digest(), "{name}");
        for line in explain(&manifest) {
            assert!(line.ends_with('.') && !line.chars().any(char::is_control), "{name}: {line}");
        }
    }
}

#[test]
fn every_manifest_code_has_a_fixture() {
    let shown: BTreeSet<Code> =
        fixtures("invalid").iter().map(|(name, text)| expectation(name, text).0).collect();
    // Size and options cannot be written into a fixture; unit tests show these two.
    let elsewhere = [Code::ManifestTooLarge, Code::ManifestWiderThanApproved];
    for code in Code::ALL.iter().filter(|code| code.as_str().starts_with("manifest.")) {
        assert!(shown.contains(code) || elsewhere.contains(code), "{code} has no fixture");
    }
}

// S3: an approval is bound to these bytes. A changed digest here means that every approval given
// so far stops to fit: only a new schema version may do that. The values were computed outside of
// this program.
#[test]
fn digests_of_the_fixtures_never_change() {
    for (name, digest) in [
        ("minimal.toml", "b3:794bc73ed828816702d295911070dcfa2a0f069540a3038905d783cb34c9e788"),
        ("minimal.json", "b3:794bc73ed828816702d295911070dcfa2a0f069540a3038905d783cb34c9e788"),
        (
            "everything-enforced.toml",
            "b3:1094ff5550fa8c0c4c10c870ba15fdea62551d9823c4014fe03e47e7a914514f",
        ),
        (
            "everything-enforced.json",
            "b3:1094ff5550fa8c0c4c10c870ba15fdea62551d9823c4014fe03e47e7a914514f",
        ),
        (
            "ceiling-of-files.toml",
            "b3:4973ff7319f37b69d2170aee0d6ddd2cb1d960782f3b002ad15b48ac2019eeec",
        ),
    ] {
        let manifest = parse_bytes(&fs::read(folder("valid").join(name)).unwrap()).unwrap();
        assert_eq!(manifest.digest().to_string(), digest, "{name}: {}", manifest.canonical_json());
    }
}
