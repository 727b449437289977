//! The documentation is held to the command: its examples are parsed, and what can be generated is generated.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod complete;
mod examples;
mod reference;
mod shell;

#[path = "../tests/support/pages.rs"]
mod pages;
