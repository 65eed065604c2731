//! The boundary over real sockets on loopback, with real clients.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use atenea_core::{Code, RunId};
use atenea_egress::{
    BindError, Boundary, BoundaryHandle, Denial, DenialSink, LIMITS, Listeners, Policy,
};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

#[derive(Clone, Copy)]
struct Ports {
    proxy: SocketAddr,
    socks: SocketAddr,
    dns_udp: SocketAddr,
    dns_tcp: SocketAddr,
}

type Log = Arc<Mutex<Vec<Denial>>>;

fn listeners() -> (Listeners, Ports) {
    let tcp = || StdTcpListener::bind("127.0.0.1:0").unwrap();
    let (proxy, socks, dns_tcp) = (tcp(), tcp(), tcp());
    let dns_udp = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    let ports = Ports {
        proxy: proxy.local_addr().unwrap(),
        socks: socks.local_addr().unwrap(),
        dns_udp: dns_udp.local_addr().unwrap(),
        dns_tcp: dns_tcp.local_addr().unwrap(),
    };
    let listeners = Listeners {
        proxy: proxy.into(),
        socks: socks.into(),
        dns_udp: dns_udp.into(),
        dns_tcp: dns_tcp.into(),
    };
    (listeners, ports)
}

fn sink() -> (DenialSink, Log) {
    let log = Log::default();
    let into = Arc::clone(&log);
    (Arc::new(move |denial| into.lock().unwrap().push(denial)), log)
}

fn boundary() -> (BoundaryHandle, Ports, Log) {
    let (listeners, ports) = listeners();
    let (sink, log) = sink();
    let run = RunId::from_random(7);
    (Boundary::bind(run, listeners, Policy::nothing(3), sink).unwrap(), ports, log)
}

fn total(log: &Log, code: Code) -> u64 {
    log.lock().unwrap().iter().filter(|d| d.code == code).map(|d| d.count).sum()
}

const CONNECT: &[u8] = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";

async fn ask(to: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Runs a client that must exist, without any variable of this environment that could send it
/// elsewhere.
async fn client(program: &str, arguments: &[&str]) -> (i32, String) {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap_or_else(|e| panic!("{program} is needed by this test: {e}"));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn curl_is_told_the_code_by_connect_absolute_form_and_socks() {
    let (handle, ports, log) = boundary();
    let proxy = format!("http://{}", ports.proxy);
    let (status, text) =
        client("curl", &["-q", "-sv", "-x", &proxy, "https://api.example.com/"]).await;
    assert_eq!(status, 56, "{text}");
    assert!(text.contains("403 Forbidden"), "{text}");
    assert!(text.contains("X-Atenea-Code: egress.not_granted"), "{text}");
    let plain = ["-q", "-sS", "-x", &proxy, "-d", "x=1", "http://api.example.com/v1"];
    let (status, text) = client("curl", &plain).await;
    assert_eq!(status, 0, "{text}");
    let body: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&body["code"], &body["port"]), (&"egress.not_granted".into(), &80.into()));
    let socks = ports.socks.to_string();
    let by_socks = ["-q", "-sS", "--socks5-hostname", &socks, "http://api.example.com/"];
    let (status, text) = client("curl", &by_socks).await;
    assert_eq!(status, 97, "{text}");
    assert!(text.contains("(2)"), "not allowed by ruleset: {text}");
    handle.close().await;
    assert_eq!(total(&log, Code::EgressNotGranted), 3);
}

#[tokio::test]
async fn a_body_sent_without_waiting_does_not_take_the_answer_away() {
    let (handle, ports, _log) = boundary();
    let proxy = format!("http://{}", ports.proxy);
    let upload = ["-q", "-sS", "-x", &proxy, "-H", "Expect:", "--data-binary", "@/bin/true"];
    let (status, text) = client("curl", &[&upload[..], &["http://a.example/"]].concat()).await;
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("egress.not_granted"), "{text}");
    handle.close().await;
}

#[tokio::test]
async fn python_sees_403_and_the_code() {
    let (handle, ports, _log) = boundary();
    let script = "
import sys, urllib.request, urllib.error
proxy = 'http://' + sys.argv[1]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({'http': proxy, 'https': proxy}))
try:
    opener.open('http://api.example.com/')
except urllib.error.HTTPError as e:
    print(e.code, e.headers['X-Atenea-Code'], e.read().decode())
try:
    opener.open('https://api.example.com/')
except OSError as e:
    print(e)
";
    let (_, text) = client("python3", &["-I", "-c", script, &ports.proxy.to_string()]).await;
    assert!(text.starts_with("403 egress.not_granted {"), "{text}");
    assert!(text.contains("Tunnel connection failed: 403 Forbidden"), "{text}");
    handle.close().await;
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(77, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
    message.to_vec().unwrap()
}

/// E3
#[tokio::test]
async fn dns_refuses_by_udp_and_by_tcp_and_survives_what_is_no_dns() {
    let (handle, ports, log) = boundary();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(ports.dns_udp).await.unwrap();
    let mut buffer = vec![0; 65536];
    for junk in [&b""[..], b"x", &[0xff; 12], &[0; 60000]] {
        socket.send(junk).await.unwrap();
    }
    for kind in [RecordType::A, RecordType::AAAA, RecordType::HTTPS, RecordType::TXT] {
        socket.send(&query("secret.example.", kind)).await.unwrap();
        let length = socket.recv(&mut buffer).await.unwrap();
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!((reply.metadata.id, reply.metadata.response_code), (77, ResponseCode::Refused));
    }
    let mut stream = TcpStream::connect(ports.dns_tcp).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for _ in 0..LIMITS.dns_messages {
        let query = query("secret.example.", RecordType::ANY);
        stream.write_u16(u16::try_from(query.len()).unwrap()).await.unwrap();
        stream.write_all(&query).await.unwrap();
        let length = usize::from(stream.read_u16().await.unwrap());
        stream.read_exact(&mut buffer[..length]).await.unwrap();
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused);
    }
    assert_eq!(stream.read(&mut buffer).await.unwrap(), 0, "the bound on messages closes");
    handle.close().await;
    let refused = 4 + u64::try_from(LIMITS.dns_messages).unwrap();
    assert_eq!(total(&log, Code::EgressDnsRefused), refused);
    assert_eq!(total(&log, Code::EgressBadRequest), 4);
    assert_eq!(total(&log, Code::EgressLimit), 1);
    // E6: one name, however many queries, is two reports.
    assert_eq!(log.lock().unwrap().iter().filter(|d| d.subject == "secret.example").count(), 2);
}

