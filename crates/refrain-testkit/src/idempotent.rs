//! Checks that a tower service is idempotent: sends every kind of duplicate and counts effects in a [`Ledger`].
//!
//! You pass two functions. One makes the service and gets the ledger to which its handler records each effect.
//! The other makes a request for a given key. Each case uses a new ledger and new keys.
//!
//! ```
//! use axum::{Router, body::Body, http::{HeaderMap, Request}, routing::post};
//! use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
//! use refrain_testkit::{Ledger, assert_idempotent};
//!
//! fn app(ledger: Ledger) -> Router {
//!     let pay = async move |headers: HeaderMap, body: String| {
//!         let key = headers["idempotency-key"].to_str().unwrap_or_default().to_owned();
//!         ledger.take_effect(&key, "charged").await.unwrap();
//!         format!("charged {body}")
//!     };
//!     Router::new()
//!         .route("/v1/payments", post(pay))
//!         .layer(RefrainLayer::new(Engine::new(Memory::new()), Policy::default()))
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! assert_idempotent(app, |key| {
//!     Request::post("/v1/payments")
//!         .header("idempotency-key", key)
//!         .header("content-type", "application/json")
//!         .body(Body::from(r#"{"amount":20}"#))
//!         .unwrap()
//! }).await;
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Limitation: duplicates interleave only where the handler awaits, so a race in a handler without an await is not
//! detected. [`Ledger::take_effect`] yields before and after the effect, as a call to another system does.

use http::Request;

use crate::{
    Ledger,
    door::{Answered, Makers, Sent, Tried},
    holes::{Case, Report},
};

mod cases;
mod other;

/// Number of duplicates sent concurrently.
const AT_ONCE: usize = 8;
/// Number of awaits of the first request at which a duplicate is sent.
const AWAITS_MAX: usize = 64;

const FIRST: Case = Case {
    id: "first-request",
    hole: "A plain request with a new key does not take effect once, so duplicates cannot be tested.",
    fix: "Pass a request that the service accepts, and call Ledger::take_effect once in its handler, where the effect happens.",
};
const SEQUENTIAL: Case = Case {
    id: "sequential-duplicate",
    hole: "The service ignores or forgets the key: every retry executes again, or gets another response.",
    fix: "Store the response under the key before sending it, and replay it to duplicates.",
};
const CONCURRENT: Case = Case {
    id: "concurrent-duplicates",
    hole: "No claim, or check-then-act: concurrent duplicates all execute.",
    fix: "Claim the key in one atomic step (INSERT … ON CONFLICT, SET NX, compare-and-set) before execution.",
};
const IN_FLIGHT: Case = Case {
    id: "duplicate-in-flight",
    hole: "A duplicate executes in the gap between reading and claiming the key, or the key stays claimed for ever.",
    fix: "Claim first, or read again under the claim; return 409 with Retry-After, or wait for the first response.",
};
const LOST: Case = Case {
    id: "lost-answer",
    hole: "A retry after a lost response executes again: the failure that keys exist to prevent.",
    fix: "Store the response durably before sending it, not after its delivery, and replay it.",
};
const OTHER_BODY: Case = Case {
    id: "other-body",
    hole: "The service does not compare requests: it replays the first response to another order, or executes the order under a used key.",
    fix: "Store a fingerprint of method, path, query and body with the key, and return 422 if it differs.",
};
const OTHER_KEY: Case = Case {
    id: "same-body-other-key",
    hole: "The service compares requests across keys: it drops one customer's order because it equals another order.",
    fix: "Compare a request only with the request stored under the same key.",
};

/// Asserts that the service is idempotent for the requests that `request` makes.
///
/// `service` gets the ledger that its handler writes to, `request` the key to send. See [the module](self).
/// Call it within a tokio runtime.
///
/// # Panics
/// When a case fails; the message names each bug, what was observed, and the fix.
pub async fn assert_idempotent<S, B, R>(
    service: impl Fn(Ledger) -> S + Send + Sync + 'static,
    request: impl Fn(&str) -> Request<B> + Send + Sync + 'static,
) where
    S: Tried<B, R>,
    B: Sent,
    R: Answered,
{
    check(service, request).await.must_hold();
}

/// Like [`assert_idempotent`], but returns a report instead of panicking.
pub async fn check<S, B, R>(
    service: impl Fn(Ledger) -> S + Send + Sync + 'static,
    request: impl Fn(&str) -> Request<B> + Send + Sync + 'static,
) -> Report
where
    S: Tried<B, R>,
    B: Sent,
    R: Answered,
{
    let makers = Makers::new(service, request);
    let mut report = Report::default();
    report.add(&FIRST, cases::first(&makers).await);
    if !report.holes.is_empty() {
        return report;
    }
    report.add(&SEQUENTIAL, cases::sequential(&makers).await);
    report.add(&CONCURRENT, cases::concurrent(&makers).await);
    let (is_open, seen) = cases::in_flight(&makers).await;
    match is_open {
        true => report.add(&IN_FLIGHT, seen),
        false => report.left_out.push(format!(
            "{}: the handler never suspends; call Ledger::take_effect where its effect happens",
            IN_FLIGHT.id
        )),
    }
    report.add(&LOST, cases::lost(&makers).await);
    match cases::other_body(&makers).await {
        Some(seen) => report.add(&OTHER_BODY, seen),
        None => report.left_out.push(format!(
            "{}: the request has no body to vary",
            OTHER_BODY.id
        )),
    }
    report.add(&OTHER_KEY, cases::other_key(&makers).await);
    report
}
