//! What the launcher helper and `atenea-init` say to each other. Both come from one build and the
//! first message carries the version, so this format needs no evolution.
#![forbid(unsafe_code)]

pub mod wire;
