//! Records as JSON.
//!
//! Each store has its own clock: future times are shown as time left, past ones as the time of this process's clock.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use refrain::{
    Outcome,
    clock::{Clock as _, SystemClock, Timestamp},
    record::{Attempt, End, History, Hold, State},
    store::Reading,
};
use serde_json::{Map, Value, json};

/// The record without the contents of its outcome.
pub(super) fn summary(reading: &Reading) -> Value {
    Value::Object(describe(reading))
}

/// The record with everything that is stored.
pub(super) fn whole(reading: &Reading) -> Value {
    let mut shown = describe(reading);
    let history = reading.record.trace.read();
    let attempts = history.iter().flat_map(|it| &it.attempts);
    let past = Past::new(reading.now);
    let attempts = attempts.map(|it| describe_attempt(it, &past)).collect();
    shown.insert("history".into(), attempts);
    shown.insert(
        "fingerprint".into(),
        reading.record.fingerprint.to_string().into(),
    );
    if let State::Completed { outcome, .. } = &reading.record.state {
        shown.insert("headers".into(), pairs(outcome.headers()));
        shown.insert("trailers".into(), pairs(outcome.trailers()));
        if outcome.is_body_kept() {
            let (name, body) = text(&outcome.body());
            shown.insert(name.into(), body.into());
        }
    }
    Value::Object(shown)
}

fn describe(reading: &Reading) -> Map<String, Value> {
    let Reading { id, record, now } = reading;
    let left = |moment: Timestamp| seconds(moment.left(*now));
    let mut shown = Map::new();
    shown.insert("id".into(), id.to_string().into());
    shown.insert("state".into(), json!(record.state.name()));
    let fence = record.fence().map(|fence| fence.to_string());
    shown.insert("fence".into(), fence.into());
    if let Some(history) = record.trace.read() {
        shown.extend(describe_origin(&history, &Past::new(*now)));
    }
    let rest = match &record.state {
        State::InFlight { hold, lease_ends } => {
            shown.extend(describe_hold(hold, *now));
            json!({ "lease_left_seconds": left(*lease_ends) })
        }
        State::Indeterminate { hold, reason } => {
            shown.extend(describe_hold(hold, *now));
            json!({ "reason": reason })
        }
        State::Completed {
            outcome,
            retention_ends,
            remember_ends,
            ..
        } => {
            shown.extend(describe_outcome(outcome));
            let (retention, remember) = (left(*retention_ends), left(*remember_ends));
            json!({ "retention_left_seconds": retention, "remember_left_seconds": remember })
        }
        State::Tombstone { remember_ends } => {
            json!({ "remember_left_seconds": left(*remember_ends) })
        }
    };
    shown.extend(object(rest));
    shown
}

/// Converts times of the store's clock to those of this process's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Past {
    now: Timestamp,
    wall: Timestamp,
}

impl Past {
    pub(crate) fn new(now: Timestamp) -> Self {
        let wall = SystemClock.wall();
        Self { now, wall }
    }

    pub(crate) fn show(&self, moment: Timestamp) -> String {
        (Timestamp(self.wall.0.saturating_sub(self.now.0)) + Duration::from_millis(moment.0))
            .rfc3339()
    }

    /// The time since a moment.
    pub(crate) fn ago(&self, moment: Timestamp) -> Duration {
        self.now.left(moment)
    }
}

fn describe_origin(history: &History, past: &Past) -> Map<String, Value> {
    let last = history.attempts.last();
    object(json!({
        "operation": history.operation,
        "target": history.target,
        "key_digest": history.key_digest.map(|digest| digest.to_string()),
        "key": history.key,
        "first_seen": history.first_seen().map(|it| past.show(it)),
        "last_change": history.last_change().map(|it| past.show(it)),
        "node": last.map(|it| &it.node),
        "attempts": last.map(|it| it.number),
    }))
}

fn describe_attempt(attempt: &Attempt, past: &Past) -> Value {
    let end = |(at, end): &(Timestamp, End)| {
        let (name, reason) = match end {
            End::Completed => ("completed", None),
            End::Unknown(reason) => ("unknown", Some(reason)),
            End::NoEffect => ("no-effect", None),
        };
        json!({ "at": past.show(*at), "end": name, "reason": reason })
    };
    let trace_id = attempt.trace_id.map(u128::from_be_bytes);
    json!({
        "attempt": attempt.number,
        "at": past.show(attempt.at),
        "fence": attempt.fence.to_string(),
        "node": attempt.node,
        "trace_id": trace_id.map(|id| format!("{id:032x}")),
        "ends": attempt.ends.iter().map(end).collect::<Value>(),
    })
}

fn describe_hold(hold: &Hold, now: Timestamp) -> Map<String, Value> {
    object(json!({
        "guarantee": hold.guarantee,
        "attempts": hold.attempts,
        "attempts_max": hold.attempts_max,
        "settle_left_seconds": seconds(hold.settles.left(now)),
    }))
}

fn describe_outcome(outcome: &Outcome) -> Map<String, Value> {
    // Nothing is known of an outcome that cannot be decrypted.
    if outcome.is_encrypted() {
        return object(json!({ "encrypted": true, "outcome_bytes": outcome.encoded().len() }));
    }
    object(json!({
        "status": outcome.status(),
        "body_kept": outcome.is_body_kept(),
        "body_bytes": outcome.body().len(),
        "outcome_bytes": outcome.encoded().len(),
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// Pairs of name and value, because a name may occur twice.
fn pairs<'a>(pairs: impl Iterator<Item = (&'a str, Bytes)>) -> Value {
    pairs
        .map(|(name, value)| json!([name, String::from_utf8_lossy(&value)]))
        .collect()
}

/// Member name and text of a body: unchanged if it is UTF-8, otherwise base64.
fn text(body: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(body) {
        Ok(text) => ("body", text.into()),
        Err(_) => ("body_base64", BASE64_STANDARD.encode(body)),
    }
}

fn seconds(left: Duration) -> f64 {
    left.as_secs_f64()
}
