//! The worker process: the supervisor starts itself once more with the client's uid and talks to it
//! in JSON lines, one request after another.

use std::io::{BufRead, Write};
use std::path::Path;

use atenea_core::{Code, Refusal};
use serde::{Deserialize, Serialize};

use crate::clone::{Clone as PrivateClone, CloneOptions};
use crate::diff::{DiffFile, DiffText};
use crate::export::{Message, Packed};
use crate::handover::HandOver;
use crate::identity::Identity;
use crate::inspect::Source;
use crate::path::RawPath;
use crate::progress::Progress;
use crate::seal::{SealOptions, Sealed};
use crate::snapshot::{Snapshot, SnapshotOptions};

/// The most bytes of one request line.
const LINE_MAX: u64 = 4 << 20;

/// What a worker can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant, reason = "a handful of requests per process")]
pub enum Request {
    /// Says that it is there.
    Hello,
    /// See [`crate::inspect()`].
    Inspect {
        /// Where to start.
        path: RawPath,
        /// The supervisor's directory.
        state_dir: Option<RawPath>,
    },
    /// See [`crate::identity`].
    Identity {
        /// The repository or directory.
        source: Source,
        /// The user's home directory.
        home: Option<RawPath>,
    },
    /// See [`crate::snapshot()`].
    Snapshot {
        /// What to take.
        source: Source,
        /// The cache directory.
        cache: RawPath,
        /// How.
        #[serde(default)]
        options: SnapshotOptions,
    },
    /// See [`crate::clone_private`].
    Clone {
        /// What to clone.
        source: Source,
        /// Where to.
        dest: RawPath,
        /// Its store.
        store: RawPath,
        /// The cache directory.
        cache: RawPath,
        /// How.
        #[serde(default)]
        options: CloneOptions,
    },
    /// See [`crate::seal()`].
    Seal {
        /// The workspace.
        ws: RawPath,
        /// Its store.
        store: RawPath,
        /// How.
        #[serde(default)]
        options: SealOptions,
    },
    /// See [`crate::diff()`].
    Diff {
        /// The store.
        store: RawPath,
        /// What was sealed.
        sealed: Sealed,
        /// The most bytes.
        max: u64,
    },
    /// See [`crate::diff_json`].
    DiffJson {
        /// The store.
        store: RawPath,
        /// What was sealed.
        sealed: Sealed,
    },
    /// See [`crate::knows`].
    Knows {
        /// The user's repository.
        repository: Source,
        /// The commit.
        commit: String,
    },
    /// See [`crate::pack_export`].
    PackExport {
        /// The store.
        store: RawPath,
        /// What was sealed.
        sealed: Sealed,
        /// Whether the repository has the base commit.
        knows_base: bool,
        /// The message and its date.
        message: Message,
        /// The author.
        identity: Identity,
        /// The file to make.
        pack: RawPath,
        /// Who gets it.
        reader: Option<(u32, u32)>,
    },
    /// See [`crate::import_ref`].
    ImportRef {
        /// The user's repository.
        repository: Source,
        /// The ref.
        name: RawPath,
        /// What it names afterwards.
        commit: String,
        /// Its value before.
        expected: Option<String>,
        /// The objects.
        pack: RawPath,
    },
    /// See [`crate::read_ref`].
    ReadRef {
        /// The user's repository.
        repository: Source,
        /// The ref.
        name: RawPath,
    },
    /// See [`crate::export_patch`].
    ExportPatch {
        /// The store.
        store: RawPath,
        /// What was sealed.
        sealed: Sealed,
        /// The file to make.
        file: RawPath,
    },
    /// See [`crate::is_unchanged`].
    IsUnchanged {
        /// The workspace.
        ws: RawPath,
        /// Its store.
        store: RawPath,
    },
    /// See [`crate::sweep_staging`].
    SweepStaging {
        /// The cache directory.
        cache: RawPath,
    },
    /// See [`crate::give_to`].
    GiveTo {
        /// The tree.
        dir: RawPath,
        /// Its new owner.
        uid: u32,
        /// Its new group.
        gid: u32,
        /// Only what belongs to this uid.
        from: Option<u32>,
    },
}

/// What a request gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To `hello`.
    Hello,
    /// To `inspect`.
    Source(Source),
    /// To `identity`.
    Identity(Identity),
    /// To `snapshot`.
    Snapshot(Snapshot),
    /// To `clone`.
    Clone(PrivateClone),
    /// To `seal`.
    Sealed(Sealed),
    /// To `diff`.
    Diff(DiffText),
    /// To `diff-json`.
    DiffFiles(Vec<DiffFile>),
    /// To `knows`.
    Knows(bool),
    /// To `pack-export`.
    Packed(Packed),
    /// To `import-ref`: whether it was done before.
    Imported(bool),
    /// To `read-ref`.
    Ref(Option<String>),
    /// To `export-patch`: bytes written.
    Patch(u64),
    /// To `is-unchanged`.
    Unchanged(bool),
    /// To `sweep-staging`: trees removed.
    Swept(u64),
    /// To `give-to`.
    HandedOver(HandOver),
}

/// One line of a worker's output. Every request ends with `done` or `refused`; any number of
/// `progress` lines may come before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// How far it is.
    Progress(Progress),
    /// The end.
    Done(Answer),
    /// The other end.
    Refused(Refusal),
}

