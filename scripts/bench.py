"""Benchmarks: every row a ratio against something measured in the same run."""
import os
import platform
import statistics
import subprocess
import sys
import time

import harness

BARE = ["/usr/bin/bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
        "--unshare-cgroup", "--unshare-net", "--disable-userns", "--die-with-parent",
        "--new-session", "--as-pid-1", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
        "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc",
        "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/home/agent", "--remount-ro", "/", "--"]


def timed(argv, times, **kwargs):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       stdin=subprocess.DEVNULL, **kwargs)
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def shown(taken):
    ordered = sorted(taken)
    return f"p50 {statistics.median(ordered):7.1f} ms  p95 {ordered[int(len(ordered) * .95)]:7.1f} ms"


def main():
    program, quick = sys.argv[1], "--quick" in sys.argv
    times = 20 if quick else 100
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"{time.strftime('%Y-%m-%d')}")
    launch(program, times)
    restart(program)


def launch(program, times):
    bench = harness.Bench(program)
    plain = bench.dir / "plain"
    plain.mkdir()
    try:
        bench.run("run", "--", "true", cwd=plain)
        bare = timed([*BARE, "/usr/bin/true"], times)
        ours = timed(bench.argv("run", "--", "true"), times, cwd=plain)
        repo = timed(bench.argv("run", "--", "true"), max(5, times // 4), cwd=bench.workspace)
        nothing = []
        for _ in range(max(3, times // 20)):
            bench.run("stop")
            nothing += timed(bench.argv("run", "--", "true"), 1, cwd=plain)
        base = statistics.median(bare)
        print("\nlaunch of `true`, from command to exit status")
        for name, taken in (("bare bubblewrap, same namespaces", bare),
                            ("run, supervisor there, plain directory", ours),
                            ("run, supervisor there, git repository", repo),
                            ("run, no supervisor there", nothing)):
            print(f"  {name:<42} {shown(taken)}  {statistics.median(taken) / base:5.1f} x")
    finally:
        bench.close()


def restart(program):
    print("\njournal and restart")
    examples = os.path.join(os.path.dirname(os.path.abspath(program)), "examples")
    for example in ("append_bench", "restart_bench"):
        sys.stdout.flush()
        subprocess.run([os.path.join(examples, example)], check=True)


main()
