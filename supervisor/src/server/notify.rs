//! What the service manager is told (sd_notify(3)). Without `NOTIFY_SOCKET` nothing is sent.

use std::time::Duration;

use atenea_core::Refusal;
use sd_notify::NotifyState;

use crate::api::App;

/// It listens and admits runs.
pub(super) fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("ready")]);
}

/// It cannot start, and why.
pub(super) fn refused(refusal: &Refusal) {
    send(&[NotifyState::Status(&refusal.to_string())]);
}

/// It reads its configuration again; [`ready`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("sd_notify: {error}"),
    }
}

/// It goes down.
pub(super) fn stopping(why: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(&format!("stopping: {why}"))]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("sd_notify: {error}");
    }
}

/// Says that it lives, twice in each interval the service manager asks for, for as long as that is
/// true: the driver lets its state be read, and the journal takes events.
pub(super) async fn watchdog(app: App) {
    let Some(interval) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let pause = interval / 2;
    loop {
        tokio::time::sleep(pause).await;
        if lives(&app, pause).await {
            send(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("the driver does not answer; systemd will end this supervisor");
        }
    }
}

async fn lives(app: &App, patience: Duration) -> bool {
    let answers = tokio::time::timeout(patience, app.handle.read(|state| state.seq)).await;
    answers.is_ok() && app.journal.poisoned().is_none()
}
