//! HTTP/1 message framing, for programs with their own HTTP/1 code: where a head and a body end, and what a head says about that.
//!
//! Input that another program may read differently is never accepted: it is [`Broken`], and its connection must not be used again.
//! Writing messages is left to the caller.
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

mod framing;
mod head;
mod input;

pub use framing::{Chunks, Framing, Step};
pub use head::{HeadInfo, Limits, Names, check_start, head_end, parsed};
pub use input::Input;

/// Malformed message, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}
