//! Bounds: memory, tasks, files in memory.

use atenea_launcher::protocol::Event;

use super::Test;
use super::bench::Bench;

pub(crate) const TESTS: &[Test] = &[
    ("writable_places_are_bounded_in_bytes_and_inodes", writable_places_are_bounded),
    ("memory_over_its_limit_ends_the_whole_run", memory_ends_the_whole_run),
    ("tasks_over_their_limit_are_refused", tasks_are_refused),
];

fn writable_places_are_bounded() {
    let mut bench = Bench::new();
    let script = "for d in /tmp /home/agent /dev/shm; do cd $d; \
                  head -c 3000000 /dev/zero > big 2>/dev/null && echo $d holds 3 MB; rm big; \
                  i=0; while [ $i -lt 300 ]; do true > f$i || break; i=$((i+1)); done 2>/dev/null; \
                  [ $i -lt 300 ] || echo $d holds 300 files; rm -f f*; done; echo over";
    let ran = bench.shell(script, |input| {
        input.tmpfs.tmp = 2 << 20;
        input.tmpfs.home = 2 << 20;
        input.tmpfs.shm = 2 << 20;
    });
    assert_eq!(ran.stdout, "over\n", "{ran:?}");
}

fn memory_ends_the_whole_run() {
    let mut bench = Bench::new();
    // A child takes the memory; its parent would go on if only the child were killed.
    let script = "(head -c 400000000 /dev/zero | tail -c 400000000 >/dev/null) & \
                  while :; do sleep 1000; done";
    let plan = bench.plan(&["sh", "-c", script], |input| {
        input.limits.memory_bytes = 100 << 20;
        input.tmpfs = atenea_launcher::plan::TmpfsSizes::for_limits(&input.limits);
    });
    let _fds = bench.started(&plan);
    assert!(matches!(bench.event(), Event::Oom { .. }));
    bench.ended();
    bench.remove(&plan.run);
}

fn tasks_are_refused() {
    let mut bench = Bench::new();
    let script =
        "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; echo all";
    let plan = bench.plan(&["sh", "-c", script], |input| input.limits.pids = 20);
    let ran = bench.run(&plan);
    assert_ne!(ran.stdout, "all\n", "{ran:?}");
}
