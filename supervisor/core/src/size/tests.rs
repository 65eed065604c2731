//! Forms of quantities: what is accepted, its canonical text, what is refused and why.

use super::*;

#[test]
fn sizes_of_one_value_have_one_canonical_text() {
    for (text, bytes, canonical) in [
        ("2GiB", 2 << 30, "2GiB"),
        ("2048MiB", 2 << 30, "2GiB"),
        ("2G", 2 << 30, "2GiB"),
        ("1.5 KiB", 1536, "1536B"),
        ("4096", 4096, "4KiB"),
        ("1MB", 1_000_000, "1000000B"),
        ("1TB", 1_000_000_000_000, "976562500KiB"),
        ("0.5K", 512, "512B"),
    ] {
        let size = Size::parse(text).unwrap();
        assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, canonical), "{text}");
        assert_eq!(Size::parse(canonical).unwrap(), size);
    }
}

#[test]
fn sizes_without_meaning_are_refused() {
    for bad in
        ["", "GiB", "2 GiB ", " 2GiB", "2gib", "1e3", "+1", "0x10", "0.3B", "2GiBs", "∞", "1..5"]
    {
        assert!(matches!(Size::parse(bad), Err(QuantityError::Form { .. })), "{bad:?}");
    }
    for zero in ["0", "0GiB", "0.0B", "-1", "-2GiB"] {
        assert!(matches!(Size::parse(zero), Err(QuantityError::NotPositive { .. })), "{zero:?}");
    }
    for huge in ["9000TiB", "99999999999999999999TiB", "9007199254740992"] {
        assert!(matches!(Size::parse(huge), Err(QuantityError::OutOfRange { .. })), "{huge:?}");
    }
}

#[test]
fn durations_of_one_value_have_one_canonical_text() {
    for (text, ms, canonical) in [
        ("30m", 1_800_000, "30m"),
        ("1h 30m", 5_400_000, "90m"),
        ("1500ms", 1_500, "1500ms"),
        ("48h", 172_800_000, "2d"),
        ("60s", 60_000, "1m"),
    ] {
        let duration = Millis::parse(text).unwrap();
        assert_eq!((duration.ms(), duration.to_string().as_str()), (ms, canonical), "{text}");
        assert_eq!(Millis::parse(canonical).unwrap(), duration);
    }
}

#[test]
fn durations_without_meaning_are_refused() {
    for bad in ["", "30", "m", "30x", "5us", "1.5.5s", "forever"] {
        assert!(matches!(Millis::parse(bad), Err(QuantityError::Form { .. })), "{bad:?}");
    }
    for zero in ["0s", "0", "-30m"] {
        assert!(matches!(Millis::parse(zero), Err(QuantityError::NotPositive { .. })), "{zero:?}");
    }
    assert!(matches!(Millis::parse("101y"), Err(QuantityError::OutOfRange { .. })));
    assert!(Millis::parse(&"9".repeat(65)).is_err());
}

#[test]
fn cpu_shares_are_exact_to_three_decimals_and_bounded() {
    for (text, millis, canonical) in
        [("2", 2_000, "2"), ("2.0", 2_000, "2"), ("0.5", 500, "0.5"), ("0.125", 125, "0.125")]
    {
        let cpus = Cpus::parse(text).unwrap();
        assert_eq!((cpus.millis(), cpus.to_string().as_str()), (millis, canonical), "{text}");
    }
    for bad in ["0", "-1", "0.001", "5000", "1.0001", "NaN", "inf", "two", "", "1e3"] {
        assert!(Cpus::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn every_cpu_share_survives_json() {
    for millis in CPU_MILLIS_MIN..10_000 {
        let cpus = Cpus::from_millis(millis).unwrap();
        let text = serde_json::to_string(&cpus).unwrap();
        assert_eq!(serde_json::from_str::<Cpus>(&text).unwrap(), cpus, "{text}");
    }
    let largest = Cpus::from_millis(CPU_MILLIS_MAX).unwrap();
    assert_eq!(serde_json::from_str::<Cpus>("4096").unwrap(), largest);
}

#[test]
fn a_count_is_a_positive_integer_that_json_holds_exactly() {
    assert_eq!(serde_json::from_str::<Count>("256").unwrap().get(), 256);
    for bad in ["0", "-1", "1.5", "\"256\"", "9007199254740992", "18446744073709551615"] {
        assert!(serde_json::from_str::<Count>(bad).is_err(), "{bad}");
    }
}
