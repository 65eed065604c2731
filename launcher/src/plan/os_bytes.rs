//! Byte strings of the operating system: paths, arguments, variables. They need not be UTF-8.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path, argument, variable or file content: any bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OsBytes(Vec<u8>);

impl OsBytes {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The bytes, given away.
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }

    /// Whether a C string can hold them.
    pub fn has_nul(&self) -> bool {
        self.0.contains(&0)
    }
}

impl From<Vec<u8>> for OsBytes {
    fn from(bytes: Vec<u8>) -> Self {
        OsBytes(bytes)
    }
}

impl From<&str> for OsBytes {
    fn from(text: &str) -> Self {
        OsBytes(text.as_bytes().to_vec())
    }
}

impl From<String> for OsBytes {
    fn from(text: String) -> Self {
        OsBytes(text.into_bytes())
    }
}

impl From<&Path> for OsBytes {
    fn from(path: &Path) -> Self {
        OsBytes(path.as_os_str().as_bytes().to_vec())
    }
}

impl fmt::Display for OsBytes {
    /// Escaped: control characters and bytes that are not ASCII never reach a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for OsBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for OsBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for OsBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = OsBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<OsBytes, E> {
        Ok(OsBytes(bytes.to_vec()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<OsBytes, E> {
        Ok(OsBytes(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OsBytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(OsBytes(bytes))
    }
}
