//! `/proc/self/mountinfo` and `/proc/self/cgroup`, parsed strictly: a line that cannot be understood
//! is an error, because a mount that was overlooked would be a wrong "nothing there".

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// One mount of this process's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type of the file system, for example `cgroup2`.
    pub fs_type: String,
    /// Options of the superblock.
    pub super_options: Vec<String>,
}

/// Parses the text of a `mountinfo` file.
///
/// # Errors
/// [`Error::Unparsable`] with the line that has another form.
pub fn parse(text: &[u8], source: &Path) -> Result<Vec<Mount>> {
    let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            parse_line(line)
                .ok_or_else(|| Error::unparsable(source, &String::from_utf8_lossy(line)))
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let root = fields.nth(3)?;
    let point = fields.next()?;
    // Any number of optional fields, ended by a single dash.
    fields.by_ref().find(|field| *field == b"-")?;
    let fs_type = fields.next()?;
    let _source = fields.next()?;
    let super_options = fields.next()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Mount {
        root: unescape(root),
        point: unescape(point),
        fs_type: text(fs_type),
        super_options: text(super_options).split(',').map(str::to_owned).collect(),
    })
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// A line of `/proc/self/cgroup`: the controllers (none for v2) and the group.
pub(crate) struct Membership {
    pub(crate) controllers: Vec<String>,
    pub(crate) path: String,
}

/// Parses the text of `/proc/<pid>/cgroup`.
pub(crate) fn parse_membership(text: &str, source: &Path) -> Result<Vec<Membership>> {
    text.lines()
        .map(|line| {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next())
            else {
                return Err(Error::unparsable(source, line));
            };
            let controllers =
                names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            Ok(Membership { controllers, path: path.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_and_escapes_are_understood() {
        let text = b"36 35 98:0 /a\\040b /mnt/x\\134y rw,noatime master:1 shared:7 - cgroup cgroup rw,cpu,cpuacct\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let mounts = parse(text, Path::new("t")).unwrap();
        assert_eq!(mounts[0].root, Path::new("/a b"));
        assert_eq!(mounts[0].point, Path::new("/mnt/x\\y"));
        assert_eq!(mounts[0].super_options, ["rw", "cpu", "cpuacct"]);
        assert_eq!(mounts[1].fs_type, "cgroup2");
    }

    #[test]
    fn a_line_of_another_form_is_an_error_and_not_skipped() {
        assert!(parse(b"36 35 98:0 / /mnt rw\n", Path::new("t")).is_err());
        assert!(parse_membership("0", Path::new("t")).is_err());
    }
}
