# What a process may try against another one of its user: pid 1 (`init`), or a child of its own
# (`child`), where all of it works.
import ctypes, errno, fcntl, os, resource, signal, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
SIGNALS = [s for s in range(1, 65) if s not in (32, 33)]
HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def call(*words):
    ctypes.set_errno(0)
    answer = libc.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
    if answer < 0:
        raise OSError(ctypes.get_errno(), "")
    return answer


def by_owner(pid, number):
    """The kernel itself sends it, as the news of a pipe."""
    r, w = os.pipe()
    fcntl.fcntl(r, fcntl.F_SETOWN, pid)
    fcntl.fcntl(r, 10, number)  # F_SETSIG
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(w, b"x")
    os.close(r)
    os.close(w)


def by_queue(pid, number):
    info = struct.pack("iiiiiiQ", number, 0, -1, 0, os.getpid(), os.getuid(), 0).ljust(128, b"\0")
    call(129, pid, number, info)


WAYS = {
    "kill": os.kill,
    "tgkill": lambda pid, number: call(234, pid, pid, number),
    "pidfd": lambda pid, number: signal.pidfd_send_signal(os.pidfd_open(pid), number),
    "queue": by_queue,
    "owner": by_owner,
}


def opened(path, flags=os.O_RDONLY):
    os.close(os.open(path, flags))


def acts(pid):
    limit = struct.pack("QQ", 1, 1)
    for name in ("CPU", "AS", "STACK", "NOFILE", "FSIZE", "DATA"):
        kind = getattr(resource, "RLIMIT_" + name)
        yield "prlimit " + name, lambda: call(302, pid, kind, limit, 0)
    yield "prlimit, high bits", lambda: call(302, pid | 1 << 32, resource.RLIMIT_CPU, limit, 0)
    yield "ptrace", lambda: call(101, 0x4206, pid, 0, 0)
    yield "read its memory", lambda: opened(f"/proc/{pid}/mem")
    yield "write its memory", lambda: opened(f"/proc/{pid}/mem", os.O_RDWR)
    yield "its descriptors", lambda: os.listdir(f"/proc/{pid}/fd")
    yield "its environment", lambda: opened(f"/proc/{pid}/environ")
    yield "its oom score", lambda: opened(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
    yield "a descriptor of it", lambda: call(438, os.pidfd_open(pid), 0, 0)


def result(act):
    try:
        act()
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno]


def child():
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid


def end_of_child(way, number):
    pid = child()
    WAYS[way](pid, number)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return os.WSTOPSIG(status)
    return os.WTERMSIG(status)


resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)  # what the interpreter changed
if sys.argv[1] == "child":
    for way in WAYS:
        for number in SIGNALS:
            if number in HARMLESS or (way == "owner" and number in (signal.SIGKILL, signal.SIGSTOP)):
                continue
            if number in STOPS and number != signal.SIGSTOP:
                continue  # an orphaned group does not stop
            got = end_of_child(way, number)
            assert got == number, (way, number, got)
    target = child()
else:
    for way in WAYS:
        print(way, {result(lambda: WAYS[way](1, number)) for number in SIGNALS})
    target = 1
for name, act in acts(target):
    print(f"{name}: {result(act)}")
if sys.argv[1] == "child":
    os.kill(target, signal.SIGKILL)
sys.exit(9)
