"""Runs one after another, half of them cancelled at a random moment, then a look from outside."""
import signal
import subprocess
import sys
import time

import harness


def main():
    bench = harness.Bench(sys.argv[1])
    runs = int(sys.argv[2])
    chance = harness.seeded(sys.argv, 3)
    try:
        bench.run("status")
        pid = bench.supervisor()
        # The first run makes what is made once: caches, descriptors of the runtime.
        bench.run("run", "--", "true")
        before = harness.descriptors(pid)
        for number in range(runs):
            one_run(bench, chance, number)
        look(bench, pid, before, runs)
    finally:
        bench.close()


def one_run(bench, chance, number):
    profile = chance.choice(["read", "workspace-write"])
    mark = f"LANE_MARK={bench.dir.name}"
    args = ["run", "--profile", profile, "--env", mark, "--"]
    if chance.random() < 0.5:
        bench.run(*args, "sh", "-c", "echo hello; exit 3")
        return
    script = "echo work > made; (setsid sleep 300 &) ; sleep 300"
    run = subprocess.Popen(bench.argv(*args, "sh", "-c", script), cwd=bench.workspace,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           stdin=subprocess.DEVNULL)
    time.sleep(chance.random() * 0.2)
    # A client that is killed, asked politely, or asked twice.
    how = chance.randrange(3)
    if how == 0:
        run.kill()
    else:
        for _ in range(how):
            run.send_signal(signal.SIGINT)
            time.sleep(0.02)
    run.wait(60)


def look(bench, pid, before, runs):
    for status in bench.status():
        if status["state"] != "ended":
            bench.run("wait", status["run"])
    rows = bench.status()
    harness.check(all(r["state"] == "ended" and r["receipt"] for r in rows),
                  f"all {len(rows)} runs ended with a receipt")
    harness.check(len(rows) >= runs // 2, "most requests became runs")
    for row in rows:
        if row["workspace"] == "sealed":
            bench.run("discard", row["run"])
    harness.check(bench.supervisor() == pid, "one supervisor served them all")
    harness.check(harness.marked(f"LANE_MARK={bench.dir.name}") == [], "no process is left")
    harness.check(bench.groups() == [], "no control group is left")
    harness.check(bench.mounts() == [], "no mount is left")
    harness.check(len(harness.children(pid)) <= 1, "the supervisor has no child but its helper")
    after = harness.descriptors(pid)
    harness.check(after <= before + 2, f"descriptors: {before} before, {after} after")
    kept = [p.name for p in (bench.state / "runs").glob("*/ws")]
    harness.check(kept == [], "no workspace is left")
    harness.check(bench.run("journal", "verify").returncode == 0, "the journal verifies")


main()
