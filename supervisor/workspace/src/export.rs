//! Accepting the work of a run: a commit and one new ref in the user's repository, or a patch.
//!
//! Two processes do it. The supervisor makes commits and pack from the run's store; whoever owns the
//! repository (S6) gets the pack, takes the objects and moves the ref. The commit is made from inputs
//! only, so a repeated export gives the same id; objects are checked again where they arrive; the ref
//! moves by compare-and-swap, and no hook of the repository runs. Everything may be repeated after a
//! crash (R2, R3): what is there already is success.

use std::path::Path;

use atenea_core::{Code, Refusal};
use gix_hash::ObjectId;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::diff::diff_tree;
use crate::fail::{at_path, io};
use crate::git::nul_parts;
use crate::identity::{Identity, NOBODY};
use crate::ids::{id_of, parse};
use crate::inspect::Source;
use crate::path::{RawPath, shown};
use crate::seal::Sealed;
use crate::store::{BaseMeta, Store};

/// What to write into the commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The commit message.
    pub text: String,
    /// Seconds since 1970: an input, so that a repeated export makes the same commit.
    pub seconds: u64,
}

/// The commits of an export, packed for the repository they go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// The agent's commit.
    pub commit: String,
    /// The commit below it, with the uncommitted files that the run started from.
    pub base: Option<String>,
}

/// Namespaces of refs that mean something to git itself.
const RESERVED: &[&str] =
    &["bisect", "rewritten", "worktree", "replace", "stash", "remotes", "notes", "original"];

/// The message of the commit that holds what the user had not committed.
const BASE_MESSAGE: &str = "Uncommitted state the run started from\n\n\
    The files as they were on disk when the run began, before the agent changed any.\n";

/// Makes the commits of the result, on top of the base commit, and packs what a repository lacks
/// that has (`knows_base`) or has not the base commit: as one commit, or as two when the run started
/// from files that were not committed. The first then holds those, so that the second is the agent's
/// work and nothing else. Changes that cannot be exported are left out, see [`Sealed::left_out`].
///
/// Reads the store, which holds more than is exported, and so is done with the supervisor's rights;
/// of the store, whoever owns the repository gets this pack (`reader`: uid and gid) and nothing else.
///
/// # Errors
/// `export.*`, `fs.*`.
pub fn pack_export(
    store: &Path,
    sealed: &Sealed,
    knows_base: bool,
    message: &Message,
    identity: &Identity,
    pack: &Path,
    reader: Option<(u32, u32)>,
) -> Result<Packed, Refusal> {
    let (store, meta) = Store::open(store)?;
    if !meta.root_is_repository() {
        return Err(Refusal::new(Code::ExportNotRepository, meta.root.shown()));
    }
    if sealed.result_tree == meta.base_tree {
        return Err(sealed.nothing(false));
    }
    let commits = Commits::new(&store, &meta, sealed, message, identity)?;
    store.import(commits.texts.len(), Some(Code::ExportBadPath), |pack| {
        commits.texts.iter().try_for_each(|text| pack.object(gix_object::Kind::Commit, text))
    })?;
    let mut revs = format!("{}\n", commits.last);
    if let (true, Some(base)) = (knows_base, &meta.base_commit) {
        revs.push_str(&format!("^{base}\n"));
    }
    let file = std::fs::File::create_new(pack).map_err(at_path("making", pack))?;
    if let Some((uid, gid)) = reader {
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid))
            .map_err(at_path("giving away", pack))?;
    }
    store.git("pack-objects").args(["--revs", "--stdout", "-q"]).run_to_file(file, |out| {
        out.write_all(revs.as_bytes()).map_err(|error| io(format!("writing: {error}")))
    })?;
    let base = commits.base.map(|id| id.to_string());
    Ok(Packed { commit: commits.last.to_string(), base })
}

/// Whether a repository has a commit.
///
/// # Errors
/// `fs.*` when git cannot be asked.
pub fn knows(repository: &Source, commit: &str) -> Result<bool, Refusal> {
    let id = parse(commit.as_bytes())?;
    let known = repository.git("cat-file").args(["-e", &format!("{id}^{{commit}}")]);
    Ok(known.outcome()?.ok())
}

