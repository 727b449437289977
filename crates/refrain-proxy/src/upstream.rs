//! HTTP/1.1 as it is spoken to the upstream: one request and its answer, inside the future of who asks.
//!
//! There is no task for a connection and nothing is handed about: a request is written with one call to the system and its answer
//! read with another. What is not plainly one answer is none, and its connection is never used again.

mod exchange;
mod head;
mod line;

pub(crate) use exchange::{Answer, Ask, Failed, Terms, exchange};
pub(crate) use head::{Head, Heads};
pub(crate) use line::Line;

#[cfg(test)]
mod tests;
