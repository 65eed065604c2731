//! What a run changed, for a person and for a program.
//!
//! Made from the store only: git compares two trees there, without external diff or text
//! conversion, and without attributes (a `.gitattributes` of the agent could hide content).

use std::collections::BTreeMap;
use std::path::Path;

use atenea_core::Refusal;
use serde::{Deserialize, Serialize};

use crate::fail::io;
use crate::flags::{Embedded, Flag, flags_of_path};
use crate::git::Git;
use crate::path::{RawPath, shown_text};
use crate::seal::Sealed;
use crate::store::{BaseMeta, Store};
use crate::tree::Mode;

/// A unified diff that is safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffText {
    /// Control characters, escape sequences and characters that deceive are escaped.
    pub text: String,
    /// Whether more was there than the bound allowed.
    pub truncated: bool,
}

/// How a file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It is new.
    Added,
    /// Its content or mode differs.
    Modified,
    /// It is gone.
    Deleted,
    /// It became a link, or was one.
    TypeChanged,
}

/// One changed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffFile {
    /// Where it is.
    pub path: RawPath,
    /// How it changed.
    pub status: Status,
    /// Mode before, as git writes it.
    pub old_mode: Option<String>,
    /// Mode after.
    pub new_mode: Option<String>,
    /// Bytes after.
    pub size: Option<u64>,
    /// Lines added; none for binary content.
    pub added: Option<u64>,
    /// Lines removed; none for binary content.
    pub removed: Option<u64>,
    /// What a reviewer should look at.
    pub flags: Vec<Flag>,
}

/// `diff-tree` between base and result, byte for byte.
pub(crate) fn diff_tree(store: &Store, meta: &BaseMeta, sealed: &Sealed, args: &[&str]) -> Git {
    store
        .git("diff-tree")
        .args(["-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"])
        .args(["--full-index", "--ignore-submodules=none", "--src-prefix=a/", "--dst-prefix=b/"])
        .args(args)
        .args([&meta.raw_tree, &sealed.raw_tree])
}

/// The diff as text of at most `max` bytes before escaping.
///
/// # Errors
/// `fs.io` when the store cannot be read.
pub fn diff(store: &Path, sealed: &Sealed, max: u64) -> Result<DiffText, Refusal> {
    let (store, meta) = Store::open(store)?;
    let (bytes, truncated) = diff_tree(&store, &meta, sealed, &["-p"]).run_bounded(max)?;
    Ok(DiffText { text: shown_text(&bytes), truncated })
}

/// The changed files, sorted by path.
///
/// # Errors
/// `fs.io` when the store cannot be read.
pub fn diff_json(store: &Path, sealed: &Sealed) -> Result<Vec<DiffFile>, Refusal> {
    let (store, meta) = Store::open(store)?;
    let wrong = || io("git diff-tree gave a line of unknown form");
    let raw = diff_tree(&store, &meta, sealed, &["--raw", "-z"]).run()?;
    let counts = counts(&diff_tree(&store, &meta, sealed, &["--numstat", "-z"]).run()?)?;
    let mut files = Vec::new();
    let mut ids = Vec::new();
    let mut parts = crate::git::nul_parts(&raw);
    while let Some(head) = parts.next() {
        let path = parts.next().ok_or_else(wrong)?;
        let head = std::str::from_utf8(head).map_err(|_| wrong())?;
        let words: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
        let [old_mode, new_mode, _, new_id, status] = words[..] else { return Err(wrong()) };
        let mode = |text: &str| (text != "000000").then(|| text.to_owned());
        let status = match status {
            "A" => Status::Added,
            "D" => Status::Deleted,
            "T" => Status::TypeChanged,
            "M" => Status::Modified,
            _ => return Err(wrong()),
        };
        let (added, removed) = counts.get(path).copied().unwrap_or((None, None));
        let mut file = DiffFile {
            path: RawPath(path.to_vec()),
            status,
            old_mode: mode(old_mode),
            new_mode: mode(new_mode),
            size: None,
            added,
            removed,
            flags: flags_of_path(path),
        };
        add_flags(&mut file);
        files.push(file);
        ids.push(new_id.to_owned());
    }
    let all = store.files_of(&sealed.raw_tree)?;
    let embedded = Embedded::among(all.keys().map(Vec::as_slice));
    for at in embedded.to_name(files.iter().map(|file| file.path.0.as_slice())) {
        if let Some(file) = files.get_mut(at) {
            file.flags.push(Flag::EmbeddedRepository);
        }
    }
    for (file, size) in files.iter_mut().zip(sizes(&store, &ids)?) {
        file.size = size;
    }
    Ok(files)
}

fn add_flags(file: &mut DiffFile) {
    let octal = |mode: Mode| Some(mode.octal().to_owned());
    let became = file.old_mode != octal(Mode::Executable);
    if became && file.new_mode == octal(Mode::Executable) {
        file.flags.push(Flag::Executable);
    }
    if file.new_mode == octal(Mode::Link) {
        file.flags.push(Flag::Symlink);
    }
    if file.added.is_none() && file.status != Status::Deleted {
        file.flags.push(Flag::Binary);
    }
    file.flags.sort_unstable();
}

type Counts = (Option<u64>, Option<u64>);

/// Lines added and removed by path; `-` stands for binary content.
fn counts(out: &[u8]) -> Result<BTreeMap<Vec<u8>, Counts>, Refusal> {
    let wrong = || io("git diff-tree gave a count of unknown form");
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    crate::git::nul_parts(out)
        .map(|line| {
            let mut words = line.splitn(3, |byte| *byte == b'\t');
            let added = words.next().ok_or_else(wrong)?;
            let removed = words.next().ok_or_else(wrong)?;
            let path = words.next().ok_or_else(wrong)?;
            Ok((path.to_vec(), (number(added), number(removed))))
        })
        .collect()
}

/// Sizes of blobs; none for the id of nothing.
fn sizes(store: &Store, ids: &[String]) -> Result<Vec<Option<u64>>, Refusal> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let out = store.cat_file("--batch-check=%(objectsize)", ids)?;
    Ok(String::from_utf8_lossy(&out).lines().map(|line| line.parse().ok()).collect())
}
