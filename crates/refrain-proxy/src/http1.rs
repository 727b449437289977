//! HTTP/1.1 as bytes, for both sides: where a head and a body end, and how one is written.
//!
//! Nothing here reads leniently what another program may read differently: it is [`Broken`], and its connection is not used again.

mod fields;
mod framing;
mod input;
mod sending;

pub(crate) use fields::{Limits, Lines, Names, Said, collect, head_end, parsed};
pub(crate) use framing::{Framing, Step};
pub(crate) use input::Input;
pub(crate) use sending::{COPIED_MAX, Length, Sending, Stuck, write_field};

/// A message that is none, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}
