//! HTTP/1.1 as it is spoken to the upstream: one request and its answer, inside the future of who asks.
//!
//! There is no task for a connection and nothing is handed about: a request is written with one call to the system and its answer
//! read with another. What is not plainly one answer is none, and its connection is never used again.

mod exchange;
mod framing;
mod head;
mod line;
mod sending;

pub(crate) use exchange::{Answer, Ask, Failed, Terms, exchange};
pub(crate) use framing::{Framing, Step};
pub(crate) use head::{Head, Limits};
pub(crate) use line::Line;
pub(crate) use sending::{COPIED_MAX, Length, Sending, write_field};

/// An answer that is none, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

#[cfg(test)]
mod tests;
