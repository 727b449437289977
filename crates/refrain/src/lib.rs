//! Idempotency for HTTP services and message consumers.
//!
//! A retry with the same idempotency key and the same request gets the stored outcome of the first attempt.
//! Concurrent duplicates wait for the first request. If an attempt ends without a known result, its outcome is unknown,
//! and it is not executed again unless the guarantee says so.
//!
//! ```
//! use refrain::{Engine, Intent, Key, Outcome, Scope, Verdict, store::AnyStore};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! // `file:DIR` keeps the records on disk.
//! let engine = Engine::new(AnyStore::open("memory:").await?);
//! let intent = Intent::new(Scope::none(), Key::new("order-7")?);
//!
//! let first = engine.run(&intent, async |_grant| Outcome::new(201, "charged")).await?;
//! assert!(matches!(first, Verdict::Granted(_)), "executed");
//!
//! let retry = engine.run(&intent, async |_grant| -> Outcome { unreachable!() }).await?;
//! let Verdict::Replay(outcome) = retry else { panic!("{retry:?}") };
//! assert_eq!(outcome.body(), "charged");
//! # Ok::<(), refrain::Error>(())
//! # }).unwrap();
//! ```
//!
//! For an HTTP service use the tower layer [`http`], for messages a [`Consumer`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`key`] | idempotency keys, scopes and record identities |
//! | [`fingerprint`] | digest that tells a retry from a different request under the same key |
//! | [`outcome`] | the stored result of an operation |
//! | [`record`] | records and `step`, the state machine that decides every transition |
//! | [`policy`] | which operations are guarded, and how; the file `refrain.toml` (feature `policy-file`) |
//! | [`receipts`] | proof that an effect was committed, for exactly-once |
//! | [`store`] | the `Store` trait, and the stores `memory:` and `file:DIR` |
//! | [`audit`] | tamper-evident log of attempts and operator decisions |
//! | [`engine`] | claims, leases, waiting duplicates, settlement |
//! | [`http`] | tower layer (feature `http`) |
//! | `client` | HTTP client whose calls survive a crash (feature `client`) |
//! | [`consume`] | message consumers, dead letters, outbox relay (feature `consumers`) |
//! | [`steps`] | operations with several effects, recovery and undo (feature `steps`) |
//! | [`clock`] | time sources |
//!
//! PostgreSQL and Redis are in the crate `refrain-stores`, brokers in `refrain-brokers`.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `http` (default) | the tower layer |
//! | `consumers` (default) | message consumers |
//! | `steps` (default) | operations in several steps |
//! | `policy-file` (default) | the parser of `refrain.toml`, and its JSON schema |
//! | `axum` | the original path below `Router::nest` |
//! | `client` | the journalled client, with your own transport |
//! | `client-hyper`, `client-tls` | a transport for `http`, and for `https` |

#![warn(rustdoc::broken_intra_doc_links)]
#![cfg_attr(
    not(all(feature = "http", feature = "policy-file", feature = "steps")),
    allow(dead_code, reason = "parts of the core serve one optional module only")
)]

mod error;
pub use error::{Error, ErrorKind, Result};

pub mod clock;

mod log_rate;
pub use log_rate::LogRate;

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

#[cfg(any(feature = "http", feature = "policy-file"))]
pub mod jwt;

pub mod encryption;
pub use encryption::Encryption;

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

#[cfg(any(feature = "consumers", feature = "steps"))]
mod failure;

#[cfg(feature = "consumers")]
pub mod consume;
#[cfg(feature = "consumers")]
pub use consume::Consumer;

#[cfg(feature = "steps")]
pub mod steps;
#[cfg(feature = "steps")]
pub use steps::Steps;

mod log;

mod varint;

#[doc(hidden)]
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
