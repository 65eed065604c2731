//! Rules about the repository itself, as functions over text so that each can be shown to fail.
//!
//! `tests/tidy.rs` applies them to every file that git knows.

pub mod book;
pub mod crates;
pub mod lexer;
pub mod source;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// One file of the repository.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// Its path below the root, with `/`.
    pub path: String,
    /// Its text; files that are not UTF-8 are left out.
    pub text: String,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every text file that git tracks or would add, so that a rule is broken before the commit.
///
/// # Errors
/// When git cannot be run or says no.
pub fn tracked() -> io::Result<Vec<Tracked>> {
    let root = root();
    let kinds = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let listed = Command::new("git").arg("-C").arg(&root).args(kinds).output()?;
    if !listed.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&listed.stderr).into_owned()));
    }
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut files = Vec::new();
    for path in names.split('\0').filter(|name| !name.is_empty()) {
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            files.push(Tracked { path: path.to_owned(), text });
        }
    }
    Ok(files)
}
