//! A client disconnects while its answer is awaited on a pooled connection, and the connection returns to
//! the pool with the answer unread.
//!
//! Seen in store clients whose futures can be dropped between sending a command and reading its reply: the
//! reply stays in the connection, and the next user reads it as its own.
//! Cost: a customer gets another customer's response and stores it under its own key.

use crate::hole::Hole;

pub(crate) struct AnswerLeftBehind;

impl Hole for AnswerLeftBehind {
    fn leaves_answers(&self) -> bool {
        true
    }
}
