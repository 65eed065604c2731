//! Paths as bytes: a file name on Linux is not text.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bstr::ByteSlice;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path of any bytes. In JSON it is a string when it is UTF-8 and a list of bytes otherwise, so
/// that no name is lost or changed on the way.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawPath(pub Vec<u8>);

impl RawPath {
    /// The path as the standard library wants it.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The path for people: control characters and bytes that are no text are escaped.
    pub fn shown(&self) -> String {
        shown(&self.0)
    }
}

impl From<&Path> for RawPath {
    fn from(path: &Path) -> Self {
        RawPath(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<PathBuf> for RawPath {
    fn from(path: PathBuf) -> Self {
        RawPath(path.into_os_string().into_vec())
    }
}

impl std::fmt::Debug for RawPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.as_bstr())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for RawPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = match Form::deserialize(deserializer)? {
            Form::Text(text) => text.into_bytes(),
            Form::Bytes(bytes) => bytes,
        };
        if bytes.contains(&0) {
            return Err(D::Error::custom("a path cannot hold a NUL byte"));
        }
        Ok(RawPath(bytes))
    }
}

/// Escapes what a terminal or a reader could be deceived by: control characters, escape sequences,
/// characters that reorder or hide text, and bytes that are not UTF-8. Newlines are escaped too.
pub fn shown(bytes: &[u8]) -> String {
    escape(bytes, false)
}

/// The same for text of several lines: newlines and tabs stay.
pub fn shown_text(bytes: &[u8]) -> String {
    escape(bytes, true)
}

fn escape(bytes: &[u8], lines: bool) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for ch in chunk.valid().chars() {
            let kept = lines && matches!(ch, '\n' | '\t');
            if kept || !is_deceptive(ch) {
                out.push(ch);
            } else {
                out.extend(ch.escape_default());
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Control characters, bidirectional controls, characters that are not seen (zero-width ones, fillers,
/// joiners, variation selectors, tags), and separators that break lines for some viewers.
pub fn is_deceptive(ch: char) -> bool {
    ch.is_control()
        || matches!(ch,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{13430}'..='\u{13440}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The directory part and the name of a relative path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.rfind_byte(b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// `dir/name`, or `name` when `dir` is empty.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(dir.len() + name.len() + 1);
    if !dir.is_empty() {
        out.extend_from_slice(dir);
        out.push(b'/');
    }
    out.extend_from_slice(name);
    out
}

/// Bytes as a file name of the standard library.
pub(crate) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_utf8_survives_json() {
        for bytes in [&b"plain name\n"[..], b"caf\xe9/\xff", b""] {
            let json = serde_json::to_string(&RawPath(bytes.to_vec())).unwrap();
            assert_eq!(serde_json::from_str::<RawPath>(&json).unwrap().0, bytes);
        }
        assert!(serde_json::from_str::<RawPath>("\"a\\u0000b\"").is_err());
        assert!(serde_json::from_str::<RawPath>("[97,0]").is_err());
    }

    #[test]
    fn escape_sequences_and_reordering_characters_are_made_visible() {
        assert_eq!(shown(b"a\x1b[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(shown_text(b"a\tb\n\r\n\x9b\xff"), "a\tb\n\\r\n\\x9b\\xff");
        assert_eq!(shown("x\u{202e}y\u{200b}\u{85}".as_bytes()), "x\\u{202e}y\\u{200b}\\u{85}");
        assert_eq!(shown_text("grün".as_bytes()), "grün");
        // Two names that look the same: a filler, a joiner, a selector.
        for ch in ['\u{3164}', '\u{34f}', '\u{fe0f}', '\u{ad}', '\u{e0100}'] {
            assert_eq!(shown(format!("x{ch}").as_bytes()), format!("x\\u{{{:x}}}", u32::from(ch)));
        }
    }
}
