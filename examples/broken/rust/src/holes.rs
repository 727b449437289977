//! The bugs, one file each.

use crate::hole::Hole;

mod answer_left_behind;
mod body_per_chunk;
mod disconnect_cancels;
mod key_truncated;
mod oversize_not_kept;
mod replay_always_200;
mod seconds_for_milliseconds;
mod unscoped_key;

/// No bug: `refrain verify` must report nothing.
struct Right;

impl Hole for Right {}

/// Returns the bug of this name.
pub(crate) fn named(name: &str) -> Option<Box<dyn Hole>> {
    Some(match name {
        "right" => Box::new(Right),
        "answer_left_behind" => Box::new(answer_left_behind::AnswerLeftBehind),
        "body_per_chunk" => Box::new(body_per_chunk::BodyPerChunk),
        "disconnect_cancels" => Box::new(disconnect_cancels::DisconnectCancels),
        "key_truncated" => Box::new(key_truncated::KeyTruncated),
        "oversize_not_kept" => Box::new(oversize_not_kept::OversizeNotKept),
        "replay_always_200" => Box::new(replay_always_200::ReplayAlways200),
        "seconds_for_milliseconds" => Box::new(seconds_for_milliseconds::SecondsForMilliseconds),
        "unscoped_key" => Box::new(unscoped_key::UnscopedKey),
        _ => return None,
    })
}