#[tokio::test]
async fn dns_by_tcp_closes_on_a_length_out_of_bounds() {
    let (handle, ports, log) = boundary();
    for length in [0, 5, 4097, 0xffff_u16] {
        let mut stream = TcpStream::connect(ports.dns_tcp).await.unwrap();
        stream.write_u16(length).await.unwrap();
        stream.write_all(&vec![0; usize::from(length).min(11)]).await.unwrap();
        let mut answer = Vec::new();
        // Closed, with a reset when bytes were left unread.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty());
    }
    handle.close().await;
    assert_eq!(total(&log, Code::EgressBadRequest), 4);
}

#[tokio::test]
async fn a_thousand_connections_of_every_bad_kind_do_not_end_the_accept_loops() {
    let (handle, ports, log) = boundary();
    for n in 0..1000_u32 {
        let to = [ports.proxy, ports.socks, ports.dns_tcp][usize::try_from(n % 3).unwrap()];
        let mut stream = TcpStream::connect(to).await.unwrap();
        match n % 4 {
            0 => stream.set_zero_linger().unwrap(),
            1 => stream.write_all(b"\xff\xff\xff\n\n").await.unwrap(),
            2 => stream.write_all(b"\x05").await.unwrap(),
            _ => {}
        }
    }
    let answer = served_in_the_end(ports.proxy, CONNECT).await;
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{answer:?}");
    let greeting = served_in_the_end(ports.socks, &[5, 1, 0, 5, 2, 0, 1, 1, 2, 3, 4, 0, 80]).await;
    assert_eq!(greeting[..4], [5, 0, 5, 7]);
    handle.close().await;
    assert_eq!(total(&log, Code::EgressNotGranted), 1);
}

/// Asks again while the run's places are still taken by connections that are being closed.
async fn served_in_the_end(to: SocketAddr, request: &[u8]) -> Vec<u8> {
    loop {
        match ask(to, request).await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn connections_over_the_bound_are_reset_and_places_come_back() {
    let (handle, ports, log) = boundary();
    let mut idle = Vec::new();
    for _ in 0..LIMITS.connections {
        idle.push(TcpStream::connect(ports.proxy).await.unwrap());
    }
    let mut over = TcpStream::connect(ports.proxy).await.unwrap();
    let error = over.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    idle.clear();
    assert!(served_in_the_end(ports.proxy, CONNECT).await.starts_with(b"HTTP/1.1 403 "));
    handle.close().await;
    let log = log.lock().unwrap();
    assert!(log.iter().any(|d| d.code == Code::EgressLimit && d.subject == "connections"));
}

#[tokio::test]
async fn close_ends_open_connections_frees_every_port_and_reports_the_last_counts() {
    let (handle, ports, log) = boundary();
    let mut open = TcpStream::connect(ports.proxy).await.unwrap();
    open.write_all(b"CONNECT ").await.unwrap();
    for _ in 0..5 {
        assert!(ask(ports.proxy, CONNECT).await.unwrap().starts_with(b"HTTP/1.1 403 "));
    }
    assert_eq!(total(&log, Code::EgressNotGranted), 1);
    assert_eq!((handle.run(), handle.policy_generation()), (&RunId::from_random(7), 3));
    handle.close().await;
    assert_eq!(total(&log, Code::EgressNotGranted), 5);
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    for port in [ports.proxy, ports.socks, ports.dns_tcp] {
        let error = TcpStream::connect(port).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    assert!(StdUdpSocket::bind(ports.dns_udp).is_ok());
}

#[tokio::test]
async fn dropping_the_handle_closes_too() {
    let (handle, ports, _log) = boundary();
    assert!(ask(ports.proxy, CONNECT).await.is_ok(), "positive control");
    drop(handle);
    loop {
        match TcpStream::connect(ports.proxy).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
            _ => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn swapped_unbound_and_public_descriptors_are_refused_before_anything_is_served() {
    let run = || RunId::from_random(1);
    let policy = || Policy::nothing(1);
    let (mut swapped, _) = listeners();
    std::mem::swap(&mut swapped.dns_udp, &mut swapped.socks);
    let error = Boundary::bind(run(), swapped, policy(), sink().0).unwrap_err();
    assert!(matches!(error, BindError::WrongKind { role: "socks", .. }), "{error}");
    let (mut file, _) = listeners();
    file.dns_udp = std::fs::File::open("/dev/null").unwrap().into();
    let error = Boundary::bind(run(), file, policy(), sink().0).unwrap_err();
    assert!(matches!(error, BindError::WrongKind { role: "dns udp", .. }), "{error}");
    let (mut public, _) = listeners();
    public.proxy = StdTcpListener::bind("0.0.0.0:0").unwrap().into();
    let error = Boundary::bind(run(), public, policy(), sink().0).unwrap_err();
    assert!(matches!(error, BindError::NotLoopback { role: "proxy", .. }), "{error}");
}
