//! A shop whose payments write receipts, behind the layer.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use refrain::{
    Engine, Error, ErrorKind, Guarantee, Operation, Policy, RecordId, Result,
    http::{Failure, RefrainLayer},
    policy::Address,
    receipts::{Receipt, Receipts, Standing},
    record::Reason,
};
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::scripted::{Scripted, until};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const ADDRESS: &str = "postgres://shop";

/// The operation's own database: effects and receipts, committed together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Database {
    pub(crate) rows: Arc<Mutex<HashMap<String, Receipt>>>,
    pub(crate) effects: Arc<Mutex<Vec<String>>>,
    pub(crate) is_down: Arc<AtomicBool>,
}

impl Database {
    /// One transaction: the effect, and its receipt with a unique record id.
    pub(crate) fn commit(&self, key: &str, headers: &HeaderMap) -> Option<Receipt> {
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        let mut rows = self.rows.lock().unwrap();
        let (record, fence) = (text("refrain-record"), text("refrain-fence"));
        if rows.contains_key(&record) {
            return None;
        }
        let receipt = receipt(&fence, &format!("paid {key} under {fence}"));
        rows.insert(record, receipt.clone());
        self.effects.lock().unwrap().push(key.into());
        Some(receipt)
    }

    pub(crate) fn effects_of(&self, key: &str) -> usize {
        let effects = self.effects.lock().unwrap();
        effects.iter().filter(|effect| *effect == key).count()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the database is down")),
            false => Ok(()),
        }
    }
}

impl Receipts for Database {
    async fn find(&self, record: RecordId) -> Result<Option<Receipt>> {
        self.check()?;
        Ok(self.rows.lock().unwrap().get(&record.to_string()).cloned())
    }

    async fn seen(&self, records: &[RecordId]) -> Result<Vec<bool>> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let seen = records.iter().map(|it| rows.contains_key(&it.to_string()));
        Ok(seen.collect())
    }
}

pub(crate) fn receipt(fence: &str, body: &str) -> Receipt {
    Receipt {
        fence: fence.into(),
        status: 201,
        content_type: Some("text/plain".into()),
        location: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
        age: Duration::ZERO,
    }
}

/// The service; the header `do` selects what the operation does.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) store: Scripted,
    pub(crate) engine: Engine,
    pub(crate) database: Database,
    pub(crate) layer: RefrainLayer,
    pub(crate) app: Router,
    pub(crate) gate: Arc<Semaphore>,
    /// The request heads that arrived.
    pub(crate) heads: Arc<Mutex<Vec<HeaderMap>>>,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self::open(Scripted::on_runtime_clock(), Database::default())
    }

    /// The same store and database, and nothing else, as after a restart.
    pub(crate) fn restarted(&self) -> Self {
        Self::open(self.store.clone(), self.database.clone())
    }

    pub(crate) fn open(store: Scripted, database: Database) -> Self {
        let mut operation = Operation::new("POST /pay").unwrap();
        operation.terms.guarantee = Guarantee::ExactlyOnce;
        operation.receipts = Some(Address::new(ADDRESS));
        operation.lookup = true;
        operation.terms.lease = SECOND * 3;
        operation.terms.timeout = SECOND * 5;
        operation.terms.settle_after = SECOND * 8;
        let policy = Policy::new(vec![operation]).unwrap();
        let engine = Engine::new(store.clone());
        let layer = RefrainLayer::new(engine.clone(), policy);
        let layer = layer.with_receipts(ADDRESS, database.clone());
        let (gate, heads) = (
            Arc::new(Semaphore::new(0)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let pay = {
            let (database, gate, heads) = (database.clone(), gate.clone(), heads.clone());
            async move |request: Request| {
                heads.lock().unwrap().push(request.headers().clone());
                pay(&database, &gate, request.headers()).await
            }
        };
        let app = Router::new()
            .route("/pay", post(pay.clone()))
            .route("/other", post(pay))
            .layer(layer.clone());
        Self {
            store,
            engine,
            database,
            layer,
            app,
            gate,
            heads,
        }
    }

    pub(crate) async fn proven() -> Self {
        let shop = Self::new();
        assert_eq!(shop.pay("first", "commit").await.status, 201);
        shop.until_standing(Standing::Proven).await;
        shop
    }

    pub(crate) async fn until_standing(&self, standing: Standing) {
        until(|| self.standing() == standing).await;
    }

    pub(crate) fn standing(&self) -> Standing {
        self.layer.witnesses().next().unwrap().standing()
    }

    pub(crate) async fn pay(&self, key: &str, what: &str) -> Seen {
        self.send("/pay", key, what, &[]).await
    }

    pub(crate) async fn send(
        &self,
        path: &str,
        key: &str,
        what: &str,
        more: &[(&str, &str)],
    ) -> Seen {
        let mut request = Request::post(path)
            .header("idempotency-key", key)
            .header("do", what);
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.app.clone().call(request).await.unwrap();
        let is_replay = response.headers().contains_key("idempotent-replayed");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Seen {
            status,
            body,
            is_replay,
        }
    }

    /// The state and the advice of a look-up of this key.
    pub(crate) async fn look_up(&self, key: &str) -> (String, String) {
        let request = Request::get(format!("/.well-known/idempotency/{key}"));
        let request = request.body(Body::empty()).unwrap();
        let response = self.app.clone().call(request).await.unwrap();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        (text("state"), text("advice"))
    }

    pub(crate) fn calls(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    pub(crate) fn attempt(&self) -> String {
        let heads = self.heads.lock().unwrap();
        let attempt = &heads.last().unwrap()["refrain-attempt"];
        attempt.to_str().unwrap().into()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    pub(crate) is_replay: bool,
}

impl Seen {
    pub(crate) fn problem(&self) -> (u16, String, String) {
        let json: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        (self.status, text("code"), text("advice"))
    }

    #[track_caller]
    pub(crate) fn check_problem(&self, status: u16, code: &str, advice: &str) {
        assert_eq!(self.problem(), (status, code.into(), advice.into()));
    }
}

pub(crate) async fn pay(database: &Database, gate: &Semaphore, headers: &HeaderMap) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let what = headers["do"].to_str().unwrap();
    let lost = |failure| {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(failure);
        response
    };
    let (first, then) = what.split_once('-').unwrap_or((what, ""));
    if first == "wait" {
        gate.acquire().await.unwrap().forget();
    }
    let committed = match first {
        "commit" | "wait" => database.commit(&key, headers),
        // Takes effect, and does not write the receipt.
        "forget" => {
            database.effects.lock().unwrap().push(key.clone());
            Some(receipt("", "paid"))
        }
        _ => None,
    };
    let word = if committed.is_some() { then } else { what };
    match word {
        "" => {
            let committed = committed.unwrap();
            (StatusCode::CREATED, committed.body).into_response()
        }
        "lost" => lost(Failure::Lost(Reason::Reset)),
        "unsent" => lost(Failure::NotSent),
        "hang" => std::future::pending().await,
        // The receipt collides: rolled back.
        "commit" | "wait" => (StatusCode::INTERNAL_SERVER_ERROR, "collision").into_response(),
        status => {
            let status = status.parse().unwrap_or_else(|_| panic!("do {status}"));
            let status = StatusCode::from_u16(status).unwrap();
            (status, "refused").into_response()
        }
    }
}