/// Takes the objects of a pack into the repository and points a ref at a commit; with the rights of
/// the repository's owner. `expected` is the value the ref must have; none means that it must not
/// exist. `true`: the ref named the commit before this call.
///
/// # Errors
/// `export.*`, `fs.*`.
pub fn import_ref(
    repository: &Source,
    name: &RawPath,
    commit: &str,
    expected: Option<&str>,
    pack: &Path,
) -> Result<bool, Refusal> {
    if !repository.is_repository() {
        return Err(Refusal::new(Code::ExportNotRepository, repository.root.shown()));
    }
    let commit = parse(commit.as_bytes())?.to_string();
    check_ref(repository, name)?;
    let now = read_ref(repository, name)?;
    if now.as_deref() == Some(commit.as_str()) {
        return Ok(true);
    }
    if now.as_deref() != expected {
        return Err(moved(name, now.as_deref(), expected));
    }
    check_places(repository, name)?;
    let file = std::fs::File::open(pack).map_err(at_path("opening", pack))?;
    repository.git("index-pack").args(["--stdin", "--strict"]).run_from_file(file)?;
    let old = expected.map_or_else(|| ObjectId::null(crate::ids::KIND).to_string(), str::to_owned);
    let outcome = repository
        .git("update-ref")
        // The line of a log that is there is made of nothing the repository says.
        .env("GIT_COMMITTER_NAME", NOBODY.0)
        .env("GIT_COMMITTER_EMAIL", NOBODY.1)
        .args(["--no-deref", "-m", "atenea: export"])
        .arg(crate::path::os(&name.0))
        .args([commit, old])
        .outcome()?;
    if outcome.ok() {
        return Ok(false);
    }
    let now = read_ref(repository, name)?;
    if now.as_deref() != expected {
        return Err(moved(name, now.as_deref(), expected));
    }
    Err(outcome.refusal(not_written(repository, name)))
}

/// S7: what an export writes lies in the repository itself. A planted link in the place of objects,
/// refs or their logs would lead git anywhere.
fn check_places(repository: &Source, name: &RawPath) -> Result<(), Refusal> {
    let Some(common) = &repository.common_dir else { return Ok(()) };
    let common = common.as_path();
    let dir = crate::beneath::open_dir(common)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let places = [Path::new("objects/pack"), Path::new("objects/info"), name.as_path()];
    let logs = Path::new("logs").join(name.as_path());
    for place in places.into_iter().chain([logs.as_path()]) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::openat2(&dir, place, flags, Mode::empty(), resolve) {
            Ok(_) | Err(Errno::NOENT) => {}
            Err(Errno::LOOP | Errno::XDEV) => {
                let cause = format!("a link is on the way to {:?} in {common:?}", place);
                return Err(Refusal::new(Code::ExportBadRef, cause)
                    .with_help("nothing is written through links: use --patch FILE"));
            }
            Err(error) => return Err(at_path("reading", &common.join(place))(error)),
        }
    }
    Ok(())
}

/// Why git, which does not say it, wrote no ref: the name is not always at fault (S6).
fn not_written(repository: &Source, name: &RawPath) -> Code {
    let Some(common) = &repository.common_dir else { return Code::ExportBadRef };
    let path = common.as_path().join(name.as_path());
    let Some(dir) = path.ancestors().skip(1).find(|dir| dir.is_dir()) else {
        return Code::ExportBadRef;
    };
    let needed = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(dir, needed).map_or_else(crate::fail::code_of, |()| Code::ExportBadRef)
}

fn moved(name: &RawPath, now: Option<&str>, expected: Option<&str>) -> Refusal {
    let value = |id: Option<&str>| id.map_or_else(|| "nothing".to_owned(), str::to_owned);
    let cause = format!("{} names {}, not {}", name.shown(), value(now), value(expected));
    Refusal::new(Code::ExportRefExists, cause)
}

/// What a ref names now; recovery asks this after a crash between intent and outcome.
///
/// # Errors
/// `fs.*` when the repository cannot be read.
pub fn read_ref(repository: &Source, name: &RawPath) -> Result<Option<String>, Refusal> {
    let outcome = repository
        .git("rev-parse")
        .args(["--verify", "-q", "--end-of-options"])
        .arg(crate::path::os(&name.0))
        .outcome()?;
    if outcome.ok() {
        return parse(outcome.stdout.trim_ascii()).map(|id| Some(id.to_string()));
    }
    Ok(None)
}

