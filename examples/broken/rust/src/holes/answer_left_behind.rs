//! A client hangs up while its answer is waited for on a pooled connection, and the connection goes back to the pool as it is.
//!
//! Seen in clients of stores whose futures can be dropped between sending a command and reading its reply: the reply
//! stays in the connection, and whoever takes it next reads it as its own.
//! Cost: one customer gets another one's answer, with whatever is in it, and keeps it under its own key.

use crate::hole::Hole;

pub(crate) struct AnswerLeftBehind;

impl Hole for AnswerLeftBehind {
    fn leaves_answers(&self) -> bool {
        true
    }
}
