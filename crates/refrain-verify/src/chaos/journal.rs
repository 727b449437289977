//! Journal of the most recent injected faults.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use tokio::time::Instant;

use super::rule::Fault;

/// Maximum number of events kept.
const EVENTS_MAX: usize = 10_000;
/// Maximum length of a recorded path, in bytes.
const PATH_BYTES_MAX: usize = 200;

/// One injected fault.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// Number of the event, starting at 1.
    pub number: u64,
    /// Milliseconds since the proxy started.
    pub at_ms: u64,
    /// Number of the rule.
    pub rule: u64,
    /// The fault.
    pub fault: Fault,
    /// The request's method.
    pub method: String,
    /// The request's path, truncated if it is long.
    pub path: String,
    /// Status of the upstream's response, if there was one.
    pub upstream: Option<u16>,
    /// Details, such as why the fault did not happen as the rule says.
    pub note: Option<String>,
}

/// The most recent injected faults.
#[derive(Debug)]
pub struct Journal {
    since: Instant,
    inner: Mutex<(u64, VecDeque<Event>)>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            inner: Mutex::default(),
        }
    }
}

impl Journal {
    /// Returns the events with a number above `number`, oldest first.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<Event> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = |event: &&Event| event.number > number;
        inner.1.iter().filter(is_later).cloned().collect()
    }

    /// Returns the number of events since the start, including dropped ones.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn note(
        &self,
        (rule, fault): (u64, Fault),
        (method, path): (&str, &str),
        upstream: Option<u16>,
        note: Option<String>,
    ) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0 += 1;
        let event = Event {
            number: inner.0,
            at_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            rule,
            fault,
            method: method.into(),
            path: path.chars().take(PATH_BYTES_MAX).collect(),
            upstream,
            note,
        };
        tracing::info!(rule, %fault, method, path = %event.path, upstream, note = event.note, "done");
        if inner.1.len() == EVENTS_MAX {
            inner.1.pop_front();
        }
        inner.1.push_back(event);
    }
}
