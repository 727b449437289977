//! The flaky payments API of the demo. It does not know Refrain, and charges on every request.
//!
//! `POST /v1/payments` charges, `GET /v1/payments?key=…` reads one payment back, `GET /v1/payments` shows the ledger.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use refrain::key::{KEY_HEADER, Syntax};
use serde::Deserialize;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

use super::{
    ledger::{Charge, Ledger},
    trouble::{Trouble, Troubles},
};

mod connection;

/// How long the bank takes before it charges, so that the kill hits payments before and after their charge.
const BANK: Duration = Duration::from_millis(60);
/// The delay of a slow answer: longer than a buyer waits, and longer than the proxy's `timeout`.
const SLOW: Duration = Duration::from_millis(2_500);
/// The most keys whose fault is remembered; after that the set is cleared, and keys may fail again.
const TROUBLED_MAX: usize = 100_000;

/// The running API. Dropping it closes all its connections.
#[derive(Debug)]
pub(super) struct Api {
    address: SocketAddr,
    ledger: Ledger,
    troubles: Troubles,
    _listening: JoinSet<()>,
}

impl Api {
    pub(super) async fn start(troubles: Troubles) -> std::io::Result<Self> {
        let shop = Arc::new(Shop {
            ledger: Ledger::default(),
            troubles,
            troubled: Mutex::default(),
        });
        let ledger = shop.ledger.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut listening = JoinSet::new();
        listening.spawn(connection::accept(listener, router(shop)));
        Ok(Self {
            address,
            ledger,
            troubles,
            _listening: listening,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn troubles(&self) -> Troubles {
        self.troubles
    }
}

#[derive(Debug)]
struct Shop {
    ledger: Ledger,
    troubles: Troubles,
    /// Keys that had their fault already: each fails once, so that a retry succeeds.
    troubled: Mutex<HashSet<String>>,
}

impl Shop {
    fn trouble(&self, key: &str) -> Option<Trouble> {
        let trouble = self.troubles.of(key)?;
        let mut troubled = self.troubled.lock().unwrap_or_else(PoisonError::into_inner);
        if troubled.len() >= TROUBLED_MAX {
            troubled.clear();
        }
        troubled.insert(key.into()).then_some(trouble)
    }
}

fn router(shop: Arc<Shop>) -> Router {
    Router::new()
        .route("/v1/payments", get(look_up).post(pay))
        .with_state(shop)
}

async fn pay(State(shop): State<Arc<Shop>>, headers: HeaderMap, body: String) -> Response {
    let Some(charge) = read(&headers, &body) else {
        let usage = "send an Idempotency-Key, and a body like amount=20\n";
        return (StatusCode::BAD_REQUEST, usage).into_response();
    };
    let trouble = shop.trouble(&charge.key);
    if trouble == Some(Trouble::Reset) {
        return broken_off(Trouble::Reset);
    }
    // In its own task: the charge goes through even if the client disconnects.
    let ledger = shop.ledger.clone();
    let (told, answer) = (charge.clone(), paid(StatusCode::CREATED, &charge));
    let bank = tokio::spawn(async move {
        sleep(BANK).await;
        ledger.charge(told);
    });
    match (bank.await, trouble) {
        (Err(_), _) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        (Ok(()), Some(Trouble::Lost)) => broken_off(Trouble::Lost),
        (Ok(()), Some(Trouble::Slow)) => {
            super::nap(SLOW).await;
            answer
        }
        (Ok(()), _) => answer,
    }
}

fn read(headers: &HeaderMap, body: &str) -> Option<Charge> {
    let key = Syntax::default().read(headers.get(KEY_HEADER)?.as_bytes());
    Some(Charge {
        key: key.ok()?.as_str().into(),
        amount: body.trim().strip_prefix("amount=")?.parse().ok()?,
    })
}

#[derive(Debug, Deserialize)]
struct Wanted {
    key: Option<String>,
}

async fn look_up(State(shop): State<Arc<Shop>>, Query(wanted): Query<Wanted>) -> Response {
    let Some(key) = wanted.key else {
        return Json(shop.ledger.charges()).into_response();
    };
    // A payment that arrived before this request is charged by then, even if the process was stalled in between.
    sleep(BANK * 2).await;
    match shop.ledger.find(&key) {
        Some(charge) => paid(StatusCode::OK, &charge),
        None => (StatusCode::NOT_FOUND, "never charged\n").into_response(),
    }
}

fn paid(status: StatusCode, charge: &Charge) -> Response {
    let paid = json!({ "paid": charge.amount, "key": charge.key });
    (status, Json(paid)).into_response()
}

/// A response that makes the connection close without an answer.
fn broken_off(trouble: Trouble) -> Response {
    let mut response = Response::default();
    response.extensions_mut().insert(trouble);
    response
}
