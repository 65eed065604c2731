//! Real tools work under the agent's seccomp program.

use std::process::Command;

use crate::harness::{Setup, open_directory, strings};

fn succeeds(setup: &Setup, expected: &str) {
    let mut running = setup.run();
    // Streams are small here, so nothing waits for their readers.
    let status = running.exited();
    let (output, errors) = (running.output(), running.errors());
    assert_eq!(status, 0, "{output}{errors}");
    assert!(output.ends_with(expected), "{output}{errors}");
}

#[test]
fn a_shell_and_its_tools_work() {
    let script = "set -e
        seq 1000 | sort -rn | head -1 > a; cp a b; cp --sparse=always --reflink=auto a c; mv b d
        mkdir -p x/y; ln -s ../a x/l; ln a hard; chmod 600 a; touch -d 2020-01-01 a
        mkfifo fifo; (cat a > fifo &) ; cat fifo
        tar cf - x a | (mkdir t; cd t; tar xf -); find . -type f | xargs -P4 -n1 sha256sum > /dev/null
        timeout 100 true; nice true; nproc > /dev/null; df . > /dev/null; ps aux > /dev/null || true
        id -u; dd if=/dev/zero of=z bs=1M count=2 conv=fsync 2> /dev/null; truncate -s 1 z; rm -r x t
        diff <(cat a) <(cat d); echo $((6 * 7))";
    succeeds(&Setup::new(&["bash", "-c", script]), "42\n");
}

#[test]
fn python_works_with_threads_processes_sockets_and_sqlite() {
    let script = r"
import asyncio, ctypes, hashlib, multiprocessing, os, random, select, shutil, signal, socket
import sqlite3, ssl, subprocess, tempfile, threading, time, mmap, selectors, pathlib, json
def double(n): return n * 2
if __name__ == '__main__':
    threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    with multiprocessing.Pool(3) as pool: assert pool.map(double, [1, 2, 3]) == [2, 4, 6]
    assert subprocess.run(['sh', '-c', 'cat'], input=b'x', capture_output=True).stdout == b'x'
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname()); peer, _ = server.accept()
    client.sendall(b'hi'); assert peer.recv(2) == b'hi'
    six = socket.create_server(('::1', 0), family=socket.AF_INET6); six.close()
    assert socket.getaddrinfo('127.0.0.1', 80, type=socket.SOCK_STREAM)
    base = sqlite3.connect('base.db'); base.execute('pragma journal_mode=wal')
    base.execute('create table t(x)'); base.execute('insert into t values (1)'); base.commit()
    async def wait():
        process = await asyncio.create_subprocess_exec('true'); return await process.wait()
    assert asyncio.run(wait()) == 0
    with tempfile.TemporaryDirectory() as d: shutil.copytree('/usr/share/base-files', d + '/c')
    m = mmap.mmap(-1, 4096); m[0] = 1; m.close()
    fd = os.memfd_create('x'); os.write(fd, b'1'); os.close(fd)
    os.close(os.pidfd_open(os.getpid()))
    print('fine')
";
    succeeds(&Setup::new(&["python3", "-c", script]), "fine\n");
}

#[test]
fn node_works_with_workers_children_servers_and_files() {
    let script = r"
const {Worker} = require('worker_threads'), cp = require('child_process'), http = require('http');
const fs = require('fs'), os = require('os'), crypto = require('crypto'), net = require('net');
(async () => {
  await new Promise((ok, no) => { const w = new Worker('require(`worker_threads`).parentPort.postMessage(1)', {eval: true}); w.on('message', ok); w.on('error', no); });
  if (cp.execSync('echo hi').toString() !== 'hi\n') throw 1;
  await new Promise((ok, no) => { const c = cp.fork('-e', ['']); c.on('exit', ok); });
  await fs.promises.writeFile('f', 'x'.repeat(100000)); await fs.promises.cp('f', 'g');
  fs.watch('.').close(); crypto.randomBytes(8); crypto.scryptSync('a', 'b', 16);
  const server = http.createServer((q, r) => r.end('ok')); await new Promise(ok => server.listen(0, '127.0.0.1', ok));
  const text = await (await fetch('http://127.0.0.1:' + server.address().port)).text(); server.close();
  const pipe = net.createServer(); await new Promise(ok => pipe.listen('/tmp/s', ok)); pipe.close();
  WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]));
  let faces = 'listed'; try { os.networkInterfaces() } catch (e) { faces = e.code || String(e) }
  console.log(text, 'done');
})();
";
    succeeds(&Setup::new(&["node", "-e", script]), "ok done\n");
}

