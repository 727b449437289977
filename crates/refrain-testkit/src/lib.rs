//! Conformance suites, crash harnesses and fault-injection tools for testing stores, brokers and services.
//!
//! Shipped to users: authors of a store, a broker or a service test their code with the same tools as Refrain itself.
//! For tests only; do not use it in production code.
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

/// Compiles and runs the examples in `docs/testing.md` as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct TestingPage;

#[doc(inline)]
pub use refrain_servers as servers;
