//! From system errors to refusals with a code.

use std::fmt::Display;

use atenea_core::{Code, Refusal};
use rustix::io::Errno;

use crate::path::shown;

/// The code that fits a system error.
pub(crate) fn code_of(errno: Errno) -> Code {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Code::FsNotFound,
        Errno::ACCESS | Errno::PERM => Code::FsNotYours,
        Errno::NOSPC | Errno::DQUOT => Code::FsDiskFull,
        _ => Code::FsIo,
    }
}

/// Names the step and the path of a failed call.
pub(crate) fn at<'a, E: Into<std::io::Error>>(
    step: &'a str,
    path: &'a [u8],
) -> impl FnOnce(E) -> Refusal + 'a {
    move |error| {
        let error: std::io::Error = error.into();
        let code =
            error.raw_os_error().map_or(Code::FsIo, |n| code_of(Errno::from_raw_os_error(n)));
        Refusal::new(code, format!("{step} {}: {error}", shown(path)))
    }
}

/// The same for a path of the standard library.
pub(crate) fn at_path<'a, E: Into<std::io::Error>>(
    step: &'a str,
    path: &'a std::path::Path,
) -> impl FnOnce(E) -> Refusal + 'a {
    use std::os::unix::ffi::OsStrExt;
    at(step, path.as_os_str().as_bytes())
}

/// `fs.io` with a cause that is no system error.
pub(crate) fn io(cause: impl Display) -> Refusal {
    Refusal::new(Code::FsIo, cause.to_string())
}

/// `fs.bad_workspace`.
pub(crate) fn bad(cause: impl Display) -> Refusal {
    Refusal::new(Code::FsBadWorkspace, cause.to_string())
}
