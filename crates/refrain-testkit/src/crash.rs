//! Crash harness: injects a crash at every await and crash point, and checks the guarantee afterwards.
//!
//! It runs an operation, crashes it, retries as a client or a broker does, and counts effects in the [`Ledger`]:
//!
//! | guarantee | after a crash and a retry |
//! |---|---|
//! | at-most-once | 0 or 1 effects; an unknown outcome is reported as such |
//! | at-least-once | 1 effect or more |
//! | exactly-once | 1 effect |
//!
//! A crash comes at every await of the operation, and at every [`Ledger::point`]; [`Ledger::take_effect`] has one
//! before and one after the effect. The kinds of crash: the caller's future is dropped, the whole runtime is dropped
//! with all its tasks, the code panics, or the response is lost.
//!
//! Your function makes the service, or runs the consumer, once for each life of the process. Create things that
//! survive a crash, such as the store, outside that function. Use short leases: the harness waits for them to lapse.
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
//! Limitation: destructors run when the runtime is dropped, unlike with `kill -9`.
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

/// Maximum number of awaits, and of crash points, at which one operation is crashed.
const CRASHES_MAX: usize = 128;

/// Asserts that the service keeps its guarantee after every injected crash. See [the module](self).
///
/// `service` is called once for each life of the process, with the ledger that its handler writes to.
/// `request` is called with the key to send.
/// Call it within a tokio runtime.
///
/// # Panics
/// When a case fails; the message names each bug, what was observed, and the fix.
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

/// Like [`assert_crash_safe`], but returns a report instead of panicking.
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

/// Adds the results of crashes at awaits and at points. Process deaths at awaits and at points are one case.
fn add(report: &mut Report, [dies, panics]: [&Case; 2], died: Seen, at_points: Option<[Seen; 2]>) {
    let Some([stopped, panicked]) = at_points else {
        report.add(dies, died);
        return report.left_out.push(format!(
            "{}: the handler reached no crash point; call Ledger::take_effect where the effect happens",
            panics.id
        ));
    };
    report.add(dies, died.and(stopped));
    report.add(panics, panicked);
}

/// Injects a process death and a panic at each point in turn; returns `None` if the operation reaches no point.
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

/// Describes an injected crash.
fn describe_crash(fall: Fall, at: usize, place: &str) -> String {
    match fall {
        Fall::Stop => format!("the process died at point {at}, {place}"),
        Fall::Panic => format!("the handler panicked at point {at}, {place}"),
    }
}
