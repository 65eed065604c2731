//! The `files` ceiling and the ignored files a manifest asks for.

use atenea_core::{Code, Refusal};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

/// Which files of the workspace a run sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// A ceiling: nothing else of the workspace is visible.
    pub files: Vec<String>,
    /// Ignored files that are visible all the same.
    #[serde(default)]
    pub include_ignored: Vec<String>,
}

impl Default for Filter {
    fn default() -> Self {
        Filter { files: vec!["**".to_owned()], include_ignored: Vec::new() }
    }
}

/// The most patterns a filter may have: each costs time for every file.
const MAX_PATTERNS: usize = 1_000;

impl Filter {
    /// Whether the filter shows everything; only then is there any history.
    pub fn is_everything(&self) -> bool {
        self.files.iter().any(|glob| glob == "**")
    }

    pub(crate) fn compile(&self) -> Result<Compiled, Refusal> {
        let files = if self.is_everything() { None } else { Some(set(&self.files)?) };
        let ignored =
            if self.include_ignored.is_empty() { None } else { Some(set(&self.include_ignored)?) };
        Ok(Compiled { files, ignored })
    }
}

fn set(globs: &[String]) -> Result<GlobSet, Refusal> {
    let wrong = |cause: String| Refusal::new(Code::ManifestBadValue, cause);
    if globs.is_empty() {
        return Err(Refusal::new(Code::ManifestEmptyList, "workspace.files is empty"));
    }
    if globs.len() > MAX_PATTERNS {
        return Err(wrong(format!("{} patterns, at most {MAX_PATTERNS}", globs.len())));
    }
    let mut builder = GlobSetBuilder::new();
    for text in globs {
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|error| wrong(format!("pattern {text:?}: {}", error.kind())))?;
        builder.add(glob);
    }
    builder.build().map_err(|error| wrong(format!("patterns: {error}")))
}

/// A filter ready to use. `*` does not cross `/`, `**` does.
pub(crate) struct Compiled {
    files: Option<GlobSet>,
    ignored: Option<GlobSet>,
}

impl Compiled {
    pub(crate) fn shows(&self, path: &[u8]) -> bool {
        self.files.as_ref().is_none_or(|set| set.is_match(crate::path::os(path)))
    }

    pub(crate) fn shows_everything(&self) -> bool {
        self.files.is_none()
    }

    pub(crate) fn wants_ignored(&self) -> bool {
        self.ignored.is_some()
    }

    pub(crate) fn shows_ignored(&self, path: &[u8]) -> bool {
        self.ignored.as_ref().is_some_and(|set| set.is_match(crate::path::os(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_in_its_directory_and_two_stars_do_not() {
        let filter = Filter {
            files: vec!["src/**".to_owned(), "*.toml".to_owned()],
            include_ignored: vec!["node_modules/**".to_owned()],
        };
        let compiled = filter.compile().unwrap();
        assert!(compiled.shows(b"src/a/b.rs") && compiled.shows(b"Cargo.toml"));
        assert!(compiled.shows(b"src/caf\xe9"));
        assert!(!compiled.shows(b"sub/Cargo.toml") && !compiled.shows(b"srcx/a"));
        assert!(compiled.shows_ignored(b"node_modules/x/y") && !compiled.shows_ignored(b"t/o"));
    }

    #[test]
    fn an_empty_list_and_a_bad_pattern_are_refused() {
        let filter = |files: &[&str]| Filter {
            files: files.iter().map(|text| (*text).to_owned()).collect(),
            include_ignored: Vec::new(),
        };
        assert_eq!(filter(&[]).compile().err().unwrap().code, Code::ManifestEmptyList);
        assert_eq!(filter(&["a["]).compile().err().unwrap().code, Code::ManifestBadValue);
        assert!(filter(&["src/**", "**"]).is_everything());
    }
}