#[test]
fn git_works() {
    let script = "set -e
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q -b main r; cd r; for i in $(seq 50); do echo $i > f$i; done
        git add .; git commit -qm one; git checkout -qb side; echo x >> f1; git commit -qam two
        git checkout -q main; git merge -q --no-ff -m three side; git gc -q; git fsck --strict
        git worktree add -q ../w side; git stash list; git status --porcelain; git log --oneline | wc -l
        git clone -q . ../c; git -C ../c grep -c x; git bisect start -q 2> /dev/null; echo works";
    succeeds(&Setup::new(&["bash", "-c", script]), "works\n");
}

#[test]
fn gcc_and_make_work() {
    let script = r#"set -e
        printf '#include <stdio.h>\nint main(){puts("hello");}\n' > a.c
        printf '#include <iostream>\n#include <thread>\nint main(){std::thread([]{std::cout<<"x\\n";}).join();}\n' > b.cc
        printf 'all: a b\na: a.c\n\tgcc -O2 -pipe -o a a.c\nb: b.cc\n\tg++ -o b b.cc\n' > Makefile
        make -s -j2; ./b; ./a"#;
    succeeds(&Setup::new(&["bash", "-c", script]), "hello\n");
}

/// The toolchain that compiles this test, made readable for the ordinary user by a bind mount in a
/// mount namespace of its own when it is below a private directory.
#[test]
fn cargo_builds_and_tests_a_crate() {
    let answer = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let toolchain = String::from_utf8(answer.stdout).unwrap().trim().to_owned();
    let place = open_directory();
    let place = place.path().to_str().unwrap();
    let script = "set -e; export CARGO_HOME=$PWD/.cargo USER=agent
        cargo new -q --vcs none demo; cd demo; cargo test -q --offline 2>&1; cargo run -q --offline";
    let mut setup = Setup::new(&["bash", "-c", script]);
    setup.plan.env[0] = b"PATH=/opt/rust/bin:/usr/local/bin:/usr/bin:/bin".to_vec();
    let mut source = toolchain.as_str();
    if rustix::process::geteuid().is_root() {
        let bind = "mount --bind \"$1\" \"$2\"; shift 2; exec \"$@\"";
        setup.outside = strings(&["unshare", "--mount", "bash", "-c", bind, "bind", source, place]);
        source = place;
    }
    // On Debian the linker `cc` is a link through /etc/alternatives.
    let binds = ["--ro-bind", source, "/opt/rust", "--ro-bind-try"];
    setup.last.splice(0..0, strings(&["/etc/alternatives", "/etc/alternatives"]));
    setup.last.splice(0..0, strings(&binds));
    succeeds(&setup, "Hello, world!\n");
}

/// Without the program the same kernel grants what it refuses: the refusals above are its work.
#[test]
fn refused_calls_fail_in_programs_as_documented() {
    let script = r"
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*a):
    ctypes.set_errno(0)
    return 'works' if libc.syscall(*a) >= 0 else errno.errorcode[ctypes.get_errno()]
def family(*a):
    try: socket.socket(*a); return 'works'
    except OSError as e: return errno.errorcode[e.errno]
print('clone3', call(435, 0, 0), 'unshare', call(272, 0x10000000), 'keyctl', call(250, 0, -3, 1))
print('newer', call(1000), 'io_uring', call(425, 1, bytes(120)), 'personality', call(135, 0x0400000))
print('query', call(135, 0xffffffff), 'netlink', family(16, 3, 0), 'sctp', family(2, 1, 132), 'tcp', family(2, 1, 0))
";
    let expected = "clone3 ENOSYS unshare EPERM keyctl EPERM\n\
        newer ENOSYS io_uring EPERM personality EPERM\n\
        query works netlink EPERM sctp EPROTONOSUPPORT tcp works\n";
    succeeds(&Setup::new(&["python3", "-c", script]), expected);
}
