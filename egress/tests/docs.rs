//! `docs/egress.md` prints the limits that are in force.

use atenea_egress::LIMITS;

#[test]
fn the_table_of_limits_in_the_documentation_is_the_one_in_force() {
    let text = include_str!("../../docs/egress.md");
    let rows = [
        ("connections", LIMITS.connections.to_string()),
        ("head_bytes", LIMITS.head_bytes.to_string()),
        ("head_fields", LIMITS.head_fields.to_string()),
        ("head_time", format!("{:?}", LIMITS.head_time)),
        ("socks_time", format!("{:?}", LIMITS.socks_time)),
        ("write_time", format!("{:?}", LIMITS.write_time)),
        ("linger_bytes", LIMITS.linger_bytes.to_string()),
        ("linger_time", format!("{:?}", LIMITS.linger_time)),
        ("dns_bytes", LIMITS.dns_bytes.to_string()),
        ("dns_time", format!("{:?}", LIMITS.dns_time)),
        ("dns_messages", LIMITS.dns_messages.to_string()),
        ("denial_keys", LIMITS.denial_keys.to_string()),
        ("subject_bytes", LIMITS.subject_bytes.to_string()),
        ("denial_flush", format!("{:?}", LIMITS.denial_flush)),
        ("accept_pause", format!("{:?}", LIMITS.accept_pause)),
        ("accept_pause_max", format!("{:?}", LIMITS.accept_pause_max)),
    ];
    for (name, value) in &rows {
        let row = format!("| `{name}` | {value} |");
        assert!(text.contains(&row), "docs/egress.md lacks the row: {row}");
    }
    let (_, limits) = text.split_once("\n## Limits\n").expect("a section of limits");
    let documented = limits.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(documented, rows.len(), "rows of limits in docs/egress.md");
}
