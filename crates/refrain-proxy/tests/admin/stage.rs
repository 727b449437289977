//! A guarded shop with an admin listener, and an HTTP client for it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use refrain::{
    Engine, Intent, Key, Operation, Outcome, Policy, RecordId, Scope, Verdict,
    engine::Running,
    http::RefrainLayer,
    outcome::Packer,
    record::{Origin, OriginFields, Reason},
    store::{AnyStore, Memory},
};
use refrain_proxy::{
    admin::{self, Admin, Metrics, Workers},
    telemetry::Telemetry,
};
use refrain_testkit::ManualClock;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinHandle,
};
use tower_service::Service as _;

/// The token that only reads, where there is a token.
pub(crate) const READER_TOKEN: &str = "only look";

pub(crate) struct Stage {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) clock: ManualClock,
    pub(crate) is_draining: Arc<AtomicBool>,
    /// Payments of the amount `held` wait for a permit.
    pub(crate) gate: Arc<Semaphore>,
    /// The shop, guarded by the layer.
    shop: Router,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
}

pub(crate) struct AdminResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

pub(crate) async fn open() -> Stage {
    open_at("127.0.0.1:0", None).await
}

pub(crate) async fn open_at(address: &str, token: Option<&str>) -> Stage {
    let clock = ManualClock::new();
    let store = Memory::with_options(1 << 30, clock.shared());
    open_on(AnyStore::new(store), clock, address, token).await
}

pub(crate) async fn open_with_workers(workers: Arc<dyn Workers>) -> Stage {
    let mut setup = Setup::new();
    setup.workers = Some(workers);
    setup.open().await
}

pub(crate) async fn open_on(
    store: AnyStore,
    clock: ManualClock,
    address: &str,
    token: Option<&str>,
) -> Stage {
    let mut setup = Setup::new();
    (setup.store, setup.clock) = (store, clock);
    address.clone_into(&mut setup.address);
    setup.token = token.map(Into::into);
    setup.open().await
}

/// What a stage is made from.
pub(crate) struct Setup {
    pub(crate) store: AnyStore,
    pub(crate) clock: ManualClock,
    pub(crate) address: String,
    pub(crate) token: Option<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) policy: Policy,
    pub(crate) workers: Option<Arc<dyn Workers>>,
    /// Changes the layer before it is used.
    pub(crate) adapt: fn(RefrainLayer) -> RefrainLayer,
}

impl Setup {
    /// A shop in memory, whose admin listener needs no token.
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            store: AnyStore::new(Memory::with_options(1 << 30, clock.shared())),
            clock,
            address: "127.0.0.1:0".into(),
            token: None,
            hosts: Vec::new(),
            policy: Policy::new(vec![Operation::new("POST /v1/payments").unwrap()]).unwrap(),
            workers: None,
            adapt: |layer| layer,
        }
    }

    pub(crate) async fn open(self) -> Stage {
        let metrics = Metrics::new(&self.policy, "memory:");
        let telemetry = Telemetry::new(metrics.clone());
        let engine = Engine::new(self.store.with_meter(metrics));
        let layer = RefrainLayer::new(engine.clone(), self.policy);
        let layer = (self.adapt)(layer.with_observer(telemetry.clone()));
        let gate = Arc::new(Semaphore::new(0));
        let held = gate.clone();
        let charge = async move |amount: String| {
            if amount == "held" {
                let _permit = held.acquire().await;
            }
            (StatusCode::CREATED, "charged")
        };
        let shop = Router::new()
            .route("/v1/payments", post(charge))
            .layer(layer.clone());
        let listener = TcpListener::bind(self.address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_draining = Arc::new(AtomicBool::new(false));
        let has_token = self.token.as_ref().is_some_and(|it| !it.trim().is_empty());
        let admin = Admin {
            layer,
            telemetry,
            is_draining: is_draining.clone(),
            token: self.token,
            reader_token: has_token.then(|| READER_TOKEN.into()),
            hosts: self.hosts,
            configuration: serde_json::json!({ "upstream": "http://127.0.0.1:3000" }),
            workers: self.workers,
            tls: None,
            search_time: admin::SEARCH_TIME,
            reload: None,
        };
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        Stage {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            engine,
            clock: self.clock,
            is_draining,
            gate,
            shop,
            stop: Some(stop),
            serving: tokio::spawn(admin::serve(listener, admin, shutdown)),
        }
    }
}

