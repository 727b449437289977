//! Messages arrive twice, out of order or malformed, while the store is unavailable and while the consumer stops.
//! Each is handled according to its guarantee, none is lost, and none is acknowledged before its outcome is known.

mod attempts;
mod audited;
mod dead;
mod drain;
mod flow;
mod keys;
mod learnt;
mod order;
mod redrive;
mod sequence;
mod stage;
mod trouble;

#[path = "../support/scripted.rs"]
mod scripted;
