//! The store of one workspace: a bare repository of ours beside it, out of the agent's reach.
//!
//! It holds the base (two trees, see [`BaseMeta`]) and later the result. Its configuration is
//! written here and by nobody else; objects enter it only through `git index-pack`, results only
//! with `--strict`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::fail::{at_path, io};
use crate::filter::Filter;
use crate::git::{Git, Outcome};
use crate::identity::Identity;
use crate::inspect::SourceKind;
use crate::pack;
use crate::path::RawPath;
use crate::room::Watched;
use crate::staging::make_dirs;

/// What the base of a workspace was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BaseMeta {
    pub(crate) version: u32,
    pub(crate) kind: SourceKind,
    pub(crate) root: RawPath,
    pub(crate) filter: Filter,
    /// The files as they were put into the workspace, byte for byte.
    pub(crate) raw_tree: String,
    /// The same as the repository would record it: unchanged files with their recorded entry, and
    /// what the workspace does not show (submodules, sparse and filtered files) kept.
    pub(crate) base_tree: String,
    /// What an export is put on top of.
    pub(crate) base_commit: Option<String>,
    /// Directories that belong to submodules.
    pub(crate) submodules: Vec<RawPath>,
    /// `.git` directories that came along with a plain directory; they belong to no tree.
    pub(crate) opaque: Vec<RawPath>,
    /// Files on disk at the start.
    pub(crate) files: u64,
    /// State of the workspace's own `.git` before the agent, to tell whether it did anything.
    pub(crate) git_state: Option<String>,
    /// Refs of the workspace's own repository before the agent, and what they named.
    #[serde(default)]
    pub(crate) refs: Option<Vec<(RawPath, RawPath)>>,
}

impl BaseMeta {
    /// Whether the base holds what the base commit does not.
    pub(crate) fn has_uncommitted(&self, store: &Store) -> Result<bool, Refusal> {
        if self.kind != SourceKind::Repository {
            return Ok(false);
        }
        let Some(commit) = &self.base_commit else {
            return Ok(self.base_tree != crate::git::EMPTY_TREE);
        };
        let tree = format!("{commit}^{{tree}}");
        let found = store.git("rev-parse").args(["--verify", "-q", "--end-of-options", &tree]);
        Ok(found.run()?.trim_ascii() != self.base_tree.as_bytes())
    }
}

pub(crate) const META_VERSION: u32 = 1;
const META: &str = "base.json";

/// A store on disk.
pub(crate) struct Store {
    pub(crate) path: PathBuf,
}

impl Store {
    pub(crate) fn create(path: &Path, identity: &Identity) -> Result<Self, Refusal> {
        make_dirs(path)?;
        for dir in ["objects/pack", "objects/info", "refs/heads", "info", "ignore"] {
            make_dirs(&path.join(dir))?;
        }
        write_file(&path.join("HEAD"), b"ref: refs/heads/none\n")?;
        let config = format!(
            "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tcheckStat = minimal\n\
             \ttrustctime = false\n{}",
            identity.settings_text()?
        );
        write_file(&path.join("config"), config.as_bytes())?;
        Ok(Store { path: path.to_path_buf() })
    }

    pub(crate) fn open(path: &Path) -> Result<(Self, BaseMeta), Refusal> {
        let file = path.join(META);
        let bytes = std::fs::read(&file).map_err(at_path("reading", &file))?;
        let meta: BaseMeta = serde_json::from_slice(&bytes)
            .map_err(|error| io(format!("the description of the base is damaged: {error}")))?;
        if meta.version != META_VERSION {
            return Err(io(format!("the base has version {}, not {META_VERSION}", meta.version)));
        }
        Ok((Store { path: path.to_path_buf() }, meta))
    }

    /// The last step of making a workspace: a store without it is half made.
    pub(crate) fn complete(&self, meta: &BaseMeta) -> Result<(), Refusal> {
        let bytes = serde_json::to_vec_pretty(meta)
            .map_err(|error| io(format!("describing the base: {error}")))?;
        self.sync()?;
        write_file(&self.path.join(META), &bytes)?;
        self.sync()
    }

    /// Brings the names in the store to the disk. Content is there already: git is told to sync
    /// what it writes, and so does [`write_file`].
    pub(crate) fn sync(&self) -> Result<(), Refusal> {
        for path in [self.path.join("objects/pack"), self.path.clone()] {
            let dir = crate::beneath::open_dir(&path)?;
            rustix::fs::fsync(dir).map_err(at_path("writing", &path))?;
        }
        Ok(())
    }

    pub(crate) fn git(&self, name: &str) -> Git {
        Git::new(name).repository(&self.path).within(&self.path)
    }

