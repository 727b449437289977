//! A ride was booked and paid for, the process died before the receipt was sent, and the retry booked and paid again.
//! Or the payment was declined, the process died while the ride was being cancelled, and the retry booked another
//! one. An operation in steps resumes where it stopped, forward or back, and never changes direction.

#[path = "../support/scripted.rs"]
mod scripted;

mod changed;
mod crash;
mod doubt;
mod failing;
mod kill;
mod races;
mod rules;
mod undo;
mod within;
mod world;