/// Serves requests until the reader ends.
///
/// # Errors
/// Those of reader and writer: without them there is nobody to serve.
pub fn serve(mut reader: impl BufRead, mut writer: impl Write) -> std::io::Result<()> {
    loop {
        let mut line = Vec::new();
        let count = std::io::Read::take(&mut reader, LINE_MAX + 1).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(());
        }
        let response = match request(&line) {
            Ok(request) => {
                // A supervisor that is gone shows in the last line; until then work goes on.
                let mut tell = |progress| drop(send(&mut writer, &Response::Progress(progress)));
                answer(request, &mut tell).map_or_else(Response::Refused, Response::Done)
            }
            Err(refusal) => Response::Refused(refusal),
        };
        send(&mut writer, &response)?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
    }
}

fn request(line: &[u8]) -> Result<Request, Refusal> {
    let bad = |cause: String| Refusal::new(Code::ApiBadRequest, cause);
    if line.len() as u64 > LINE_MAX {
        return Err(bad(format!("a request of more than {LINE_MAX} bytes")));
    }
    serde_json::from_slice(line).map_err(|error| bad(format!("worker request: {error}")))
}

fn send(writer: &mut impl Write, response: &Response) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}

fn answer(request: Request, tell: &mut dyn FnMut(Progress)) -> Result<Answer, Refusal> {
    let mut tell = |progress| tell(progress);
    Ok(match request {
        Request::Hello => Answer::Hello,
        Request::Inspect { path, state_dir } => {
            let state = state_dir.as_ref().map(RawPath::as_path);
            Answer::Source(crate::inspect(path.as_path(), state)?)
        }
        Request::Identity { source, home } => {
            let home = home.as_ref().map(RawPath::as_path);
            Answer::Identity(crate::identity(&source, home)?)
        }
        Request::Snapshot { source, cache, options } => {
            Answer::Snapshot(crate::snapshot(&source, cache.as_path(), &options, &mut tell)?)
        }
        Request::Clone { source, dest, store, cache, options } => {
            let (dest, store, cache) = (dest.as_path(), store.as_path(), cache.as_path());
            let clone = crate::clone_private(&source, dest, store, cache, &options, &mut tell)?;
            Answer::Clone(clone)
        }
        Request::Seal { ws, store, options } => {
            Answer::Sealed(crate::seal(ws.as_path(), store.as_path(), &options, &mut tell)?)
        }
        Request::GiveTo { dir, uid, gid, from } => {
            Answer::HandedOver(crate::give_to(dir.as_path(), uid, gid, from)?)
        }
        Request::SweepStaging { cache } => Answer::Swept(crate::sweep_staging(cache.as_path())?),
        other => return review(other),
    })
}

/// The requests that come after the seal.
fn review(request: Request) -> Result<Answer, Refusal> {
    Ok(match request {
        Request::Diff { store, sealed, max } => {
            Answer::Diff(crate::diff(store.as_path(), &sealed, max)?)
        }
        Request::DiffJson { store, sealed } => {
            Answer::DiffFiles(crate::diff_json(store.as_path(), &sealed)?)
        }
        Request::Knows { repository, commit } => Answer::Knows(crate::knows(&repository, &commit)?),
        Request::PackExport { store, sealed, knows_base, message, identity, pack, reader } => {
            Answer::Packed(crate::pack_export(
                store.as_path(),
                &sealed,
                knows_base,
                &message,
                &identity,
                pack.as_path(),
                reader,
            )?)
        }
        Request::ImportRef { repository, name, commit, expected, pack } => {
            let expected = expected.as_deref();
            let pack = pack.as_path();
            Answer::Imported(crate::import_ref(&repository, &name, &commit, expected, pack)?)
        }
        Request::ReadRef { repository, name } => Answer::Ref(crate::read_ref(&repository, &name)?),
        Request::ExportPatch { store, sealed, file } => {
            Answer::Patch(crate::export_patch(store.as_path(), &sealed, file.as_path())?)
        }
        Request::IsUnchanged { ws, store } => {
            Answer::Unchanged(crate::is_unchanged(ws.as_path(), store.as_path())?)
        }
        _ => return Err(Refusal::new(Code::ApiBadRequest, "the request is not served here")),
    })
}

/// Ends the worker with the thread that started it, also when that is killed: nothing may write to
/// a workspace whose run another supervisor is cleaning up. `false`: that thread is gone already.
fn tie_to_parent() -> bool {
    let kill = rustix::process::Signal::KILL;
    if rustix::process::set_parent_process_death_signal(Some(kill)).is_err() {
        return false;
    }
    // It may have died before that: then nobody holds the other end of our input.
    let flags = rustix::event::PollFlags::IN;
    let mut input = [rustix::event::PollFd::from_borrowed_fd(rustix::stdio::stdin(), flags)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = rustix::event::poll(&mut input, Some(&now));
    let [input] = input;
    let waiting = input.revents().contains(rustix::event::PollFlags::IN);
    let closed = input.revents().contains(rustix::event::PollFlags::HUP);
    polled.is_ok() && (waiting || !closed)
}

/// The whole program of a worker: serves standard input, answers on standard output.
pub fn main() -> ! {
    if !tie_to_parent() {
        std::process::exit(1);
    }
    // The bits a person would want on their own files do not matter here: everything is private.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // A relative path in a request means nothing.
    let ready = std::env::set_current_dir(Path::new("/"));
    let served = ready.and_then(|()| serve(std::io::stdin().lock(), std::io::stdout().lock()));
    std::process::exit(i32::from(served.is_err()))
}