impl Stage {
    /// Sends a request with the headers that a program would send.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &str) -> AdminResponse {
        let json: &[(&str, &str)] = &[("content-type", "application/json")];
        let extra = if body.is_empty() { &[] } else { json };
        self.ask_with(method, path, extra, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> AdminResponse {
        self.ask(Method::GET, path, "").await
    }

    pub(crate) async fn ask_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> AdminResponse {
        let response = self.send(method, path, headers, body).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        AdminResponse {
            status: head.status.as_u16(),
            headers: head.headers,
            json: serde_json::from_str(&text).unwrap_or_default(),
            text,
        }
    }

    /// Sends a request; returns when the response has begun.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header(header::HOST, self.address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let request = request.body(body).unwrap();
        sender.send_request(request).await.unwrap()
    }

    /// Sends a payment to the shop.
    pub(crate) async fn pay(&self, key: Option<&str>, user: &str, amount: &str) -> Response<Body> {
        let mut request = Request::post("/v1/payments").header("authorization", user);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(amount.to_owned())).unwrap();
        self.shop.clone().call(request).await.unwrap()
    }

    /// Looks up the state of a key, as a client.
    pub(crate) async fn look_up(&self, key: &str, user: &str) -> Response<Body> {
        let path = format!("{}{key}", refrain::http::LOOKUP_PATH);
        let request = Request::get(path).header("authorization", user);
        let request = request.body(Body::empty()).unwrap();
        self.shop.clone().call(request).await.unwrap()
    }

    pub(crate) fn id(&self, key: &str) -> RecordId {
        RecordId::derive(
            self.engine.secret(),
            &Scope::none(),
            &Key::new(key).unwrap(),
        )
    }

    /// Claims `key`, so that its record is in flight.
    pub(crate) async fn start(&self, key: &str) -> Running {
        self.claim(&Intent::new(Scope::none(), Key::new(key).unwrap()), key)
            .await
    }

    pub(crate) async fn claim(&self, intent: &Intent, key: &str) -> Running {
        match self.engine.claim(intent).await.unwrap() {
            Verdict::Granted(guard) => guard.start(),
            other => panic!("{key} is not free: {other:?}"),
        }
    }

    pub(crate) async fn complete(&self, key: &str, body: &[u8]) -> RecordId {
        let mut packer = Packer::new(201, [("content-type", &b"text/plain"[..])]);
        packer.push(body);
        let outcome: Outcome = packer.finish([]);
        let _ = self.start(key).await.complete(outcome).await.unwrap();
        self.id(key)
    }

    pub(crate) async fn doubt(&self, key: &str) -> RecordId {
        let mut running = self.start(key).await;
        let _ = running.doubt(Reason::Timeout).await.unwrap();
        self.id(key)
    }

    /// Leaves a record of this operation with an unknown outcome.
    pub(crate) async fn doubt_of(&self, operation: &str, key: &str) {
        let mut intent = Intent::new(Scope::none(), Key::new(key).unwrap());
        intent.origin = Some(Origin::new(&OriginFields {
            operation,
            ..OriginFields::default()
        }));
        let mut running = self.claim(&intent, key).await;
        let _ = running.doubt(Reason::Timeout).await.unwrap();
    }

    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    /// Stops the listener and waits until it has ended.
    pub(crate) async fn close(mut self) -> std::io::Result<()> {
        drop(self.stop.take());
        let ended = tokio::time::timeout(Duration::from_secs(60), self.serving).await;
        ended.expect("the listener ends").unwrap()
    }
}
