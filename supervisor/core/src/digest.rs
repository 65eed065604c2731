//! BLAKE3 digests, written `b3:<64 hex digits>`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Code, Refusal};

/// A BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// A digest somebody else computed.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses `b3:<hex>`.
    ///
    /// # Errors
    /// `manifest.bad_value` when the text has another form.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let bad = || Refusal::new(Code::ManifestBadValue, format!("{text:?} is not a b3: digest"));
        let hex = text.strip_prefix("b3:").ok_or_else(bad)?;
        let hash = blake3::Hash::from_hex(hex).map_err(|_| bad())?;
        Ok(Digest(*hash.as_bytes()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b3:{}", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Digest {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Digest::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// A value in the form of RFC 8785 canonical JSON: the text that digests are taken of.
///
/// For values with text keys and finite numbers only, as all of this project's documents are; those
/// are the only ways in which it could fail, and an empty text would be a digest of nothing.
pub fn canonical_json<T: Serialize>(value: &T) -> String {
    serde_jcs::to_string(value).unwrap_or_else(|error| unreachable!("{error}"))
}
