//! Names of the error numbers that acts meet.

/// Numbers and names.
const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EBADF, "EBADF"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EROFS, "EROFS"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::EPROTOTYPE, "EPROTOTYPE"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
    (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (libc::ENETUNREACH, "ENETUNREACH"),
    (libc::EHOSTUNREACH, "EHOSTUNREACH"),
    (libc::ECONNREFUSED, "ECONNREFUSED"),
    (libc::EINPROGRESS, "EINPROGRESS"),
    (libc::ENOKEY, "ENOKEY"),
    (libc::ENODEV, "ENODEV"),
    (libc::EBUSY, "EBUSY"),
    (libc::ESRCH, "ESRCH"),
    (libc::EEXIST, "EEXIST"),
];

/// The symbolic name, or the number.
pub(super) fn name(errno: i32) -> String {
    NAMES
        .iter()
        .find(|(number, _)| *number == errno)
        .map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}
