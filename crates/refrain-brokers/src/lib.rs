//! The room for message brokers: one file per broker, so that the library itself names none.
//!
//! Empty so far: there is nothing to use here, and nothing is promised.
//! Consumers in Rust can claim a message's key with `refrain::Engine` before they handle it.
