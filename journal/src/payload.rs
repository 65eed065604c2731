//! Payload encoding: MessagePack with field names, so that an old reader ignores new fields and a
//! new reader fills in missing ones. Arrays would shift fields silently.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value that cannot be written as a payload.
#[derive(Debug, thiserror::Error)]
#[error("the record cannot be encoded")]
pub struct EncodeError(#[source] rmp_serde::encode::Error);

/// A payload that is not the expected value.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not decode")]
pub struct DecodeError(#[source] rmp_serde::decode::Error);

/// Encodes `value` with named fields.
///
/// # Errors
/// When the type cannot be expressed in MessagePack.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    rmp_serde::to_vec_named(value).map_err(EncodeError)
}

/// Decodes a payload.
///
/// # Errors
/// When the bytes are not a `T`.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, DecodeError> {
    rmp_serde::from_slice(payload).map_err(DecodeError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Old {
        a: u32,
    }
    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct New {
        #[serde(default)]
        added: Option<String>,
        a: u32,
    }

    #[test]
    fn an_old_reader_ignores_a_new_field_and_a_new_reader_defaults_a_missing_one() {
        let new = encode(&New { added: Some("x".into()), a: 7 }).unwrap();
        assert_eq!(decode::<Old>(&new).unwrap(), Old { a: 7 });
        let old = encode(&Old { a: 7 }).unwrap();
        assert_eq!(decode::<New>(&old).unwrap(), New { added: None, a: 7 });
    }

    #[test]
    fn bytes_that_are_no_record_are_an_error() {
        assert!(decode::<Old>(&[0xc1, 0xff]).is_err());
    }
}
