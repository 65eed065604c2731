//! `GET /v1/events`: what is recorded, as server-sent events, from any sequence on and then live.
//!
//! A client that reads slowly waits for itself: the journal is the buffer, and only a bounded number of
//! events is on its way.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use atenea_core::RunId;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;

use super::problem::Asked;
use super::types::EventsQuery;
use super::{ApiError, App, runs};
use crate::driver::record;

/// Events on their way to a client.
const EVENTS_MAX: usize = 64;
/// Records read at once.
const BATCH_RECORDS: usize = 1_024;

type Sent = Result<Event, Infallible>;

/// `GET /v1/events[?from=SEQ][&run=RUN]`
pub(super) async fn events(
    State(app): State<App>,
    Asked(query): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let only = match &query.run {
        Some(text) => Some(runs::find(&app, text).await?.id),
        None => None,
    };
    let next = match (last_seen(&headers), query.from) {
        (Some(seen), _) => seen.saturating_add(1),
        (None, Some(from)) => from.max(1),
        (None, None) => app.journal.head().seq + 1,
    };
    let (sender, received) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(async move {
        let _ = send_all(&app, next, only.as_ref(), &sender).await;
    });
    Ok(Sse::new(Live(received)).keep_alive(KeepAlive::default()).into_response())
}

/// What a client that comes again has seen last (HTML standard, server-sent events, `Last-Event-ID`).
fn last_seen(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok()
}

/// Sends what is recorded and what will be, until the client or the supervisor ends.
async fn send_all(
    app: &App,
    mut next: u64,
    only: Option<&RunId>,
    sender: &mpsc::Sender<Sent>,
) -> Option<()> {
    let mut recorded = app.handle.changes();
    loop {
        recorded.borrow_and_update();
        while next <= app.journal.head().seq {
            let journal = app.journal.clone();
            let read = move || -> Result<Vec<_>, _> {
                journal.records(next)?.take(BATCH_RECORDS).collect()
            };
            let batch = match tokio::task::spawn_blocking(read).await.ok()? {
                Ok(batch) => batch,
                Err(error) => {
                    let refusal = record::refusal(&error);
                    let told = Event::default().event("error").data(refusal.code.as_str());
                    return sender.send(Ok(told)).await.ok();
                }
            };
            for found in &batch {
                next = found.seq.saturating_add(1);
                let event = match record::decode_record(found) {
                    Ok(Some(event)) => event,
                    // The journal's own records are nobody's news.
                    _ => continue,
                };
                if only.is_none_or(|id| event.event.run() == Some(id)) {
                    sender.send(Ok(one(&event))).await.ok()?;
                }
            }
        }
        tokio::select! {
            changed = recorded.changed() => changed.ok()?,
            () = sender.closed() => return None,
        }
    }
}

/// One recorded event: its sequence as `id`, its name as `event`, the rest as JSON.
fn one(recorded: &atenea_core::event::Recorded) -> Event {
    let data = serde_json::json!({
        "seq": recorded.seq,
        "at": crate::clock::rfc3339(recorded.at.wall_ms),
        "run": recorded.event.run(),
        "event": recorded.event,
    });
    Event::default()
        .id(recorded.seq.to_string())
        .event(recorded.event.name())
        .data(data.to_string())
}

/// Events as they come.
struct Live(mpsc::Receiver<Sent>);

impl futures_core::Stream for Live {
    type Item = Sent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Sent>> {
        self.0.poll_recv(cx)
    }
}
