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
    hole: "A plain request with a fresh key does not do what it is for, so nothing can be told about duplicates.",
    fix: "Make a request that the service accepts, and have its handler call Ledger::take_effect once where its effect happens.",
};
const SEQUENTIAL: Case = Case {
    id: "sequential-duplicate",
    hole: "The key is ignored or not remembered: every retry runs again, or is answered differently.",
    fix: "Keep the answer under the key before it is sent, and answer duplicates with it.",
};
const CONCURRENT: Case = Case {
    id: "concurrent-duplicates",
    hole: "No claim, or check-then-act: duplicates that come at once all run.",
    fix: "Claim the key in one atomic step (INSERT … ON CONFLICT, SET NX, compare-and-set) before running.",
};
const IN_FLIGHT: Case = Case {
    id: "duplicate-in-flight",
    hole: "Between reading and claiming the key there is a gap in which a duplicate runs too, or the key stays taken for ever.",
    fix: "Claim first, or read once more under the claim; answer 409 with Retry-After, or wait for the first one's answer.",
};
const LOST: Case = Case {
    id: "lost-answer",
    hole: "The retry after a lost answer runs again, which is what keys are there to prevent.",
    fix: "Keep the answer durably before it leaves, not when it has been delivered, and replay it.",
};
const OTHER_BODY: Case = Case {
    id: "other-body",
    hole: "The request is not compared: another order is answered with the first one's answer, or runs under a key that stands for something else.",
    fix: "Keep a fingerprint of method, path, query and body with the key, and answer 422 where it differs.",
};
const OTHER_KEY: Case = Case {
    id: "same-body-other-key",
    hole: "Requests are compared across keys: one customer's order is swallowed because it equals another one.",
    fix: "Compare the request only with the one that was sent under the same key.",
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
            "{}: the request has no body that could differ",
            OTHER_BODY.id
        )),
    }
    report.add(&OTHER_KEY, cases::other_key(&makers).await);
    report
}
