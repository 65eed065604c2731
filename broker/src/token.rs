//! The token of a run: 256 random bits, known to the guest only; the supervisor keeps a hash.

use std::fmt;

use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, Zeroizing};

/// What every token begins with, so that one in a log or a repository is recognised.
pub const PREFIX: &str = "at_";
/// Characters of a token: the prefix and 64 hex digits.
pub const TOKEN_CHARS: usize = PREFIX.len() + 64;
/// Separates these hashes from every other use of BLAKE3.
const CONTEXT: &str = "atenea-sup run token hash v1";

/// A freshly minted token. It is wiped when dropped, has no `Display`, no `Clone`, no `serde`, and
/// its `Debug` shows nothing.
pub struct Token(Zeroizing<String>);

impl Token {
    /// Draws a token from the kernel.
    ///
    /// # Errors
    /// The kernel gave no random bytes; nothing weaker is used instead.
    pub fn draw() -> Result<Self, getrandom::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut bits = [0_u8; 32];
        getrandom::fill(&mut bits)?;
        // Reserved whole: growing would leave a copy behind.
        let mut text = Zeroizing::new(String::with_capacity(TOKEN_CHARS));
        text.push_str(PREFIX);
        for nibble in bits.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
            text.push(char::from(DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0')));
        }
        bits.zeroize();
        Ok(Token(text))
    }

    /// The text for the guest's environment, and for nothing else (E4).
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept.
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The hash of a token. Compared in constant time only: there is no `PartialEq`.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a presented text.
    pub fn of(presented: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(presented);
        TokenHash(*hasher.finalize().as_bytes())
    }
}

impl ConstantTimeEq for TokenHash {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// Whether a presented text has the public form of a token. The form is no secret, so this may stop
/// at the first wrong byte.
pub fn has_form(presented: &[u8]) -> bool {
    let digit = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    presented.len() == TOKEN_CHARS
        && presented.strip_prefix(PREFIX.as_bytes()).is_some_and(|tail| tail.iter().all(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_their_form_differ_and_hash_to_different_values() {
        let (a, b) = (Token::draw().unwrap(), Token::draw().unwrap());
        assert!(has_form(a.expose().as_bytes()));
        assert_ne!(a.expose(), b.expose());
        assert!(bool::from(a.hash().ct_eq(&TokenHash::of(a.expose().as_bytes()))));
        assert!(!bool::from(a.hash().ct_eq(&b.hash())));
        let bytes = &a.expose().as_bytes()[PREFIX.len()..];
        assert!(bytes.iter().any(|b| *b != bytes[0]), "64 equal digits are not random");
    }

    #[test]
    fn only_the_one_spelling_of_a_token_has_its_form() {
        let good = format!("{PREFIX}{}", "0f".repeat(32));
        assert!(has_form(good.as_bytes()));
        for bad in [
            String::new(),
            PREFIX.to_owned(),
            good.to_uppercase(),
            format!("{PREFIX}{}", "0F".repeat(32)),
            format!("{good}0"),
            good[..good.len() - 1].to_owned(),
            format!(" {}", &good[..good.len() - 1]),
            format!("at-{}", "0f".repeat(32)),
            format!("{PREFIX}{}", "0g".repeat(32)),
        ] {
            assert!(!has_form(bad.as_bytes()), "{bad:?}");
        }
    }

    /// E4
    #[test]
    fn debug_shows_nothing_of_a_token_or_its_hash() {
        let token = Token::draw().unwrap();
        assert_eq!(format!("{token:?} {:?}", token.hash()), "Token(..) TokenHash(..)");
    }
}
