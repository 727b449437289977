//! A payments service behind the layer that counts its effects, and the responses that its clients get.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Extension,
    response::IntoResponse,
    routing::{any, post},
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use refrain::{
    Engine, Fence, Operation, Policy, Store,
    http::{Failure, RefrainLayer},
    record::Reason,
    store::{Memory, Query, StateName},
};
use tokio::sync::Semaphore;
use tower_service::Service;

/// A payments service behind the layer that counts its effects.
pub(crate) struct Shop {
    pub(crate) effects: Arc<AtomicUsize>,
    /// Handlers of `/slow` wait for a permit.
    pub(crate) gate: Arc<Semaphore>,
    pub(crate) engine: Engine,
    pub(crate) app: Router,
}

pub(crate) fn shop(policy: Policy) -> Shop {
    shop_on(policy, Engine::new(Memory::new()))
}

pub(crate) fn shop_on(policy: Policy, engine: Engine) -> Shop {
    shop_behind(RefrainLayer::new(engine, policy))
}

pub(crate) fn shop_behind(layer: RefrainLayer) -> Shop {
    let engine = layer.engine().clone();
    let effects = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let (counted, gated) = (effects.clone(), gate.clone());
    let count = move || counted.fetch_add(1, Ordering::SeqCst) + 1;
    let pay = {
        let count = count.clone();
        async move |headers: HeaderMap, body: Bytes| {
            let number = count();
            let status = headers
                .get("want")
                .map_or(201, |want| want.to_str().unwrap().parse().unwrap());
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            let replies = response.headers_mut();
            replies.insert("location", format!("/pay/{number}").parse().unwrap());
            replies.insert("set-cookie", "session=secret".parse().unwrap());
            replies.insert("content-type", "application/octet-stream".parse().unwrap());
            if let Some(said) = headers.get("say") {
                replies.insert("refrain-outcome", said.clone());
            }
            response
        }
    };
    let slow = {
        let count = count.clone();
        async move |body: Bytes| {
            gated.acquire().await.unwrap().forget();
            format!("{} {}", count(), String::from_utf8_lossy(&body))
        }
    };
    let fail = async |headers: HeaderMap| {
        let mut response = "".into_response();
        response
            .extensions_mut()
            .insert(match headers["how"].to_str().unwrap() {
                "not-sent" => Failure::NotSent,
                "reset" => Failure::Lost(Reason::Reset),
                _ => panic!("a handler that fails"),
            });
        response
    };
    let cut = async || {
        let chunks = [Ok(Bytes::from("half")), Err(std::io::Error::other("cut"))];
        Response::new(Body::from_stream(Chunks(chunks.into_iter())))
    };
    let fenced = async |Extension(fence): Extension<Fence>, headers: HeaderMap| {
        format!("{fence} {}", headers["refrain-attempt"].to_str().unwrap())
    };
    let large = {
        let count = count.clone();
        async move || {
            count();
            ([("location", "/large/1")], vec![7_u8; 5_000])
        }
    };
    let app = Router::new()
        .route("/pay", any(pay))
        .route("/slow", post(slow))
        .route("/fail", post(fail))
        .route("/cut", post(cut))
        .route("/fence", post(fenced))
        .route("/large", post(large))
        .layer(layer);
    Shop {
        effects,
        gate,
        engine,
        app,
    }
}

/// A stream of chunks, to avoid a dependency.
struct Chunks<I>(I);

impl<I: Iterator<Item = Result<Bytes, std::io::Error>> + Unpin> futures_core::Stream for Chunks<I> {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    #[track_caller]
    pub(crate) fn check_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(
            (json["code"].as_str(), json["status"].as_u64()),
            (Some(code), Some(status.into()))
        );
        let page = format!("/.well-known/refrain/problems/{code}");
        assert_eq!(json["type"].as_str(), Some(page.as_str()));
        assert!(
            ["wait", "reuse-key", "new-key", "ask"].contains(&json["advice"].as_str().unwrap())
        );
        assert!(
            !json["title"].as_str().unwrap().is_empty()
                && !json["detail"].as_str().unwrap().is_empty()
        );
        assert!(self.header("link").unwrap().contains(&page));
    }
}

impl Shop {
    pub(crate) async fn send(&self, request: Request<Body>) -> Seen {
        let mut app = self.app.clone();
        let response = app.call(request).await.unwrap();
        let (head, body) = response.into_parts();
        Seen {
            status: head.status.as_u16(),
            headers: head.headers,
            body: to_bytes(body, usize::MAX).await.unwrap(),
        }
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Seen {
        self.send(request("POST", path, headers, body)).await
    }

    pub(crate) fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    pub(crate) async fn records(&self, state: StateName) -> usize {
        let query = Query {
            state: Some(state),
            ..Query::default()
        };
        self.engine
            .store()
            .list(&query)
            .await
            .unwrap()
            .readings
            .len()
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

pub(crate) fn operation(change: impl FnOnce(&mut Operation)) -> Policy {
    let mut operation = Operation::default();
    change(&mut operation);
    Policy::new(vec![operation]).unwrap()
}

pub(crate) const KEY: (&str, &str) = ("idempotency-key", "k-1");
