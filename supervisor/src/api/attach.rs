//! `POST /v1/runs/{id}/attach`: upgrades the connection to framed stdio.
//!
//! The supervisor sends the output from its beginning, a status whenever the phase changes, and an
//! `Ended` frame last; the client sends stdin and terminal sizes. When the client of a foreground
//! run goes away before the end, the run is cancelled.

use atenea_core::input::Observation;
use atenea_core::{Phase, RunId};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::logs::Tail;
use super::types::{FRAME_BYTES_MAX, FrameKind, RunStatus, TtySize, frame};
use super::{ApiError, App, runs};
use crate::layout::Stream;

type Io = TokioIo<hyper::upgrade::Upgraded>;

pub(super) async fn attach(
    State(app): State<App>,
    Path(id): Path<String>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let run = runs::find(&app, &id).await?.id;
    let upgrade = hyper::upgrade::on(&mut request);
    app.host.attached(&run);
    let guard = super::Connection(std::sync::Arc::clone(&app.connections));
    app.connections.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    tokio::spawn(async move {
        let _guard = guard;
        match upgrade.await {
            Ok(upgraded) => serve(&app, &run, TokioIo::new(upgraded)).await,
            Err(error) => {
                tracing::debug!("attach {run}: {error}");
                app.handle.observe(Observation::ClientGone { run }).await;
            }
        }
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "atenea-stdio")];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

async fn serve(app: &App, run: &RunId, io: Io) {
    let (reader, mut writer) = tokio::io::split(io);
    let ended = tokio::select! {
        ended = send(app, run, &mut writer) => ended,
        () = receive(app, run, reader) => false,
    };
    if ended {
        let _ = writer.shutdown().await;
    } else {
        app.handle.observe(Observation::ClientGone { run: run.clone() }).await;
    }
}

/// Sends output and status until the run has ended; true when everything was sent.
async fn send(app: &App, run: &RunId, writer: &mut WriteHalf<Io>) -> bool {
    let mut tails =
        [Stream::Stdout, Stream::Stderr].map(|stream| (stream, Tail::new(app, run, stream)));
    let mut shown: Option<(String, Option<super::types::Progress>)> = None;
    let mut seq = app.handle.changes();
    loop {
        seq.borrow_and_update();
        let Ok(now) = runs::find(app, run.as_str()).await else { return false };
        let status = runs::status_of(app, &now).await;
        for (stream, tail) in &mut tails {
            let kind = match stream {
                Stream::Stdout => FrameKind::Stdout,
                Stream::Stderr => FrameKind::Stderr,
            };
            while let Some(bytes) = tail.next() {
                if write_frame(writer, kind, &bytes).await.is_err() {
                    return false;
                }
            }
        }
        if now.phase == Phase::Ended {
            return write_status(writer, FrameKind::Ended, &status).await.is_ok();
        }
        let view = (status.state.clone(), status.progress);
        if shown.as_ref() != Some(&view) {
            if write_status(writer, FrameKind::Status, &status).await.is_err() {
                return false;
            }
            shown = Some(view);
        }
        let [(_, out), (_, err)] = &tails;
        tokio::select! {
            changed = seq.changed() => if changed.is_err() { return false },
            () = app.host.output_grows(run, Stream::Stdout, out.position()) => {}
            () = app.host.output_grows(run, Stream::Stderr, err.position()) => {}
            () = app.host.progress_moves(run) => {}
        }
    }
}

async fn write_status(
    writer: &mut WriteHalf<Io>,
    kind: FrameKind,
    status: &RunStatus,
) -> std::io::Result<()> {
    let body = serde_json::to_vec(status).map_err(std::io::Error::other)?;
    write_frame(writer, kind, &body).await
}

async fn write_frame(
    writer: &mut WriteHalf<Io>,
    kind: FrameKind,
    body: &[u8],
) -> std::io::Result<()> {
    writer.write_all(&frame(kind, body)?).await?;
    writer.flush().await
}

/// Passes on what the client sends; returns when it is gone.
async fn receive(app: &App, run: &RunId, mut reader: ReadHalf<Io>) {
    let mut body = vec![0u8; FRAME_BYTES_MAX];
    loop {
        let mut head = [0u8; 5];
        if reader.read_exact(&mut head).await.is_err() {
            return;
        }
        let [kind, a, b, c, d] = head;
        let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let Some(body) = body.get_mut(..len) else { return };
        if reader.read_exact(body).await.is_err() {
            return;
        }
        match FrameKind::from_u8(kind) {
            Some(FrameKind::Stdin) => app.host.write_stdin(run, body).await,
            Some(FrameKind::Resize) => {
                if let Ok(size) = serde_json::from_slice::<TtySize>(body) {
                    app.host.resize(run, size);
                }
            }
            _ => return,
        }
    }
}
