//! Messages arrive twice, out of order, poisoned, while the store is away and while the consumer stops.
//! Each is handled as its guarantee says, none is lost, and none is acknowledged before its end is known.

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
