//! `GET /v1/runs/{id}/logs`: captured output, also while it grows.

use std::io::{Read, Seek, SeekFrom};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use tokio::sync::mpsc;

use super::problem::Asked;
use super::types::{FRAME_BYTES_MAX, LogsQuery};
use super::{ApiError, App, runs};
use crate::layout::Stream;
use atenea_core::{Phase, RunId};

/// Chunks on their way to a client; it is slow, not we.
const CHUNKS_MAX: usize = 4;

pub(super) async fn logs(
    State(app): State<App>,
    Path(id): Path<String>,
    Asked(query): Asked<LogsQuery>,
) -> Result<Response, ApiError> {
    let run = runs::find(&app, &id).await?.id;
    let (chunks, received) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(CHUNKS_MAX);
    tokio::spawn(async move {
        let _ = send_all(&app, &run, query, &chunks).await;
    });
    let stream = ReceiverStream(received);
    let body = Body::new(StreamBody::new(stream));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Sends what is there; with `follow`, goes on until the run has ended.
async fn send_all(
    app: &App,
    run: &RunId,
    query: LogsQuery,
    chunks: &mpsc::Sender<Result<Frame<Bytes>, std::io::Error>>,
) -> Option<()> {
    let mut tail = Tail::new(app, run, query.stream);
    let mut seq = app.handle.changes();
    loop {
        seq.borrow_and_update();
        let ended = app.handle.read(|s| s.runs.get(run).map(|r| r.phase)).await;
        while let Some(bytes) = tail.next() {
            chunks.send(Ok(Frame::data(bytes))).await.ok()?;
        }
        if !query.follow || ended.is_none_or(|phase| phase == Phase::Ended) {
            return Some(());
        }
        tokio::select! {
            changed = seq.changed() => changed.ok()?,
            () = app.host.output_grows(run, query.stream, tail.position()) => {}
            () = chunks.closed() => return None,
        }
    }
}

/// Reads a captured stream from a position to its present end.
pub(super) struct Tail {
    path: std::path::PathBuf,
    position: u64,
}

impl Tail {
    pub(super) fn new(app: &App, run: &RunId, stream: Stream) -> Self {
        Tail { path: app.dirs.stream(run, stream), position: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next piece; `None` at the present end. A file that is not there yet is empty.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let mut file = std::fs::File::open(&self.path).ok()?;
        file.seek(SeekFrom::Start(self.position)).ok()?;
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        let read = file.read(&mut buffer).ok().filter(|n| *n > 0)?;
        buffer.truncate(read);
        self.position = self.position.saturating_add(u64::try_from(read).ok()?);
        Some(Bytes::from(buffer))
    }
}

/// A channel as a stream of body frames.
struct ReceiverStream(mpsc::Receiver<Result<Frame<Bytes>, std::io::Error>>);

impl futures_core::Stream for ReceiverStream {
    type Item = Result<Frame<Bytes>, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}
