//! Bytes from an upstream are one response or an error, however the network splits them.
//!
//! If two programs end a response at different places, one client can get another's response. Bytes left on a
//! connection have the same effect.

mod answers;
mod requests;
