//! Generated pages.
