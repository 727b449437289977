//! Black-box tests of a service: duplicates, lost responses and broken connections.
//!
//! [`chaos`] is a proxy that injects network faults between a client and a service.
//! [`verify`] sends a service every kind of duplicate, counts effects, and reports each bug it finds.

#![warn(rustdoc::broken_intra_doc_links)]

pub mod chaos;
mod mix;
mod place;
pub mod verify;
