//! The DNS stub's sockets: UDP inline, because an answer is a computation of microseconds and a
//! datagram that cannot be sent at once is dropped; TCP with framed messages.

use std::io;
use std::sync::Arc;

use atenea_core::Code;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::accept::Shared;
use crate::{LIMITS, dns};

/// Answers datagrams until `stop` changes.
pub(crate) async fn serve_udp(
    socket: UdpSocket,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) {
    // One byte more than the bound: a longer datagram is cut, but still seen to be too long.
    let mut buffer = vec![0; LIMITS.dns_bytes + 1];
    let mut pause = LIMITS.accept_pause;
    loop {
        let received = tokio::select! {
            _ = stop.changed() => return,
            received = socket.recv_from(&mut buffer) => received,
        };
        match received {
            Ok((length, peer)) => {
                pause = LIMITS.accept_pause;
                let answer = dns::answer(buffer.get(..length).unwrap_or(&[]));
                if let Some(reply) = &answer.reply {
                    // A full socket buffer is the client's own doing; resolvers ask again.
                    let _ = socket.try_send_to(reply, peer);
                }
                shared.denials.record(answer.code, answer.subject.as_bytes());
            }
            // An answer of ours came back as "port unreachable": about that client only.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => {
                tokio::select! {
                    _ = stop.changed() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = pause.saturating_mul(2).min(LIMITS.accept_pause_max);
            }
        }
    }
}

/// Answers one TCP connection.
pub(crate) async fn converse<S>(mut stream: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    for _ in 0..LIMITS.dns_messages {
        match timeout(LIMITS.dns_time, one_message(&mut stream, &shared)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false) | Err(_)) => return,
            Err(_) => break,
        }
    }
    shared.denials.record(Code::EgressLimit, b"dns connection");
}

/// Reads, answers. False when the connection is to be closed.
async fn one_message<S>(stream: &mut S, shared: &Shared) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let length = usize::from(stream.read_u16().await?);
    if length > LIMITS.dns_bytes {
        shared.denials.record(Code::EgressBadRequest, b"dns");
        return Ok(false);
    }
    let mut query = vec![0; length];
    stream.read_exact(&mut query).await?;
    let answer = dns::answer(&query);
    shared.denials.record(answer.code, answer.subject.as_bytes());
    let Some(reply) = answer.reply else {
        return Ok(false);
    };
    let length = u16::try_from(reply.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(&reply);
    stream.write_all(&framed).await?;
    Ok(true)
}
