//! HTTP/1.1 on the wire, for clients and upstream: [`refrain_http1`] reads messages, this module sends them.

mod sending;

pub(crate) use refrain_http1::{
    Broken, Framing, Input, Limits, Lines, Names, Said, Step, check_start, collect, head_end,
    parsed,
};
pub(crate) use sending::{COPIED_MAX, Length, SendError, Sending, write_field};
