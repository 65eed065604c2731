//! Rules about `docs/invariants.md`: every invariant is listed, and one that is in force is upheld
//! by code that says so and shown by tests that exist.

use std::collections::{BTreeMap, BTreeSet};

use super::Tracked;
use super::lexer::{has_word, layers};
use super::source::{is_test_file, split_tests};

/// How many invariants each area has; none is dropped quietly.
pub const AREAS: [(&str, u32); 7] =
    [("J", 9), ("B", 8), ("S", 7), ("C", 4), ("R", 3), ("T", 2), ("E", 6)];

/// One row of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invariant {
    /// For example `B3`.
    pub id: String,
    /// What holds.
    pub statement: String,
    /// Files that uphold it.
    pub files: Vec<String>,
    /// Tests that show it.
    pub tests: Vec<String>,
    /// It holds today; otherwise a later part brings it.
    pub in_force: bool,
}

/// Reads the rows of the page.
///
/// # Errors
/// A row with the wrong number of columns or an unknown state.
pub fn rows(page: &str) -> Result<Vec<Invariant>, String> {
    let mut rows = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let id = cells.first().copied().unwrap_or_default().trim_matches('*');
        let mut letters = id.chars();
        let area = letters.next().is_some_and(|c| c.is_ascii_uppercase());
        if !area || !letters.all(|c| c.is_ascii_digit()) || id.len() < 2 {
            continue;
        }
        let [_, statement, files, tests, state] = cells.as_slice() else {
            return Err(format!("the row of {id} has {} columns, not 5", cells.len()));
        };
        let in_force = match *state {
            "in force" => true,
            other if other.starts_with("later") => false,
            other => return Err(format!("{id} is {other:?}, neither in force nor later")),
        };
        let (statement, id) = ((*statement).to_owned(), id.to_owned());
        rows.push(Invariant {
            id,
            statement,
            files: ticked(files),
            tests: ticked(tests),
            in_force,
        });
    }
    Ok(rows)
}

/// What stands between backquotes.
fn ticked(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Ids that should be on the page and are not, or are twice.
pub fn missing(rows: &[Invariant]) -> Vec<String> {
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    for row in rows {
        *count.entry(row.id.as_str()).or_default() += 1;
    }
    let wanted =
        AREAS.iter().flat_map(|(area, last)| (1..=*last).map(move |n| format!("{area}{n}")));
    wanted
        .filter_map(|id| match count.get(id.as_str()).copied().unwrap_or(0) {
            1 => None,
            n => Some(format!("{id} is listed {n} times")),
        })
        .collect()
}

/// Rows in force that nothing upholds or shows, and references to what is not there.
pub fn broken(rows: &[Invariant], files: &[Tracked]) -> Vec<String> {
    let sources = Sources::of(files);
    let mut found = Vec::new();
    for row in rows {
        let id = &row.id;
        let absent = row.files.iter().filter(|file| !sources.paths.contains(file.as_str()));
        found.extend(absent.map(|file| format!("{id} names {file}, which is not there")));
        let unknown =
            row.tests.iter().filter(|test| !has_word(&sources.test_code, &format!("fn {test}")));
        found.extend(unknown.map(|test| format!("{id} names the test {test}, which is not there")));
        if !row.in_force {
            continue;
        }
        if row.files.is_empty() || row.tests.is_empty() {
            found.push(format!("{id} names no file or no test"));
        }
        if !has_word(&sources.product, id) {
            found.push(format!("{id} is cited by no comment of the product's code"));
        }
        if !has_word(&sources.tests, id) {
            found.push(format!("{id} is cited by no test"));
        }
    }
    found
}

/// All Rust sources, split into what the rules look at.
struct Sources<'a> {
    paths: BTreeSet<&'a str>,
    /// Comments of code that ships.
    product: String,
    /// Everything of tests.
    tests: String,
    /// Code of tests.
    test_code: String,
}

impl<'a> Sources<'a> {
    fn of(files: &'a [Tracked]) -> Self {
        let paths = files.iter().map(|f| f.path.as_str()).collect();
        let (mut product, mut tests) = (String::new(), String::new());
        for file in files.iter().filter(|f| is_source(&f.path)) {
            if is_test_file(&file.path) {
                tests.push_str(&file.text);
                continue;
            }
            let (code, inner) = split_tests(&file.text);
            product.push_str(&layers(&code).comments);
            tests.push_str(&inner);
        }
        let test_code = layers(&tests).code;
        Sources { paths, product, tests, test_code }
    }
}

/// Rust files, but not the texts of these rules, which name ids without upholding anything.
fn is_source(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, ext)| ext == "rs")
        && !path.starts_with("model-tests/src/tidy")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "| id | what | where | shown by | state |\n|---|---|---|---|---|\n\
        | **B1** | sums fit | `a.rs` | `sums_fit` | in force |\n\
        | **B2** | later | | | later: prices |\n";

    fn file(path: &str, text: &str) -> Tracked {
        Tracked { path: path.into(), text: text.into() }
    }

    fn good() -> Vec<Tracked> {
        vec![
            file("a.rs", "// B1: here\nfn a() {}\n"),
            file("tests/a.rs", "#[test]\nfn sums_fit() {\n // B1\n}\n"),
        ]
    }

    #[test]
    fn a_page_whose_references_exist_is_accepted() {
        let rows = rows(PAGE).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(broken(&rows, &good()), Vec::<String>::new());
    }

    #[test]
    fn an_invariant_nobody_upholds_or_shows_is_found() {
        let rows = rows(PAGE).unwrap();
        let mut files = good();
        files[0].text = "fn a() { let s = \"B1\"; }\n".into();
        assert_eq!(broken(&rows, &files), ["B1 is cited by no comment of the product's code"]);
        let mut files = good();
        files[1].text = "fn sums_fit() {}".into();
        assert_eq!(broken(&rows, &files), ["B1 is cited by no test"]);
    }

    #[test]
    fn a_test_or_file_that_was_renamed_is_found() {
        let rows = rows(PAGE).unwrap();
        let mut files = good();
        files[0].path = "b.rs".into();
        files[1].text = "fn sums_fit_well() { /* B1 */ }".into();
        let found = broken(&rows, &files);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_citation_in_the_test_part_of_a_file_counts_as_a_test_only() {
        let rows = rows(PAGE).unwrap();
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n // B1\n fn sums_fit() {}\n}\n";
        let files = [file("a.rs", text)];
        assert_eq!(broken(&rows, &files), ["B1 is cited by no comment of the product's code"]);
    }

    #[test]
    fn dropped_ids_bad_states_and_bad_rows_are_found() {
        let rows_found = rows(PAGE).unwrap();
        assert!(missing(&rows_found).contains(&"J1 is listed 0 times".to_owned()));
        assert!(rows("| B1 | x | `a` | `b` | perhaps |").is_err());
        assert!(rows("| B1 | x | in force |").is_err());
    }
}
