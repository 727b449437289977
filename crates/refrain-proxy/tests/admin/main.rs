//! An operator at work: is it alive, is it ready, what became of that payment; and those who should not be let in.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

mod access;
mod records;
mod stage;
mod status;
