//! A client that makes a new key for each attempt charges twice; so does one that loses its key with its process.
//! Libraries of payment providers have done both, and HTTP libraries send again by themselves what they were given once.
//!
//! Here the journalled client meets servers that close, reset, refuse, stall and lie, over real connections;
//! and its file is cut, flipped, filled up and taken away from it.

mod answers;
mod calls;
mod disk;
mod journal;
mod resume;
mod server;
mod service;
mod stage;
mod time;
mod tls;
