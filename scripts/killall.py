"""SIGKILL of supervisor and helper together at a random moment of a run; restart must converge."""
import os
import signal
import subprocess
import sys
import time

import harness


def main():
    times = int(sys.argv[2])
    chance = harness.seeded(sys.argv, 3)
    bench = harness.Bench(sys.argv[1])
    try:
        bench.run("budget", "set", "default", "1000")
        for number in range(times):
            once(bench, chance, number)
        rows = bench.status()
        harness.check(len(rows) >= max(1, times // 3), f"{len(rows)} of {times} requests became runs")
        harness.check(bench.run("journal", "verify").returncode == 0, "the journal verifies")
    finally:
        bench.close()


def once(bench, chance, number):
    bench.run("status")
    pid = bench.supervisor()
    helper = bench.helper(pid)
    mark = f"LANE_MARK={bench.dir.name}"
    script = "echo work > made; (setsid sleep 300 &) ; sleep 300"
    client = subprocess.Popen(
        bench.argv("run", "--profile", "workspace-write", "--budget", "1", "--env", mark,
                   "--name", f"n{number}", "--", "sh", "-c", script),
        cwd=bench.workspace, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    moment = chance.random() * 1.2
    time.sleep(moment)
    for victim in chance.sample([pid, helper], 2):
        if victim:
            os.kill(victim, signal.SIGKILL)
    client.wait(60)
    rows = bench.status()
    harness.check(all(r["state"] == "ended" and r["receipt"] for r in rows),
                  f"kill {number} after {moment:.3f} s: {len(rows)} runs ended with a receipt")
    last = [r for r in rows if r["name"] == f"n{number}"]
    if last:
        print(f"    outcome {last[0]['outcome']}, workspace {last[0]['workspace']}")
    harness.check(harness.marked(mark) == [], "no process is left")
    harness.check(bench.groups() == [], "no control group is left")
    harness.check(bench.mounts() == [], "no mount is left")
    account = bench.json("budget", "show", "default")[0]
    harness.check(account["usd_held"] == "0", "nothing priced was granted: no hold is left (B7)")
    for row in rows:
        if row["workspace"] == "sealed":
            made = bench.state / "runs" / row["run"] / "ws"
            harness.check(made.is_dir(), "a workspace an agent saw is kept (C4)")
            bench.run("discard", row["run"])


main()
