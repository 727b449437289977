//! Proof from outside: what a service does with duplicates, lost answers and broken connections.
//!
//! [`chaos`] stands between a client and a service and does on purpose what networks do by themselves.
//! [`verify`] sends a service every kind of duplicate there is, counts effects, and names the holes.

#![warn(rustdoc::broken_intra_doc_links)]

pub mod chaos;
mod mix;
mod place;
pub mod verify;
