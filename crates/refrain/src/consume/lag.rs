//! How far a consumer is behind its queue.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Messages that a consumer has not finished. A field is `None` if the broker does not report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Lag {
    /// Messages that wait for delivery to the consumer.
    pub waiting: Option<u64>,
    /// Messages that were delivered to the consumer, to any of its processes, and are not acknowledged.
    pub unacknowledged: Option<u64>,
    /// Age of the oldest message that is not acknowledged.
    #[serde(rename = "oldest_seconds", serialize_with = "as_seconds")]
    pub oldest: Option<Duration>,
    /// Whether the numbers are estimates or bounds.
    pub is_approximate: bool,
}

impl Lag {
    /// Creates a lag with this number of waiting messages.
    #[must_use]
    pub fn waiting(waiting: u64) -> Self {
        Self {
            waiting: Some(waiting),
            ..Self::default()
        }
    }

    /// Adds the number of messages that were delivered and not acknowledged.
    #[must_use]
    pub fn with_unacknowledged(mut self, unacknowledged: u64) -> Self {
        self.unacknowledged = Some(unacknowledged);
        self
    }

    /// Adds the age of the oldest message, if there is one.
    #[must_use]
    pub fn with_oldest(mut self, oldest: Option<Duration>) -> Self {
        self.oldest = oldest;
        self
    }

    /// Marks the numbers as estimates or bounds.
    #[must_use]
    pub fn approximate(mut self) -> Self {
        self.is_approximate = true;
        self
    }
}

fn as_seconds<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match age {
        Some(age) => serializer.serialize_f64(age.as_secs_f64()),
        None => serializer.serialize_none(),
    }
}
