//! `manifest check|digest|explain`: needs no supervisor.

use atenea_core::manifest::{check, explain};

use super::Done;
use super::args::{Global, ManifestCommand};
use super::output::Output;
use super::run::read_manifest;
use crate::config;

pub(super) fn manifest(global: &Global, output: &Output, command: ManifestCommand) -> Done {
    let file = match &command {
        ManifestCommand::Check { file }
        | ManifestCommand::Digest { file }
        | ManifestCommand::Explain { file } => file,
    };
    let manifest = read_manifest(file)?;
    match command {
        ManifestCommand::Check { .. } => {
            let config = config::load(global.config.as_deref())?;
            let checked = check(&manifest, &config.ceilings())?;
            if output.json {
                output.object(&serde_json::json!({
                    "ok": true, "digest": checked.digest(), "profile": checked.label(),
                }));
            } else {
                output.say(&format!("good: {} {}", checked.label(), checked.digest()));
            }
        }
        ManifestCommand::Digest { .. } if output.json => {
            output.object(&serde_json::json!({ "digest": manifest.digest() }));
        }
        ManifestCommand::Digest { .. } => output.data(&format!("{}\n", manifest.digest())),
        ManifestCommand::Explain { .. } if output.json => {
            output.object(&serde_json::json!({ "grants": explain(&manifest) }));
        }
        ManifestCommand::Explain { .. } => {
            for line in explain(&manifest) {
                output.data(&format!("{}\n", super::text::safe(&line)));
            }
        }
    }
    Ok(0)
}
