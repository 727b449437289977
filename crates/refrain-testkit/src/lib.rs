//! What the tests of every store and service share.
//!
//! Shipped to users: whoever writes a store, or a service behind one, checks it with the same means as Refrain itself.
//! Nothing here belongs into a running service.
//!
//! The modules, in reading order:

#![warn(rustdoc::broken_intra_doc_links)]

pub mod clock;
pub use clock::ManualClock;

pub mod wait;

pub mod model;
pub use model::{Flaw, Model};

pub mod store_suite;

pub mod broker_suite;

pub mod ledger;
pub use ledger::{Audit, Ledger, Seen};

pub mod idempotent;
pub use idempotent::assert_idempotent;

pub mod crash;
pub use crash::{assert_consumer, assert_crash_safe};

#[cfg(feature = "proptest")]
pub mod strategies;

pub mod disk;

pub mod webhook;

mod door;

mod holes;
pub use holes::{Hole, Report};

/// The examples of the page about testing, run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct TestingPage;

#[doc(inline)]
pub use refrain_servers as servers;
