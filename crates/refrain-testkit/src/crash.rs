//! Crashes on purpose, at every place where one can come, and what a guarantee promises about them.
//!
//! The harness runs an operation, lets it crash, retries as a client or a broker would, and counts effects by the [`Ledger`]:
//!
//! | guarantee | after a crash and a retry |
//! |---|---|
//! | at-most-once | 0 or 1 effects; where it is not known, that is said |
//! | at-least-once | 1 effect or more |
//! | exactly-once | 1 effect |
//!
//! A crash comes at every await of the operation, and at every [`Ledger::point`]; [`Ledger::take_effect`] is one before and one
//! behind the effect. The caller's future is dropped, the whole runtime dies with all that it runs, the code panics,
//! or the answer is lost.
//!
//! A function makes the service, or runs the consumer, once for each life of the process. What survives a crash, such as the store,
//! belongs outside of it. Leases have to be short, for the harness waits for them.
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, body::Body, http::{HeaderMap, Request}, routing::post};
//! use refrain::{Engine, Guarantee, Operation, Policy, Terms, http::RefrainLayer, store::Memory};
//! use refrain_testkit::{Ledger, assert_crash_safe};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let store = Memory::new();
//! let app = move |ledger: Ledger| {
//!     let pay = async move |headers: HeaderMap| {
//!         let key = headers["idempotency-key"].to_str().unwrap_or_default().to_owned();
//!         ledger.take_effect(&key, "charged").await.unwrap();
//!         "charged"
//!     };
//!     let terms = Terms { lease: Duration::from_secs(1), ..Terms::default() };
//!     let operation = Operation::new("POST /v1/payments").unwrap().with_terms(terms);
//!     let policy = Policy::new(vec![operation]).unwrap();
//!     let layer = RefrainLayer::new(Engine::new(store.clone()), policy);
//!     Router::new().route("/v1/payments", post(pay)).layer(layer)
//! };
//! assert_crash_safe(Guarantee::AtMostOnce, app, |key| {
//!     Request::post("/v1/payments").header("idempotency-key", key).body(Body::empty()).unwrap()
//! }).await;
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What it cannot see: destructors run when the runtime dies, other than with `kill -9`.
//! `refrain verify --restart-command` kills a real process.

use http::Request;
use refrain::Guarantee;

use crate::{
    Ledger,
    door::{Answered, Makers, Sent, Tried},
    holes::{Case, Report, Seen},
    ledger::Fall,
};

mod consumer;
mod life;
mod service;

pub use consumer::{DEAD_LETTERS, Stand, assert_consumer, check_consumer};

/// The most awaits, and the most points, at which one operation is made to crash.
const CRASHES_MAX: usize = 128;

/// Panics unless the service keeps its guarantee whatever crashes. See [the module](self).
///
/// `service` is called once for each life of the process, with the ledger that its handler writes to; `request` with the key to send.
/// It has to be called within a tokio runtime.
///
/// # Panics
/// When a case does not hold, naming each hole with what was seen and the fix.
pub async fn assert_crash_safe<S, B, R>(
    guarantee: Guarantee,
    service: impl Fn(Ledger) -> S + Send + Sync + 'static,
    request: impl Fn(&str) -> Request<B> + Send + Sync + 'static,
) where
    S: Tried<B, R>,
    B: Sent,
    R: Answered,
{
    check_service(guarantee, service, request).await.must_hold();
}

/// As [`assert_crash_safe`], and reports instead of panicking.
pub async fn check_service<S, B, R>(
    guarantee: Guarantee,
    service: impl Fn(Ledger) -> S + Send + Sync + 'static,
    request: impl Fn(&str) -> Request<B> + Send + Sync + 'static,
) -> Report
where
    S: Tried<B, R>,
    B: Sent,
    R: Answered,
{
    service::check(guarantee, Makers::new(service, request)).await
}

/// Adds what crashes at awaits and at points came to; both kinds of death are one case.
fn add(report: &mut Report, [dies, panics]: [&Case; 2], died: Seen, at_points: Option<[Seen; 2]>) {
    let Some([stopped, panicked]) = at_points else {
        report.add(dies, died);
        return report.left_out.push(format!(
            "{}: no point was reached; call Ledger::take_effect where the effect happens",
            panics.id
        ));
    };
    report.add(dies, died.and(stopped));
    report.add(panics, panicked);
}

/// Dies, then panics, at one point after the other, for as long as there is one; nothing where there is none.
async fn at_points(strike: impl AsyncFn(usize, Fall) -> Option<Seen>) -> Option<[Seen; 2]> {
    let (mut stopped, mut panicked) = (Ok(()), Ok(()));
    for at in 1..=CRASHES_MAX {
        match (strike(at, Fall::Stop).await, strike(at, Fall::Panic).await) {
            (None, None) if at == 1 => return None,
            (None, None) => break,
            (stop, panic) => {
                stopped = stopped.and(stop.unwrap_or(Ok(())));
                panicked = panicked.and(panic.unwrap_or(Ok(())));
            }
        }
    }
    Some([stopped, panicked])
}

/// What happened at a point, in words.
fn struck(fall: Fall, at: usize, place: &str) -> String {
    match fall {
        Fall::Stop => format!("the process died at point {at}, {place}"),
        Fall::Panic => format!("the handler panicked at point {at}, {place}"),
    }
}