    /// Takes a pack with its index: by link when the filesystem allows, it is never written again.
    pub(crate) fn adopt(&self, stem: &Path) -> Result<(), Refusal> {
        let name: String = stem.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for kind in ["pack", "idx"] {
            let from = stem.with_extension(kind);
            let name = format!("pack-{}.{kind}", name.get(..40).unwrap_or("base"));
            let to = self.path.join("objects/pack").join(name);
            if std::fs::hard_link(&from, &to).is_err() {
                crate::copy::copy_private(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Puts objects into the store through git's own checks.
    pub(crate) fn import(
        &self,
        count: usize,
        strict: Option<Code>,
        fill: impl FnOnce(&mut pack::Writer<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if count == 0 {
            return Ok(());
        }
        let mut git = self.git("index-pack").arg("--stdin");
        if strict.is_some() {
            git = git.arg("--strict");
        }
        let packs = self.path.join("objects/pack");
        let disk = File::open(&packs).map_err(at_path("opening", &packs))?;
        let outcome = git.run_with(|out| {
            let mut out = Watched::new(out, disk);
            let mut writer = pack::Writer::new(&mut out, count)?;
            fill(&mut writer)?;
            writer.finish()
        });
        if !outcome.as_ref().is_ok_and(Outcome::ok) {
            remove_half_made(&packs);
        }
        let outcome = outcome?;
        match strict {
            _ if outcome.ok() => Ok(()),
            Some(code) => Err(outcome.refusal(code)),
            None => outcome.must().map(drop),
        }
    }

    /// What `git cat-file` says of objects, in their order, with one of its batch options.
    pub(crate) fn cat_file<T: std::fmt::Display>(
        &self,
        option: &str,
        ids: impl IntoIterator<Item = T>,
    ) -> Result<Vec<u8>, Refusal> {
        let asked = self.git("cat-file").args([option, "--buffer"]).run_with(|out| {
            for id in ids {
                writeln!(out, "{id}").map_err(|error| io(format!("writing: {error}")))?;
            }
            Ok(())
        })?;
        asked.must()
    }

    /// The content of blobs, in the order of their ids; for small ones.
    pub(crate) fn blobs(&self, ids: &[gix_hash::ObjectId]) -> Result<Vec<Vec<u8>>, Refusal> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let out = self.cat_file("--batch=%(objectsize)", ids)?;
        let wrong = || io("git cat-file gave an answer of unknown form");
        let mut rest = out.as_slice();
        let mut blobs = Vec::with_capacity(ids.len());
        for _ in ids {
            let line = rest.iter().position(|byte| *byte == b'\n').ok_or_else(wrong)?;
            let size = std::str::from_utf8(&rest[..line]).ok().and_then(|text| text.parse().ok());
            let size: usize = size.ok_or_else(wrong)?;
            let from = &rest[line + 1..];
            blobs.push(from.get(..size).ok_or_else(wrong)?.to_vec());
            rest = from.get(size + 1..).ok_or_else(wrong)?;
        }
        Ok(blobs)
    }

    /// Files of a tree: path, mode and id, sorted by path.
    pub(crate) fn files_of(
        &self,
        tree: &str,
    ) -> Result<std::collections::BTreeMap<Vec<u8>, crate::tree::Leaf>, Refusal> {
        let out = self.git("ls-tree").args(["-r", "-z", "--full-tree", tree]).run()?;
        crate::git::nul_parts(&out).map(parse_tree_line).collect()
    }
}

/// Removes what git leaves of a pack that it could not finish. Nobody else writes to this store.
fn remove_half_made(packs: &Path) {
    let Ok(entries) = std::fs::read_dir(packs) else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"tmp_") {
            // What stays is removed with the store.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// One line of `ls-tree -z`: mode, type, id, tab, path.
pub(crate) fn parse_tree_line(line: &[u8]) -> Result<(Vec<u8>, crate::tree::Leaf), Refusal> {
    let wrong = || io("git ls-tree gave a line of unknown form");
    let tab = line.iter().position(|byte| *byte == b'\t').ok_or_else(wrong)?;
    let mut words = line[..tab].split(|byte| *byte == b' ');
    let mode = words.next().and_then(crate::tree::Mode::parse).ok_or_else(wrong)?;
    let id = crate::ids::parse(words.nth(1).ok_or_else(wrong)?)?;
    Ok((line[tab + 1..].to_vec(), crate::tree::Leaf { mode, id }))
}

/// Writes a file of ours whole: a reader sees the old or the new content.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Refusal> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(crate::ids::random_name(".tmp-")?);
    let temporary = path.with_file_name(name);
    let written = File::create_new(&temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_data()
        })
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        at_path("writing", path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_that_is_given_up_leaves_nothing_in_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(&dir.path().join("s"), &Identity::default()).unwrap();
        let packs = store.path.join("objects/pack");
        let left = || std::fs::read_dir(&packs).unwrap().count();
        let refused = store.import(1, None, |pack| {
            pack.blob(2 << 20, |out| {
                // More than git's buffer: it has begun its file when it has taken all of it.
                let noise: Vec<u8> = (0..1u32 << 15)
                    .flat_map(|n| *blake3::hash(&n.to_le_bytes()).as_bytes())
                    .collect();
                out.write_all(&noise).map_err(|error| io(error.to_string()))?;
                while left() == 0 {
                    std::thread::yield_now();
                }
                Err(Refusal::new(Code::FsDiskFull, "given up"))
            })
        });
        assert_eq!(refused.unwrap_err().code, Code::FsDiskFull);
        assert_eq!(left(), 0);
    }
}