/// A plain name below `refs/` that git accepts, that means nothing special and is checked out
/// nowhere: moving a branch under a work tree would show the export as a change to undo.
fn check_ref(repository: &Source, name: &RawPath) -> Result<(), Refusal> {
    let bad =
        |why: &str| Err(Refusal::new(Code::ExportBadRef, format!("{}: {why}", shown(&name.0))));
    let Some(rest) = name.0.strip_prefix(b"refs/") else { return bad("it is not below refs/") };
    let first = rest.split(|byte| *byte == b'/').next().unwrap_or(b"");
    if RESERVED.iter().any(|word| first.eq_ignore_ascii_case(word.as_bytes())) {
        return bad("the namespace has a meaning of its own");
    }
    let checked = repository.git("check-ref-format").arg(crate::path::os(&name.0)).outcome()?;
    if !checked.ok() {
        return bad("git does not accept the name");
    }
    let listed = repository.git("worktree").args(["list", "--porcelain", "-z"]).run()?;
    let checked_out = nul_parts(&listed)
        .filter_map(|line| line.strip_prefix(b"branch "))
        .any(|branch| branch.eq_ignore_ascii_case(&name.0));
    if checked_out || current_branch(repository)?.is_some_and(|branch| branch == name.0) {
        return bad("the branch is checked out");
    }
    Ok(())
}

/// The branch HEAD names, also before its first commit.
fn current_branch(repository: &Source) -> Result<Option<Vec<u8>>, Refusal> {
    let outcome = repository.git("symbolic-ref").args(["-q", "HEAD"]).outcome()?;
    Ok(outcome.ok().then(|| outcome.stdout.trim_ascii_end().to_vec()))
}

/// The commits of an export, made from inputs only (R3).
struct Commits {
    texts: Vec<Vec<u8>>,
    base: Option<ObjectId>,
    last: ObjectId,
}

impl Commits {
    fn new(
        store: &Store,
        meta: &BaseMeta,
        sealed: &Sealed,
        message: &Message,
        identity: &Identity,
    ) -> Result<Self, Refusal> {
        let who = signature(identity, message.seconds);
        let mut texts = Vec::new();
        let mut parent = meta.base_commit.clone();
        let mut base = None;
        if meta.has_uncommitted(store)? {
            let text = commit_text(&meta.base_tree, parent.as_deref(), &who, BASE_MESSAGE)?;
            let id = id_of(gix_object::Kind::Commit, &text)?;
            texts.push(text);
            parent = Some(id.to_string());
            base = Some(id);
        }
        let text = commit_text(&sealed.result_tree, parent.as_deref(), &who, &message.text)?;
        let last = id_of(gix_object::Kind::Commit, &text)?;
        texts.push(text);
        Ok(Commits { texts, base, last })
    }
}

/// Author and committer, without what would end the line or the name.
fn signature(identity: &Identity, seconds: u64) -> String {
    let clean = |text: &Option<String>, other: &str| {
        let plain: String = text
            .as_deref()
            .unwrap_or("")
            .chars()
            .filter(|ch| !ch.is_control() && !matches!(ch, '<' | '>'))
            .collect();
        let plain = plain.trim().to_owned();
        if plain.is_empty() { other.to_owned() } else { plain }
    };
    let name = clean(&identity.name, NOBODY.0);
    let email = clean(&identity.email, NOBODY.1);
    format!("{name} <{email}> {seconds} +0000")
}

fn commit_text(
    tree: &str,
    parent: Option<&str>,
    who: &str,
    message: &str,
) -> Result<Vec<u8>, Refusal> {
    if message.contains('\0') {
        return Err(io("the message holds a NUL byte"));
    }
    let mut text = format!("tree {tree}\n");
    if let Some(parent) = parent {
        text.push_str(&format!("parent {parent}\n"));
    }
    text.push_str(&format!("author {who}\ncommitter {who}\n\n{}\n", message.trim_end()));
    Ok(text.into_bytes())
}

/// Writes a patch that `git apply` takes, byte for byte; for plain directories too. Changes that
/// cannot be exported are left out, see [`Sealed::left_out`].
///
/// # Errors
/// `export.*`, `fs.*`; the file must not exist.
pub fn export_patch(store: &Path, sealed: &Sealed, file: &Path) -> Result<u64, Refusal> {
    let (store, meta) = Store::open(store)?;
    if sealed.raw_tree == meta.raw_tree {
        return Err(sealed.nothing(true));
    }
    let out = std::fs::File::create_new(file).map_err(at_path("making", file))?;
    let checked = out.try_clone().map_err(at_path("making", file))?;
    let written = diff_tree(&store, &meta, sealed, &["-p", "--binary"])
        .run_to_file(out, |_| Ok(()))
        .and_then(|()| checked.sync_all().map_err(at_path("writing", file)))
        .and_then(|()| checked.metadata().map_err(at_path("reading", file)));
    match written {
        Ok(meta) => Ok(meta.len()),
        Err(refusal) => {
            let _ = std::fs::remove_file(file);
            Err(refusal)
        }
    }
}
