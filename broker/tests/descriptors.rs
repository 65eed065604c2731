//! A process without free descriptors keeps its endpoint. One test, because the limit belongs to
//! the whole process.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Arc;

use atenea_broker::{Endpoint, Listeners, TokenTable};
use atenea_core::{Generation, RunId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_connection_that_found_no_descriptor_is_served_when_there_is_one_again() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let listeners = Listeners { tcp: tcp.into() };
    let tokens = Arc::new(TokenTable::new(Generation(1)));
    let record = Arc::new(|_| serde_json::json!({}));
    let run = RunId::from_random(1);
    let handle = Endpoint::bind(run, listeners, tokens, record, Arc::new(|_| {})).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    hoard.pop();
    // The client takes the last descriptor; on this one thread the loop runs only after that.
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n").await.unwrap();
    assert!(File::open("/dev/null").is_err(), "there must be no descriptor for the accept");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    hoard.clear();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    handle.close().await;
}
