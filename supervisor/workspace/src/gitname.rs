//! Names that some filesystem takes for `.git`.

/// Code points that HFS+ ignores in names.
fn hfs_ignores(ch: char) -> bool {
    matches!(ch, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}

/// A name as filesystems see it that ignore case, some code points, dots and blanks at the end, and
/// take what follows a colon for a stream.
pub(crate) fn plain_name(name: &str) -> String {
    let seen: String = name.chars().filter(|ch| !hfs_ignores(*ch)).collect();
    let base = seen.split(':').next().unwrap_or_default().trim_end_matches([' ', '.']);
    base.to_lowercase()
}

/// Whether a path component is `.git` on any filesystem a user may check it out on: other case,
/// code points HFS+ ignores, trailing dots and blanks, an NTFS stream or short name, or one of these
/// after a backslash, which Windows takes for a separator.
pub(crate) fn is_dot_git(component: &[u8]) -> bool {
    let text = String::from_utf8_lossy(component);
    text.split('\\').any(|part| matches!(plain_name(part).as_str(), ".git" | "git~1"))
}

/// The part of a path up to and with the first component that is one.
pub(crate) fn through_dot_git(path: &[u8]) -> Option<&[u8]> {
    let mut end = 0;
    for part in path.split(|byte| *byte == b'/') {
        end += part.len();
        if is_dot_git(part) {
            return path.get(..end);
        }
        end += 1;
    }
    None
}

/// Whether a relative path is plain: no empty, `.` or `..` component, no NUL, not too long.
pub(crate) fn is_plain(path: &[u8]) -> bool {
    path.len() <= crate::beneath::PATH_MAX
        && !path.contains(&0)
        && path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_dot_git_is_recognised() {
        for name in [
            ".git",
            ".GIT",
            ".gIt",
            "git~1",
            "GIT~1",
            ".git.",
            ".git ",
            ".git. .",
            ".git...",
            ".git::$INDEX_ALLOCATION",
            ".git:x",
            "git~1.",
            "git~1::$DATA",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git\u{200d}",
            ".gi\u{206f}T",
            "a\\.git",
            ".git\\config",
            "x\\GIT~1\\y",
            ".g\u{200c}it .",
            "g\u{202a}it~1",
        ] {
            assert!(is_dot_git(name.as_bytes()), "{name:?}");
        }
    }

    #[test]
    fn ordinary_names_are_not() {
        for name in [
            ".gitignore",
            ".gitattributes",
            "git",
            ".github",
            "git~2",
            "x.git",
            ".git-x",
            "..git",
            "agit~1",
        ] {
            assert!(!is_dot_git(name.as_bytes()), "{name:?}");
        }
        assert!(!is_dot_git(b".g\xffit"));
        assert_eq!(through_dot_git(b"a/.GIT/config"), Some(&b"a/.GIT"[..]));
        assert_eq!(through_dot_git(b"a/b.git/c"), None);
    }

    #[test]
    fn paths_that_are_not_plain_are_recognised() {
        for path in ["", "/a", "a/", "a//b", "./a", "a/../b", "a/.", ".."] {
            assert!(!is_plain(path.as_bytes()), "{path:?}");
        }
        assert!(!is_plain(b"a\0b") && !is_plain(&b"a".repeat(5_000)));
        assert!(is_plain(b"a/b\nc/\xff") && is_plain(b"...") && is_plain(b"..a"));
    }
}
