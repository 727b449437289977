//! Tracks whether the brokers answer: an empty topic is as silent as a cluster that is away.

use std::time::Duration;

use refrain::{Error, ErrorKind, Result};
use tokio::time::Instant;

/// How long the brokers may be silent before they are asked for an answer. An empty topic is silent.
const QUIET_MAX: Duration = Duration::from_secs(5);
/// Least time between two such questions, while the brokers are unavailable.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// When the brokers last answered, and the error since then.
pub(super) struct Contact {
    heard: Instant,
    asked: Instant,
    is_asking: bool,
    /// Time and message of the last error; `None` after an answer.
    trouble: Option<(Instant, String)>,
}

impl Contact {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            heard: now,
            asked: now,
            is_asking: false,
            trouble: None,
        }
    }

    pub(super) fn record_contact(&mut self) {
        self.heard = Instant::now();
        self.trouble = None;
    }

    pub(super) fn record_error(&mut self, error: &Error) {
        self.trouble = Some((Instant::now(), error.to_string()));
    }

    pub(super) fn trouble(&self) -> Option<Error> {
        let (_, message) = self.trouble.clone()?;
        Some(Error::new(ErrorKind::Unavailable, message))
    }

    /// Whether the brokers have to be asked now; then the caller asks.
    pub(super) fn starts_asking(&mut self) -> bool {
        let is_in_doubt = self.trouble.is_some() || self.heard.elapsed() >= QUIET_MAX;
        let starts = is_in_doubt && !self.is_asking && self.asked.elapsed() >= ASK_EVERY;
        if starts {
            self.is_asking = true;
            self.asked = Instant::now();
        }
        starts
    }

    pub(super) fn record_reply(&mut self, answer: Result<()>) {
        self.is_asking = false;
        let is_older = |(since, _): &(Instant, String)| *since < self.asked;
        match answer {
            // An error since the question may be newer than the answer.
            Ok(()) if self.trouble.as_ref().is_none_or(is_older) => self.record_contact(),
            Ok(()) => {}
            Err(error) => self.record_error(&error),
        }
    }
}
