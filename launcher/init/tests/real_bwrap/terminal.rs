//! The agent's terminal.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use atenea_init::wire::{FromInit, ToInit};

use crate::harness::{Running, Setup, read_until};

fn with_terminal(command: &[&str]) -> (Running, File) {
    let mut setup = Setup::new(command);
    setup.plan.tty = Some((31, 97));
    let mut running = setup.start();
    let (_, fds) = running.ready();
    let [master] = <[OwnedFd; 1]>::try_from(fds).unwrap();
    running.tell(&ToInit::Go);
    assert!(matches!(running.hear(), Some(FromInit::Started { .. })));
    (running, File::from(master))
}

#[test]
fn the_agent_has_a_controlling_terminal_of_the_right_size() {
    let script = "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo three >/dev/tty";
    let (mut running, mut master) = with_terminal(&["sh", "-c", script]);
    let seen = read_until(&mut master, "three");
    assert_eq!(seen.trim_end(), "/dev/pts/0\r\n31 97\r\nthree");
    assert_eq!(running.exited(), 0);
    // Nothing of it is on the plain streams.
    assert_eq!(running.output(), "");
}

#[test]
fn a_new_size_is_told_to_the_agent() {
    let script = "import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print('waiting', flush=True)
signal.sigwait([signal.SIGWINCH])
print('now', *os.get_terminal_size(0))";
    let (mut running, mut master) = with_terminal(&["python3", "-c", script]);
    read_until(&mut master, "waiting");
    running.tell(&ToInit::Resize { rows: 50, cols: 132 });
    read_until(&mut master, "now 132 50");
    assert_eq!(running.exited(), 0);
}

#[test]
fn an_interrupt_typed_at_the_terminal_reaches_the_agent() {
    let script = "import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
print('waiting', flush=True)
while True: signal.pause()";
    let (mut running, mut master) = with_terminal(&["python3", "-c", script]);
    read_until(&mut master, "waiting");
    master.write_all(b"\x03").unwrap();
    let status = running.exited();
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGINT);
}

#[test]
fn the_agent_cannot_type_into_its_terminal() {
    let script = "import fcntl
for command in (0x5412, 0x5412 | 1 << 31, 0x541c):
    try:
        fcntl.ioctl(0, command, b'x'); print('typed')
    except OSError as error:
        print(error.errno)
fcntl.ioctl(0, 0x5413, b'12345678'); print('size works')";
    let (mut running, mut master) = with_terminal(&["python3", "-c", script]);
    let seen = read_until(&mut master, "size works");
    assert_eq!(running.exited(), 0);
    let lines: Vec<&str> = seen.lines().collect();
    // 0x80005412 is another command, which no driver has.
    assert_eq!(lines, ["1", "25", "1", "size works"]);
}
