//! Why init ends without an exit status of the agent.

use std::io;

use atenea_init::wire::FromInit;

/// A step that failed: the agent was not started, or, after it was, everything ends with init.
#[derive(Debug)]
pub(crate) struct Failure {
    step: &'static str,
    errno: i32,
    detail: String,
}

impl Failure {
    /// What was seen, without an errno.
    pub(crate) fn new(step: &'static str, detail: impl Into<String>) -> Self {
        Self { step, errno: 0, detail: detail.into() }
    }

    /// For `map_err`: an I/O error at a step.
    pub(crate) fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self {
            step,
            errno: error.raw_os_error().unwrap_or(0),
            detail: error.to_string(),
        }
    }

    /// As the helper is told.
    pub(crate) fn message(self) -> FromInit {
        FromInit::Failed { step: self.step.to_owned(), errno: self.errno, detail: self.detail }
    }
}

/// Why init ends early.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The supervision stream ended: the helper is dead, or wants the sandbox to be.
    SupervisorGone,
    /// A step failed.
    Failed(Failure),
}

impl From<Failure> for Ending {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}
