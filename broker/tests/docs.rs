//! `docs/broker.md` prints the limits that are in force.

use atenea_broker::LIMITS;

#[test]
fn the_table_of_limits_in_the_documentation_is_the_one_in_force() {
    let text = include_str!("../../docs/broker.md");
    let rows = [
        ("connections", LIMITS.connections.to_string()),
        ("requests", LIMITS.requests.to_string()),
        ("header_bytes", LIMITS.header_bytes.to_string()),
        ("header_fields", LIMITS.header_fields.to_string()),
        ("header_time", format!("{:?}", LIMITS.header_time)),
        ("target_bytes", LIMITS.target_bytes.to_string()),
        ("body_bytes", LIMITS.body_bytes.to_string()),
        ("body_time", format!("{:?}", LIMITS.body_time)),
        ("write_time", format!("{:?}", LIMITS.write_time)),
        ("linger_bytes", LIMITS.linger_bytes.to_string()),
        ("linger_time", format!("{:?}", LIMITS.linger_time)),
        ("accept_pause", format!("{:?}", LIMITS.accept_pause)),
        ("accept_pause_max", format!("{:?}", LIMITS.accept_pause_max)),
        ("denial_flush", format!("{:?}", LIMITS.denial_flush)),
    ];
    for (name, value) in &rows {
        let row = format!("| `{name}` | {value} |");
        assert!(text.contains(&row), "docs/broker.md lacks the row: {row}");
    }
    let (_, limits) = text.split_once("\n## Limits\n").expect("a section of limits");
    let documented = limits.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(documented, rows.len(), "rows of limits in docs/broker.md");
}
