//! Bytes from a client are one request after the other, or refused, however the network splits them.
//!
//! If two programs end a request at different places, one client can send a request in the name of another.

mod heads;
mod streams;
