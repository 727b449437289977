//! A client that makes a new key for each attempt charges twice; so does one that loses its key with its process.
//! Libraries of payment providers have done both, and HTTP libraries retry requests without being asked to.
//!
//! These tests run the journalled client against servers that close, reset, refuse, stall and lie, over real
//! connections, and truncate, corrupt, fill and remove its journal file.

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
