//! Idempotency for HTTP services and message consumers.
//!
//! A retry with the same key and the same request gets the stored outcome of the first attempt.
//!
//! The modules, in reading order:

#![warn(rustdoc::broken_intra_doc_links)]

mod error;
pub use error::{Error, ErrorKind, Result};

pub mod clock;

mod backoff;
pub use backoff::{Backoff, Delays};

pub mod key;
pub use key::{Credential, Key, RecordId, Scope, Secret};

pub mod fingerprint;
pub use fingerprint::Fingerprint;

pub mod outcome;
pub use outcome::Outcome;

pub mod record;
pub use record::{Claim, Fence, Guarantee, Settled, Settlement, Verdict, step};

pub mod policy;
pub use policy::{Operation, Policy, Terms};

pub mod receipts;
pub use receipts::Receipts;

pub mod store;
pub use store::Store;

pub mod audit;
pub use audit::AuditLog;

pub mod engine;
pub use engine::{Engine, Intent};

#[cfg(feature = "http")]
pub mod http;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
pub use client::Client;

pub mod consume;
pub use consume::Consumer;

pub mod steps;
pub use steps::Steps;

mod lock;

mod varint;

pub mod wakes;

/// Doc tests of README.md.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Doc tests of the page about the tower layer.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/coding/layer.md")]
struct Layer;

/// Doc tests of the page about the client.
#[cfg(all(doctest, feature = "client-hyper"))]
#[doc = include_str!("../../../docs/coding/client.md")]
struct ClientPage;

/// Doc tests of the page about steps.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/coding/steps.md")]
struct StepsPage;

/// Doc tests of the page about webhooks.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/webhooks.md")]
struct Webhooks;

/// Doc tests of the page about consumers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/consumers.md")]
struct Consumers;
