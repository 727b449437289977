//! HTTP/1.1 as bytes, for both sides: how it is read is [`refrain_http1`]'s, how a message is sent is said here.

mod sending;

pub(crate) use refrain_http1::{
    Broken, Framing, Input, Limits, Lines, Names, Said, Step, check_start, collect, head_end,
    parsed,
};
pub(crate) use sending::{COPIED_MAX, Length, Sending, Stuck, write_field};
