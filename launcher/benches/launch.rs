//! How long a launch takes, against bare bubblewrap with the same namespaces, in the same minute.
//!
//! Prints medians and 95th percentiles in milliseconds. `ready` is until the supervisor holds the
//! sandbox that waits for *go*, `exited` until the agent's end is reported, `removed` until nothing
//! of the run is left.
#![expect(clippy::unwrap_used, reason = "a benchmark ends at the first surprise")]

#[expect(dead_code, reason = "shared with the tests")]
#[path = "../tests/sandbox/bench.rs"]
mod bench;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 200;
/// Warm caches first.
const WARM_UP: usize = 10;

fn now_ms() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    #[expect(clippy::cast_precision_loss, reason = "a benchmark")]
    let (seconds, nanos) = (now.tv_sec as f64, now.tv_nsec as f64);
    seconds * 1e3 + nanos / 1e6
}

fn bare(uid: u32) {
    let mut command = Command::new("/usr/bin/bwrap");
    command
        .args(
            "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup".split(' '),
        )
        .args("--unshare-net --disable-userns --uid 1000 --gid 1000 --die-with-parent".split(' '))
        .args("--new-session --clearenv --proc /proc --dev /dev --tmpfs /tmp".split(' '))
        .args("--ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64".split(' '))
        .args("--symlink usr/bin /bin -- /usr/bin/true".split(' '))
        .stdin(Stdio::null());
    if uid != 0 {
        command.uid(uid).gid(uid);
    }
    assert!(command.status().unwrap().success());
}

fn main() {
    if std::env::args().nth(1).is_some_and(|a| a == atenea_launcher::client::HELPER_ARGUMENT) {
        atenea_launcher::helper::main(atenea_launcher::client::HELPER_FD);
    }
    let mut bench = bench::Bench::new();
    let uid = if rustix::process::geteuid().is_root() { bench::RUN_UID } else { 0 };
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..ROUNDS + WARM_UP {
        let mut took = [0.0; 4];
        let start = now_ms();
        bare(uid);
        took[0] = now_ms() - start;
        let (_dir, workspace) = bench.workspace("/home/me/project");
        let plan = bench.plan(&["/usr/bin/true"], |input| input.workspace = Some(workspace));
        let start = now_ms();
        let (_, _fds) = bench.created(&plan);
        took[1] = now_ms() - start;
        bench.go(&plan.run);
        bench.ended();
        took[2] = now_ms() - start;
        bench.remove(&plan.run);
        took[3] = now_ms() - start;
        if round >= WARM_UP {
            for (list, value) in times.iter_mut().zip(took) {
                list.push(value);
            }
        }
    }
    for (name, list) in
        ["bare bubblewrap", "ready", "exited", "removed"].into_iter().zip(&mut times)
    {
        list.sort_by(f64::total_cmp);
        println!("{name:16} p50 {:6.2}  p95 {:6.2} ms", list[ROUNDS / 2], list[ROUNDS * 95 / 100]);
    }
}
