//! The repository an agent gets for itself.

use std::path::{Path, PathBuf};

use atenea_core::Refusal;
use gix_hash::ObjectId;

use crate::clone::Cloning;
use crate::copy::copy_private;
use crate::fail::{at_path, io};
use crate::git::Git;
use crate::identity::NOBODY;
use crate::ids::id_of;
use crate::path::os;
use crate::staging::make_dirs;
use crate::store::write_file;

impl Cloning<'_> {
    fn branch(&self) -> Vec<u8> {
        self.source.branch.as_ref().map_or_else(|| b"main".to_vec(), |name| name.0.clone())
    }

    /// The agent's own repository with the history of the base commit.
    pub(crate) fn repository_with_history(&self, excludes: &[u8]) -> Result<(), Refusal> {
        let git_dir = self.git_dir(excludes)?;
        let packs = self.store.path.join("objects/pack");
        let entries = std::fs::read_dir(&packs).map_err(at_path("listing", &packs))?;
        for entry in entries {
            let entry = entry.map_err(at_path("listing", &packs))?;
            copy_private(&entry.path(), &git_dir.join("objects/pack").join(entry.file_name()))?;
        }
        let shallow = self.store.path.join("shallow");
        if shallow.exists() {
            copy_private(&shallow, &git_dir.join("shallow"))?;
        }
        self.point_head(&git_dir, self.commit)?;
        let index = self.store.path.join("index");
        if index.exists() {
            copy_private(&index, &git_dir.join("index"))?;
        }
        Ok(())
    }

    /// The agent's own repository with one commit of what the ceiling lets it see.
    pub(crate) fn repository_without_history(
        &self,
        excludes: &[u8],
        raw: &ObjectId,
    ) -> Result<(), Refusal> {
        let text = format!(
            "tree {raw}\nauthor atenea <atenea@localhost> 0 +0000\n\
             committer atenea <atenea@localhost> 0 +0000\n\nFiles of the workspace\n"
        );
        let commit = id_of(gix_object::Kind::Commit, text.as_bytes())?;
        self.store
            .import(1, None, |pack| pack.object(gix_object::Kind::Commit, text.as_bytes()))?;
        let git_dir = self.git_dir(excludes)?;
        let path = self.staging.path.join("base.pack");
        let file = std::fs::File::create_new(&path).map_err(at_path("making", &path))?;
        self.store
            .git("pack-objects")
            .args(["--revs", "--stdout", "-q"])
            .run_to_file(file, |out| {
                writeln!(out, "{commit}").map_err(|error| io(format!("writing: {error}")))
            })?;
        let file = std::fs::File::open(&path).map_err(at_path("opening", &path))?;
        let git = |name: &str| Git::new(name).repository(&git_dir).work_tree(self.dest);
        git("index-pack").arg("--stdin").run_from_file(file)?;
        self.point_head(&git_dir, Some(commit))?;
        git("read-tree").arg(commit.to_string()).run()?;
        // Status 1 only says that something differs, for example by line endings.
        git("update-index").with_attributes().args(["-q", "--refresh"]).outcome().map(drop)
    }

    /// Makes `.git` of the workspace: no remote, no hook, no alternate.
    fn git_dir(&self, excludes: &[u8]) -> Result<PathBuf, Refusal> {
        let git_dir = self.dest.join(".git");
        for dir in ["objects/pack", "objects/info", "refs/heads", "refs/tags", "info"] {
            make_dirs(&git_dir.join(dir))?;
        }
        let identity = &self.options.identity;
        let mut config = format!(
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
             \tlogallrefupdates = true\n\tcheckStat = minimal\n\ttrustctime = false\n{}\
             [gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n[user]\n",
            identity.settings_text()?
        );
        let who = [("name", &identity.name, NOBODY.0), ("email", &identity.email, NOBODY.1)];
        for (key, value, nobody) in who {
            let value = value.as_deref().unwrap_or(nobody);
            config.push_str(&format!("\t{key} = {}\n", quoted(value)));
        }
        write_file(&git_dir.join("config"), config.as_bytes())?;
        write_file(&git_dir.join("description"), b"Private clone of a supervised run\n")?;
        write_file(&git_dir.join("info/exclude"), excludes)?;
        write_file(&git_dir.join("HEAD"), b"ref: refs/heads/main\n")?;
        Ok(git_dir)
    }

    fn point_head(&self, git_dir: &Path, commit: Option<ObjectId>) -> Result<(), Refusal> {
        let git = |name: &str| Git::new(name).repository(git_dir);
        let name = [&b"refs/heads/"[..], &self.branch()].concat();
        let detached = self.source.branch.is_none();
        match commit {
            Some(id) if detached => {
                write_file(&git_dir.join("HEAD"), format!("{id}\n").as_bytes())?;
            }
            _ => {
                git("symbolic-ref").arg("HEAD").arg(os(&name)).run()?;
            }
        }
        if let (Some(id), false) = (commit, detached) {
            git("update-ref").arg("--no-deref").arg(os(&name)).arg(id.to_string()).run()?;
        }
        Ok(())
    }
}

/// A value of a configuration file: nothing in it can end the line or the quotes.
fn quoted(value: &str) -> String {
    let mut out = String::from("\"");
    for ch in value.chars() {
        match ch {
            '"' | '\\' => out.extend(['\\', ch]),
            _ if ch.is_control() => out.push(' '),
            _ => out.push(ch),
        }
    }
    out.push('"');
    out
}
