use proptest::prelude::*;

use super::*;

#[test]
fn every_valid_authority_has_one_canonical_form() {
    for (text, canonical) in [
        ("example.com:443", "example.com:443"),
        ("EXAMPLE.Com:443", "example.com:443"),
        ("example.com.:443", "example.com:443"),
        ("localhost:1", "localhost:1"),
        ("a_b.example.com:65535", "a_b.example.com:65535"),
        ("xn--mnchen-3ya.de:443", "xn--mnchen-3ya.de:443"),
        ("XN--MNCHEN-3YA.de:443", "xn--mnchen-3ya.de:443"),
        ("1.2.3.4:80", "1.2.3.4:80"),
        ("1.2.3.4.example.com:80", "1.2.3.4.example.com:80"),
        ("0xg.0xyz:80", "0xg.0xyz:80"),
        ("[::1]:80", "[::1]:80"),
        ("[0:0:0:0:0:0:0:1]:80", "[::1]:80"),
        ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80"),
    ] {
        let parsed = Authority::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(parsed.to_string(), canonical, "{text}");
        assert_eq!(Authority::parse(canonical), Ok(parsed), "{text}");
    }
}

#[test]
fn every_doubtful_authority_is_refused_with_its_reason() {
    use AuthorityError::*;
    let long_label = format!("{}.com:1", "a".repeat(64));
    let long_name = format!("{}com:1", "abcdefg.".repeat(32));
    let table: &[(&str, AuthorityError)] = &[
        ("", Empty),
        (":443", Empty),
        (".:443", Empty),
        ("example.com", NoPort),
        ("[::1]", NoPort),
        ("example.com:", BadPort),
        ("example.com:0", BadPort),
        ("example.com:007", BadPort),
        ("example.com:+443", BadPort),
        ("example.com:-1", BadPort),
        ("example.com:65536", BadPort),
        ("example.com:443:443", BadPort),
        ("example.com:4 43", BadPort),
        ("example.com:0x50", BadPort),
        ("::1:80", BadPort),
        ("user@example.com:443", UserInfo),
        ("allowed.com:443@evil.com", UserInfo),
        ("user:pass@example.com:443", UserInfo),
        ("example..com:443", BadLabel),
        (".example.com:443", BadLabel),
        ("example.com..:443", BadLabel),
        ("-a.com:443", BadLabel),
        ("a-.com:443", BadLabel),
        (&long_label, BadLabel),
        (&long_name, TooLong),
        ("exa mple.com:443", BadByte),
        ("example.com\0.evil.com:443", BadByte),
        ("example.com%00.evil.com:443", BadByte),
        ("example.com/x:443", BadByte),
        ("example.com\\x:443", BadByte),
        ("*.example.com:443", BadByte),
        ("münchen.de:443", BadByte),
        ("ｅxample.com:443", BadByte),
        ("xn--a.com:443", BadALabel),
        ("xn--.com:443", BadLabel),
        ("xn--example-.com:443", BadLabel),
        ("xn--zzzzzzzz99999.com:443", BadALabel),
        ("127.1:80", EndsInNumber),
        ("2130706433:80", EndsInNumber),
        ("0x7f.1:80", EndsInNumber),
        ("0x7f000001:80", EndsInNumber),
        ("0x:80", EndsInNumber),
        ("0177.0.0.1:80", EndsInNumber),
        ("1.2.3.4.:80", EndsInNumber),
        ("1.2.3.4.5:80", EndsInNumber),
        ("1.2.3.256:80", EndsInNumber),
        ("example.123:80", EndsInNumber),
        ("[::1:80", BadAddress),
        ("[::1%25eth0]:80", BadAddress),
        ("[fe80::1%eth0]:80", BadAddress),
        ("[example.com]:80", BadAddress),
        ("[1.2.3.4]:80", BadAddress),
        ("[::1]x:80", BadAddress),
        ("[]:80", BadAddress),
    ];
    for (text, reason) in table {
        assert_eq!(Authority::parse(text), Err(*reason), "{text:?}");
    }
}

#[test]
fn the_longest_name_is_taken_and_one_byte_more_is_not() {
    let name = format!("{}abcde", "abcdefg.".repeat(31));
    assert_eq!(name.len(), NAME_BYTES);
    assert!(Name::parse(&name).is_ok());
    assert!(Name::parse(&format!("{name}.")).is_ok());
    assert_eq!(Name::parse(&format!("{name}f")), Err(AuthorityError::TooLong));
}

proptest! {
    #[test]
    fn no_text_panics_and_every_accepted_one_is_stable(text in "\\PC{0,80}|[a-zA-Z0-9.:@%\\[\\]_-]{0,40}") {
        if let Ok(authority) = Authority::parse(&text) {
            let canonical = authority.to_string();
            prop_assert_eq!(Authority::parse(&canonical), Ok(authority));
            prop_assert!(canonical.bytes().all(|b| b.is_ascii_graphic() && b != b'@'));
        }
    }
}
