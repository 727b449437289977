//! Tests that the documentation matches the command: examples must parse, and generated pages must be current.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod complete;
mod examples;
mod reference;
mod shell;

#[path = "../tests/support/pages.rs"]
mod pages;
