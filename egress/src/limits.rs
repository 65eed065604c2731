//! Every limit of the boundary in one table. `docs/egress.md` prints the same table with the
//! terminal behaviour of each; a test compares the two.

use std::time::Duration;

/// Bounds of one run's boundary.
#[derive(Clone, Copy, Debug)]
pub struct BoundaryLimits {
    /// Connections of one run at the same time, over all TCP listeners; one more is reset.
    pub connections: usize,
    /// Bytes of a proxy request head; a longer one is answered 431.
    pub head_bytes: usize,
    /// Header lines of a proxy request head; more are answered 431.
    pub head_fields: usize,
    /// Time for a whole proxy request head; then 408.
    pub head_time: Duration,
    /// Time for a whole SOCKS conversation; then the connection is closed.
    pub socks_time: Duration,
    /// Time to take an answer; then the connection is closed.
    pub write_time: Duration,
    /// Bytes read and thrown away after an answer, so that the client sees it before the close.
    pub linger_bytes: usize,
    /// Time for the same.
    pub linger_time: Duration,
    /// Bytes of a DNS message; a longer one is dropped (UDP) or closes the connection (TCP).
    pub dns_bytes: usize,
    /// Time for one whole framed DNS message on TCP, idle time included; then closed.
    pub dns_time: Duration,
    /// Messages on one DNS connection; then closed.
    pub dns_messages: usize,
    /// Different refusals a run can have recorded; further ones are counted as `other` per code.
    pub denial_keys: usize,
    /// Bytes of a refusal's subject after escaping; cut with `...`.
    pub subject_bytes: usize,
    /// First interval after which repeats are reported; it doubles each time.
    pub denial_flush: Duration,
    /// First pause of an accept loop without descriptors or memory; it doubles each time.
    pub accept_pause: Duration,
    /// Longest pause of an accept loop.
    pub accept_pause_max: Duration,
}

/// The limits in force.
pub const LIMITS: BoundaryLimits = BoundaryLimits {
    // A parallel package install opens some tens of connections.
    connections: 256,
    // What widely used servers take for a request head.
    head_bytes: 8 * 1024,
    head_fields: 64,
    head_time: Duration::from_secs(10),
    socks_time: Duration::from_secs(10),
    write_time: Duration::from_secs(10),
    // Enough for a body that a client sends without waiting for the answer.
    linger_bytes: 64 * 1024,
    linger_time: Duration::from_secs(2),
    // A query is a few hundred bytes even with EDNS padding.
    dns_bytes: 4096,
    dns_time: Duration::from_secs(10),
    dns_messages: 100,
    // An honest program meets a handful of refused hosts.
    denial_keys: 256,
    subject_bytes: 255,
    denial_flush: Duration::from_secs(10),
    accept_pause: Duration::from_millis(10),
    accept_pause_max: Duration::from_secs(1),
};
