//! Every limit of the endpoint in one table. `docs/broker.md` prints the same table with the
//! terminal behaviour of each; a test compares the two.

use std::time::Duration;

/// Bounds of one run's endpoint.
#[derive(Clone, Copy, Debug)]
pub struct BrokerLimits {
    /// Connections of one run at the same time, over both listeners; one more is reset.
    pub connections: usize,
    /// Requests of one run in work at the same time; one more is answered 503.
    pub requests: usize,
    /// Bytes of header names and values; more are answered 431.
    pub header_bytes: usize,
    /// Header lines; more are answered 431.
    pub header_fields: usize,
    /// Time for a whole request head, the idle time before it included; then closed.
    pub header_time: Duration,
    /// Bytes of a request target; longer ones are answered 414.
    pub target_bytes: usize,
    /// Bytes of a request body; more are answered 413.
    pub body_bytes: usize,
    /// Time for a whole request body; then 408.
    pub body_time: Duration,
    /// Time in which a client takes no byte of an answer; then closed.
    pub write_time: Duration,
    /// Bytes read and thrown away after the last answer of a connection, so that the client sees it
    /// before the close.
    pub linger_bytes: usize,
    /// Time for the same.
    pub linger_time: Duration,
    /// First pause of an accept loop without descriptors or memory; it doubles each time.
    pub accept_pause: Duration,
    /// Longest pause of an accept loop.
    pub accept_pause_max: Duration,
    /// First interval after which repeated refusals are reported; it doubles each time.
    pub denial_flush: Duration,
}

/// The limits in force.
pub const LIMITS: BrokerLimits = BrokerLimits {
    // Requests, and as many connections again that clients keep open between requests.
    connections: 64,
    requests: 32,
    // Twice what common servers take; API clients send long authorisation headers.
    header_bytes: 16 * 1024,
    header_fields: 64,
    header_time: Duration::from_secs(10),
    target_bytes: 2048,
    // Nothing that this version answers needs a body; the bound is that of a JSON-RPC call.
    body_bytes: 64 * 1024,
    body_time: Duration::from_secs(10),
    write_time: Duration::from_secs(30),
    // As much again as a body may have.
    linger_bytes: 64 * 1024,
    linger_time: Duration::from_secs(2),
    accept_pause: Duration::from_millis(10),
    accept_pause_max: Duration::from_secs(1),
    denial_flush: Duration::from_secs(10),
};
