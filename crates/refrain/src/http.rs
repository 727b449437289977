//! Guarding HTTP operations.

pub mod extract;
