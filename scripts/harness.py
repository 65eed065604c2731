"""What the long lanes share: a state directory of their own, the program, and a look from outside."""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile


class Bench:
    """A throw-away state directory and workspace; everything is looked at from outside."""

    def __init__(self, program):
        self.program = os.path.abspath(program)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="atenea-lane."))
        self.state = self.dir / "state"
        self.workspace = self.dir / "project"
        self.workspace.mkdir()
        git = ["git", "-c", "init.defaultBranch=main", "-c", "user.name=a", "-c", "user.email=a@b"]
        (self.workspace / "file").write_text("one\n")
        subprocess.run([*git, "init", "-q"], cwd=self.workspace, check=True)
        subprocess.run([*git, "add", "."], cwd=self.workspace, check=True)
        subprocess.run([*git, "commit", "-qm", "base"], cwd=self.workspace, check=True)

    def argv(self, *args):
        return [self.program, "--state-dir", str(self.state), *args]

    def run(self, *args, **kwargs):
        kwargs.setdefault("cwd", self.workspace)
        # A command that hangs is a finding, not a lane that never ends.
        kwargs.setdefault("timeout", 180)
        return subprocess.run(self.argv(*args), capture_output=True, text=True, **kwargs)

    def json(self, *args):
        done = self.run("--json", *args)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{args}: {done.returncode} {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def status(self):
        return self.json("status", "--all")

    def supervisor(self):
        done = self.run("--json", "info")
        return json.loads(done.stdout)["pid"] if done.returncode == 0 else None

    def helper(self, pid):
        for child in children(pid):
            if b"__launcher" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        return None

    def instance(self):
        return (self.state / "instance").read_text().strip()

    def groups(self):
        """Every control group below one of ours, in every hierarchy."""
        name = f"atenea-{self.instance()}"
        found = []
        for top, dirs, _ in os.walk("/sys/fs/cgroup"):
            if os.path.basename(top) == name:
                found += [os.path.join(top, d) for d in dirs if d.startswith("r_")]
                dirs.clear()
        return found

    def mounts(self):
        text = pathlib.Path("/proc/self/mountinfo").read_text()
        return [line for line in text.splitlines() if str(self.dir) in line]

    def close(self):
        self.run("stop", "--now")
        shutil.rmtree(self.dir, ignore_errors=True)


def children(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(child) for child in text.split()]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def marked(mark):
    """Processes of runs, by a variable that only they have."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if mark.encode() in pathlib.Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                pass
    return found


def seeded(argv, position):
    seed = int(argv[position]) if len(argv) > position else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    return random.Random(seed)


def check(condition, text):
    if not condition:
        print(f"FAILED: {text}", file=sys.stderr, flush=True)
        raise SystemExit(1)
    print(f"ok: {text}", flush=True)
