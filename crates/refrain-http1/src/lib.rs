//! HTTP/1 as bytes, for who speaks it on its own: where a head and a body end, and what a head says about that.
//!
//! Nothing here reads leniently what another program may read differently: it is [`Broken`], and its connection is not used again.
//! How a message is written is up to who writes it.
//!
//! ```
//! use bytes::BytesMut;
//! use refrain_http1::{Framing, Step};
//! let mut input = BytesMut::from("3\r\nabc\r\n0\r\n\r\nGET");
//! let mut body = Framing::chunked();
//! assert_eq!(body.next(&mut input)?, Step::Data("abc".into()));
//! assert_eq!(body.next(&mut input)?, Step::End);
//! assert_eq!(input, "GET");
//! # Ok::<(), refrain_http1::Broken>(())
//! ```

mod fields;
mod framing;
mod input;

pub use fields::{Limits, Lines, Names, Said, check_start, collect, head_end, parsed};
pub use framing::{Chunks, Framing, Step};
pub use input::Input;

/// A message that is none, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}
