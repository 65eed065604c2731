//! Whole sandboxes on the real kernel: what an agent can see and do, and that nothing stays.
//!
//! The helper must be started by a process with one thread, and is this very binary; so the tests
//! run one after the other in `main`. Arguments that are no option filter by name. As root each test
//! runs as root; one of them runs the others again as an ordinary user in delegated groups.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod as_user;
mod bench;
mod boundary;
mod death;
mod host;
mod launch;
mod limits;

use std::panic::catch_unwind;

/// A test takes seconds at most; one that hangs is killed by the kernel.
const SECONDS_MAX: u32 = 120;

type Test = (&'static str, fn());

fn tests() -> Vec<Test> {
    [boundary::TESTS, launch::TESTS, limits::TESTS, death::TESTS, host::TESTS].concat()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == atenea_launcher::client::HELPER_ARGUMENT) {
        atenea_launcher::helper::main(atenea_launcher::client::HELPER_FD);
    }
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let mut all = tests();
    if rustix::process::geteuid().is_root() {
        all.extend(as_user::TESTS);
    }
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in &all {
            println!("{name}: test");
        }
        return;
    }
    let mut failed = Vec::new();
    let chosen = all.into_iter().filter(|(name, _)| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    });
    let mut count = 0;
    for (name, test) in chosen {
        nix::unistd::alarm::set(SECONDS_MAX);
        let result = catch_unwind(test);
        nix::unistd::alarm::cancel();
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        count += 1;
        if result.is_err() {
            failed.push(name);
        }
    }
    println!("\ntest result: {} of {count} failed {failed:?}", failed.len());
    if !failed.is_empty() {
        std::process::exit(101);
    }
}
