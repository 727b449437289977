//! Bytes from an upstream are one response or an error, however the network splits them.
//!
//! If two programs end a response at different places, one client can get another's response; the same goes for bytes left on a connection.

mod answers;
mod requests;
