//! From a file to a [`Config`]: whose it is, its keys, its values.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use atenea_core::manifest::tree::{DOCUMENT_BYTES_MAX, Misread, Tree, TreeError};
use atenea_core::{Code, Refusal};

use super::places::Surroundings;
use super::settings::{Config, FileSchema};

/// See [`super::load`].
pub(super) fn load(option: Option<&Path>, around: &Surroundings) -> Result<Config, Refusal> {
    if let Some(path) = option {
        let file = open(path).map_err(|error| refuse(path, error))?;
        return read(path, file, around);
    }
    for path in around.config_files() {
        match open(&path) {
            Ok(file) => return read(&path, file, around),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // What cannot be read is not the same as what is not there.
            Err(error) => return Err(refuse(&path, error)),
        }
    }
    Ok(Config::default())
}

/// Opens without waiting for the other end of a FIFO.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

fn read(path: &Path, file: File, around: &Surroundings) -> Result<Config, Refusal> {
    check_owner(path, &file, around)?;
    let most = u64::try_from(DOCUMENT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(|error| refuse(path, error))?;
    let mut config = parse(&text).map_err(|refusal| Refusal {
        cause: format!("{}: {}", path.display(), refusal.cause),
        ..refusal
    })?;
    config.file = Some(path.to_path_buf());
    Ok(config)
}

/// Whoever can write the file can allow unsandboxed runs (S7).
fn check_owner(path: &Path, file: &File, around: &Surroundings) -> Result<(), Refusal> {
    let meta = file.metadata().map_err(|error| refuse(path, error))?;
    if !meta.is_file() {
        return Err(refuse(path, "it is no regular file"));
    }
    if meta.uid() != 0 && meta.uid() != around.uid {
        let why = format!("it belongs to uid {}, neither to root nor to you", meta.uid());
        return Err(refuse(path, why).with_help("use a file of your own with --config"));
    }
    let by_group = meta.mode() & 0o020 != 0 && meta.gid() != around.gid;
    if by_group || meta.mode() & 0o002 != 0 {
        return Err(refuse(path, "others can write to it").with_help("chmod go-w the file"));
    }
    Ok(())
}

/// Reads the text of a configuration file.
///
/// # Errors
/// `host.config` with the key.
pub(super) fn parse(text: &str) -> Result<Config, Refusal> {
    let schema: FileSchema = Tree::from_toml(text).and_then(Tree::read).map_err(refused)?;
    schema.settle()
}

fn refused(misread: Misread) -> Refusal {
    let path = misread.path.escape_debug();
    let cause = match (&misread.error, misread.path.is_empty()) {
        (TreeError::UnknownKey { .. }, _) => format!("there is no setting `{path}`"),
        (error, true) => error.to_string(),
        (error, false) => format!("{path}: {error}"),
    };
    let refusal = Refusal::new(Code::HostConfig, cause);
    match misread.suggestion() {
        Some(near) => refusal.with_help(format!("did you mean `{near}`?")),
        None => refusal,
    }
}

fn refuse(path: &Path, why: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::HostConfig, format!("{}: {why}", path.display()))
}
