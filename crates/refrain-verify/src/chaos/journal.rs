//! What was done to whom, the last of it.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use tokio::time::Instant;

use super::rule::Fault;

/// How many events are kept.
const EVENTS_MAX: usize = 10_000;
/// How much of a path is kept.
const PATH_BYTES_MAX: usize = 200;

/// What was done to one request.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// Counts events, from 1.
    pub number: u64,
    /// Milliseconds since the proxy started.
    pub at_ms: u64,
    /// The rule that did it.
    pub rule: u64,
    /// What was done.
    pub fault: Fault,
    /// The request's method.
    pub method: String,
    /// The request's path, its beginning where it is long.
    pub path: String,
    /// What the upstream answered, where it did.
    pub upstream: Option<u16>,
    /// What did not go as the rule says, if anything.
    pub note: Option<String>,
}

/// The last events.
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
    /// The events behind this number, oldest first.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<Event> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = |event: &&Event| event.number > number;
        inner.1.iter().filter(is_later).cloned().collect()
    }

    /// How many events there were in all.
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
