//! Signals of a supervisor: stop, and read the configuration again.

use atenea_core::input::Command;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;

use super::life;
use super::notify;
use crate::api::App;
use crate::config::{self, OnStop};

/// Acts on signals for as long as the supervisor lives.
pub(super) async fn obey(app: App, daemon: bool) {
    let mut signals = match Signals::new([SIGTERM, SIGINT, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!("signals: {error}");
            return std::future::pending().await;
        }
    };
    let mut asked = false;
    while let Some(signal) = next(&mut signals).await {
        if signal == SIGHUP && daemon {
            reload(&app).await;
            continue;
        }
        // The first one goes by the rule, the next one does not wait.
        let wait = daemon && !asked && app.config.now().daemon.on_stop == OnStop::Wait;
        asked = true;
        tracing::info!("signal {signal}: {}", if wait { "waiting for runs" } else { "cancelling" });
        let _ = app.handle.command(Command::Stop { now: !wait }).await;
        app.stop.send_replace(true);
    }
}

async fn next(signals: &mut Signals) -> Option<i32> {
    std::future::poll_fn(|cx| futures_core::Stream::poll_next(std::pin::Pin::new(signals), cx))
        .await
}

/// A file that cannot be read, or says something that cannot be enforced, changes nothing.
async fn reload(app: &App) {
    notify::reloading();
    let file = app.config.now().file.clone();
    match config::load(file.as_deref()) {
        Ok(read) => {
            for kept in app.config.replace(read) {
                tracing::warn!("{kept} has changed; that counts after a restart");
            }
            let config = app.config.now();
            app.handle.settings(life::settings(&config));
            if let Err(refusal) = life::budgets(&app.handle, &config).await {
                tracing::warn!("{refusal}");
            }
            tracing::info!("the configuration was read again; it counts for new runs");
        }
        Err(refusal) => tracing::error!("the configuration stays as it was: {refusal}"),
    }
    notify::ready();
}
