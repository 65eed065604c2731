use proptest::prelude::*;

use super::*;

fn head(text: &str) -> Result<ProxyRequest, HeadError> {
    parse(text.as_bytes())
}

#[test]
fn connect_and_absolute_form_of_real_clients_are_understood() {
    for (text, form, to) in [
        (
            "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\nUser-Agent: curl/7.88.1\r\nProxy-Connection: Keep-Alive\r\n\r\n",
            Form::Connect,
            "example.com:443",
        ),
        ("CONNECT example.com:443 HTTP/1.0\r\n\r\n", Form::Connect, "example.com:443"),
        (
            "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
            Form::Connect,
            "example.com:443",
        ),
        ("CONNECT [::1]:22 HTTP/1.1\r\nHost: [::1]:22\r\n\r\n", Form::Connect, "[::1]:22"),
        (
            "GET http://Example.com/a?b HTTP/1.1\r\nHost: example.com\r\n\r\n",
            Form::Absolute,
            "example.com:80",
        ),
        (
            "GET http://example.com:8080 HTTP/1.1\r\nHost: example.com:8080\r\n\r\n",
            Form::Absolute,
            "example.com:8080",
        ),
        (
            "POST http://example.com/ HTTP/1.1\r\nHost: example.com:80\r\nContent-Length: 3\r\n\r\n",
            Form::Absolute,
            "example.com:80",
        ),
        (
            "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n",
            Form::Absolute,
            "example.com:80",
        ),
    ] {
        let parsed = head(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        assert_eq!((parsed.form, parsed.authority.to_string().as_str()), (form, to), "{text:?}");
    }
}

#[test]
fn heads_that_can_be_read_in_two_ways_are_refused_with_their_reason() {
    use HeadError::*;
    let post = "POST http://a.com/ HTTP/1.1\r\nHost: a.com\r\n";
    let body = |fields: &str| format!("{post}{fields}\r\n");
    for (text, reason) in [
        (body("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), BodyLength),
        (body("Content-Length: 3\r\nContent-Length: 3\r\n"), BodyLength),
        (body("Content-Length: 3\r\nContent-Length: 4\r\n"), BodyLength),
        (body("Content-Length: 3, 3\r\n"), BodyLength),
        (body("Content-Length: +3\r\n"), BodyLength),
        (body("Content-Length: 0x3\r\n"), BodyLength),
        (body("Content-Length: \r\n"), BodyLength),
        (body("Content-Length: 99999999999999999999\r\n"), BodyLength),
        (body("Transfer-Encoding: x, chunked\r\n"), BodyLength),
        (body("Transfer-Encoding: identity\r\n"), BodyLength),
        (body("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), BodyLength),
        (body("Content-Length : 3\r\n"), Syntax),
        (body(" Content-Length: 3\r\n"), Folded),
        (body("X: y\r\n z\r\n"), Folded),
        (body("X: y\nContent-Length: 3\r\n"), BareLineEnd),
        (body("X: y\rContent-Length: 3\r\n"), BareLineEnd),
        (body("X: y\0z\r\n"), ControlByte),
        (body("X\u{7f}: y\r\n"), ControlByte),
        (body("Host: a.com\r\n"), HostCount),
        ("POST http://a.com/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), BodyLength),
        ("GET http://a.com/ HTTP/1.1\r\n\r\n".into(), HostCount),
        (
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com:443\r\nContent-Length: 0\r\n\r\n".into(),
            BodyLength,
        ),
        (
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com:443\r\nTransfer-Encoding: chunked\r\n\r\n"
                .into(),
            BodyLength,
        ),
        ("GET / HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), OriginForm),
        ("OPTIONS * HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), OriginForm),
        ("GET a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), OriginForm),
        ("GET https://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), Scheme),
        ("GET file:///etc/passwd HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), Scheme),
        ("GET http://a.com/ HTTP/2.0\r\nHost: a.com\r\n\r\n".into(), Syntax),
        ("PRI * HTTP/2.0\r\n\r\n".into(), Syntax),
        ("\r\nGET http://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), Syntax),
        ("GET  http://a.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n".into(), Syntax),
        ("GET http://a.com/\r\n\r\n".into(), Syntax),
        ("\r\n\r\n".into(), Syntax),
    ] {
        assert_eq!(head(&text), Err(reason), "{text:?}");
    }
}

/// E2
#[test]
fn target_and_host_that_disagree_are_refused_and_both_are_named() {
    for text in [
        "GET http://a.com/ HTTP/1.1\r\nHost: b.com\r\n\r\n",
        "GET http://a.com/ HTTP/1.1\r\nHost: a.com:81\r\n\r\n",
        "GET http://a.com/ HTTP/1.0\r\nHost: b.com\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nHost: b.com:443\r\n\r\n",
        "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com:80\r\n\r\n",
    ] {
        let error = head(text).unwrap_err();
        assert!(matches!(error, HeadError::HostDiffers { .. }), "{text:?}: {error}");
        assert!(error.to_string().contains("a.com:"), "{error}");
    }
}

#[test]
fn user_information_and_odd_authorities_are_refused_in_target_and_host() {
    for (text, place, reason) in [
        (
            "GET http://a.com@b.com/ HTTP/1.1\r\nHost: b.com\r\n\r\n",
            "the request target",
            AuthorityError::UserInfo,
        ),
        (
            "CONNECT a.com HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "the request target",
            AuthorityError::NoPort,
        ),
        (
            "CONNECT 2130706433:80 HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "the request target",
            AuthorityError::EndsInNumber,
        ),
        ("GET http://a.com/ HTTP/1.1\r\nHost: x@a.com\r\n\r\n", "Host", AuthorityError::UserInfo),
        (
            "GET http:///x HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "the request target",
            AuthorityError::Empty,
        ),
        (
            "GET http://a.com\\@b.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "the request target",
            AuthorityError::UserInfo,
        ),
    ] {
        assert_eq!(head(text), Err(HeadError::Authority { place, reason }), "{text:?}");
    }
}

#[test]
fn the_end_of_a_head_is_found_also_when_it_is_malformed() {
    for (text, end) in [
        ("GET / HTTP/1.1\r\n\r\nrest", Some(18)),
        ("GET / HTTP/1.1\n\nrest", Some(16)),
        ("GET / HTTP/1.1\r\nA: b\n\r\n", Some(23)),
        ("GET / HTTP/1.1\r\n", None),
        ("GET / HTTP/1.1\r\nA: b", None),
        ("", None),
    ] {
        assert_eq!(end_of(text.as_bytes()), end, "{text:?}");
    }
}

#[test]
fn more_header_lines_than_the_bound_are_refused() {
    let fields = |n: usize| "X: y\r\n".repeat(n);
    let with = |n| head(&format!("CONNECT a.com:1 HTTP/1.0\r\n{}\r\n", fields(n)));
    assert!(with(LIMITS.head_fields).is_ok());
    assert_eq!(with(LIMITS.head_fields + 1), Err(HeadError::TooManyFields));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = end_of(&bytes);
        let _ = parse(&bytes);
    }

    #[test]
    fn no_mutation_of_a_good_head_panics_or_changes_the_destination_unseen(at in 0_usize..90, byte in any::<u8>()) {
        let mut bytes =
            b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nContent-Length: 3\r\nA: b\r\n\r\n".to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(request) = parse(&bytes) {
            prop_assert_eq!(request.authority.to_string(), "good.example:80");
        }
    }
}
