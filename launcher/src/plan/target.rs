//! Where something may be mounted.

use atenea_core::{Code, Refusal};

use super::OsBytes;

/// Trees that belong to the sandbox itself.
const RESERVED: [&str; 6] = ["proc", "sys", "dev", "run", "etc", "atenea"];
/// Longest target, bytes (`PATH_MAX` less room for a name).
const TARGET_BYTES_MAX: usize = 3800;

/// Refuses a target that is not a plain absolute path, or lies in a tree of the sandbox itself.
pub(super) fn check(target: &OsBytes) -> Result<(), Refusal> {
    let bad = |why: &str| Err(Refusal::new(Code::FsBadTarget, format!("target {target}: {why}")));
    let bytes = target.as_bytes();
    if bytes.first() != Some(&b'/') {
        return bad("not absolute");
    }
    if bytes == b"/" {
        return bad("the root itself");
    }
    if bytes.len() > TARGET_BYTES_MAX || target.has_nul() {
        return bad("too long, or holds a NUL byte");
    }
    let mut parts = bytes.split(|b| *b == b'/').skip(1).peekable();
    let first = parts.peek().copied().unwrap_or_default();
    if parts.any(|part| part.is_empty() || part == b"." || part == b"..") {
        return bad("not plain (empty part, . or ..)");
    }
    if RESERVED.iter().any(|name| name.as_bytes() == first) {
        return bad("inside a tree that belongs to the sandbox");
    }
    Ok(())
}

/// Whether one of the two paths is the other, or lies below it.
pub(super) fn overlap(a: &OsBytes, b: &OsBytes) -> bool {
    is_at_or_below(a.as_bytes(), b.as_bytes()) || is_at_or_below(b.as_bytes(), a.as_bytes())
}

/// Whether `path` is `tree` or lies below it.
pub(super) fn is_at_or_below(path: &[u8], tree: &[u8]) -> bool {
    path.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_in_trees_of_the_sandbox_and_unplain_ones_are_refused() {
        for bad in [
            "",
            "/",
            "relative",
            "/proc",
            "/proc/1",
            "/sys/fs",
            "/dev/shm",
            "/run/x",
            "/etc/passwd",
            "/atenea/init",
            "/a//b",
            "/a/",
            "/a/./b",
            "/a/../b",
            "/a\0b",
        ] {
            let refusal = check(&OsBytes::from(bad)).unwrap_err();
            assert_eq!(refusal.code, Code::FsBadTarget, "{bad:?}");
        }
        for good in ["/opt/models", "/home/me/project", "/procedure", "/a b\nc"] {
            check(&OsBytes::from(good)).unwrap();
        }
    }

    #[test]
    fn overlap_compares_whole_parts() {
        let path = |text: &str| OsBytes::from(text);
        assert!(overlap(&path("/a"), &path("/a/b")));
        assert!(overlap(&path("/a/b"), &path("/a")));
        assert!(!overlap(&path("/a"), &path("/ab")));
    }
}
