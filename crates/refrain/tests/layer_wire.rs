//! The layer on real connections: clients that vanish at the worst moment, connections that are reused after a
//! replay, bodies that look like requests (smuggling), and traffic that must pass through unchanged.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use refrain::{
    Engine, Operation, Policy,
    http::RefrainLayer,
    store::{Embedded, Memory, embedded::Options},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

#[path = "support/scripted.rs"]
mod scripted;
#[path = "support/wire.rs"]
mod wire;
use scripted::{states, until};
use wire::{Got, Wire, chunked, request, serve};

const KEY: &str = "idempotency-key: k-1\r\n";
/// A body that a server would parse as a request if it lost count of the body's length.
const EVIL: &[u8] = b"POST /evil HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n";

struct Shop {
    address: SocketAddr,
    engine: Engine,
    effects: Arc<AtomicUsize>,
    /// Requests that were smuggled in.
    smuggled: Arc<AtomicUsize>,
    /// Handlers of `/slow` wait for a permit.
    gate: Arc<Semaphore>,
    /// Number of handlers that are waiting or have waited.
    started: Arc<AtomicUsize>,
}

async fn shop() -> Shop {
    shop_on(Policy::default(), Engine::new(Memory::new())).await
}

async fn shop_on(policy: Policy, engine: Engine) -> Shop {
    let effects = Arc::new(AtomicUsize::new(0));
    let (smuggled, started) = (Arc::default(), Arc::default());
    let gate = Arc::new(Semaphore::new(0));
    let count = {
        let effects = effects.clone();
        move || effects.fetch_add(1, Ordering::SeqCst) + 1
    };
    let echo = {
        let count = count.clone();
        async move |headers: HeaderMap, body: Bytes| {
            let number = count();
            let seen = headers.len();
            let head = [("x-number", number), ("x-seen", seen)];
            (head.map(|(name, value)| (name, value.to_string())), body)
        }
    };
    let slow = {
        let (gate, started, count) = (gate.clone(), Arc::clone(&started), count.clone());
        async move |body: Bytes| {
            AtomicUsize::fetch_add(&started, 1, Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            count();
            body
        }
    };
    let evil = {
        let smuggled = Arc::clone(&smuggled);
        async move || {
            AtomicUsize::fetch_add(&smuggled, 1, Ordering::SeqCst);
        }
    };
    let app = Router::new()
        .route("/echo", any(echo))
        .route("/slow", post(slow))
        .route("/evil", any(evil))
        .route("/stream", any(stream))
        .route("/upgrade", get(upgrade))
        .route("/many", post(many))
        .route("/status/{status}", post(status))
        .layer(RefrainLayer::new(engine.clone(), policy));
    Shop {
        address: serve(app).await,
        engine,
        effects,
        smuggled,
        gate,
        started,
    }
}

/// Echoes the body as it arrives, including trailers.
async fn stream(body: Body) -> Response {
    ([("trailer", "x-sum")], body).into_response()
}

/// Everything that a replay has to keep: a content encoding, a duplicate header, trailers.
async fn many() -> Response {
    let trailers = async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "42".parse().unwrap());
        Some(Ok(trailers))
    };
    let body = Full::new(Bytes::from_static(b"\x1f\x8b\x00\xff")).with_trailers(trailers);
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-encoding", "gzip"),
        ("link", "</1>; rel=first"),
        ("link", "</9>; rel=last"),
        ("trailer", "x-sum"),
        ("etag", "\"v1\""),
        ("set-cookie", "session=secret"),
    ] {
        headers.append(name, value.parse().unwrap());
    }
    response
}

async fn status(axum::extract::Path(status): axum::extract::Path<u16>) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("etag", "\"v1\"")]).into_response()
}

/// Echoes in upper case what it receives on the upgraded connection.
async fn upgrade(mut request: Request) -> Response {
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrading.await.unwrap());
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(&heard.to_ascii_uppercase()).await.unwrap();
    });
    let head = [("connection", "upgrade"), ("upgrade", "shout")];
    (StatusCode::SWITCHING_PROTOCOLS, head).into_response()
}

impl Shop {
    async fn wire(&self) -> Wire {
        Wire::open(self.address).await
    }

    /// Sends one request on its own connection.
    async fn ask(&self, bytes: &[u8]) -> Got {
        self.wire().await.ask(bytes).await
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    #[track_caller]
    fn check_nothing_smuggled(&self) {
        assert_eq!(self.smuggled.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_the_body_runs_nothing_and_blocks_nothing() {
    let shop = shop().await;
    let whole = request("POST", "/echo", KEY, &[7; 10_000]);
    let mut wire = shop.wire().await;
    wire.send(&whole[..5_000]).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    wire.reset();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(states(shop.engine.store()).await, []);
    let got = shop.ask(&whole).await;
    assert_eq!((got.status, got.body.len()), (200, 10_000));
    assert_eq!((got.is_replay(), shop.effects()), (false, 1));
}

/// The client's process is killed while the operation runs; its successor retries.
#[tokio::test]
async fn a_reset_behind_the_request_cancels_neither_run_nor_recording() {
    let shop = shop().await;
    let slow = request("POST", "/slow", KEY, b"paid");
    let mut wire = shop.wire().await;
    wire.send(&slow).await;
    until(|| shop.started.load(Ordering::SeqCst) == 1).await;
    wire.reset();
    tokio::time::sleep(Duration::from_millis(30)).await;
    shop.gate.add_permits(1);
    let got = shop.ask(&slow).await;
    assert_eq!((got.status, got.text().as_str()), (200, "paid"));
    assert_eq!((got.is_replay(), shop.effects()), (true, 1));
}

#[tokio::test]
async fn a_reset_of_one_who_waits_touches_nothing() {
    let shop = shop().await;
    let slow = request("POST", "/slow", KEY, b"paid");
    let mut first = shop.wire().await;
    first.send(&slow).await;
    until(|| shop.started.load(Ordering::SeqCst) == 1).await;
    let mut second = shop.wire().await;
    second.send(&slow).await;
    until(|| shop.engine.tally().waiting_now() == 1).await;
    second.reset();
    until(|| shop.engine.tally().waiting_now() == 0).await;
    shop.gate.add_permits(1);
    let got = first.got().await.unwrap();
    assert_eq!((got.is_replay(), shop.effects()), (false, 1));
    assert!(shop.ask(&slow).await.is_replay());
}

/// A replay that leaves the request's body unread would let the server parse the body as the next request.
#[tokio::test]
async fn connection_stays_in_sync_after_a_replay() {
    for body in [EVIL.to_vec(), EVIL.repeat(5_000)] {
        let shop = shop().await;
        let spellings = [
            request("POST", "/echo", KEY, &body),
            chunked("POST", "/echo", KEY, &body, 1_000),
        ];
        let next = request("GET", "/echo", "", b"");
        shop.ask(&spellings[0]).await;
        for replayed in &spellings {
            let mut wire = shop.wire().await;
            for _ in 0..3 {
                let got = wire.ask(replayed).await;
                assert!(got.is_replay() && got.body == body);
                let got = wire.ask(&next).await;
                assert_eq!((got.status, got.is_replay()), (200, false));
            }
            // Pipelined, without waiting for the first response.
            let mut wire = shop.wire().await;
            let all = [&replayed[..], &next[..]].concat().repeat(2);
            let got = wire.pipeline(&all, 4).await;
            let replays: Vec<_> = got.iter().map(Got::is_replay).collect();
            assert_eq!(replays, [true, false, true, false]);
        }
        shop.check_nothing_smuggled();
    }
}

/// Rejected before the body was read. The rest of the body must not be parsed as a request, however the server
/// discards it.
#[tokio::test]
async fn unread_body_after_a_rejection_is_not_parsed_as_a_request() {
    let operation = Operation {
        request_bytes_max: 10_000,
        ..Operation::default()
    };
    let policy = Policy::new(vec![operation]).unwrap();
    for body in [EVIL.repeat(1_000), EVIL.repeat(40_000)] {
        let shop = shop_on(policy.clone(), Engine::new(Memory::new())).await;
        let invalid = "idempotency-key: two words\r\n";
        let cases = [
            (413, request("POST", "/echo", KEY, &body)),
            (413, chunked("POST", "/echo", KEY, &body, 5_000)),
            (400, request("POST", "/echo", invalid, &body)),
            (400, chunked("POST", "/echo", invalid, &body, 5_000)),
        ];
        let mut answered = 0;
        for (status, bytes) in cases {
            let mut wire = shop.wire().await;
            let pipelined = [&bytes[..], &request("GET", "/echo", "", b"")].concat();
            // The response may arrive, and the connection close, before everything is sent.
            let got = wire.pipeline(&pipelined, 2).await;
            if let Some(first) = got.first() {
                assert_eq!(first.status, status);
                answered += 1;
            }
            if let Some(second) = got.get(1) {
                assert!(second.header("x-number").is_some(), "the GET, not the body");
            }
        }
        assert!(answered > 0);
        shop.check_nothing_smuggled();
        assert_eq!(states(shop.engine.store()).await, []);
    }
}

#[tokio::test]
async fn a_client_that_expects_to_be_asked_for_its_body_is_asked() {
    let shop = shop().await;
    let expects = format!("{KEY}expect: 100-continue\r\n");
    for is_replay in [false, true] {
        let whole = request("POST", "/echo", &expects, b"later");
        let (head, body) = whole.split_at(whole.len() - 5);
        let mut wire = shop.wire().await;
        let go_on = wire.ask(head).await;
        assert_eq!(go_on.status, 100);
        let got = wire.ask(body).await;
        assert_eq!((got.status, got.text().as_str()), (200, "later"));
        assert_eq!(got.is_replay(), is_replay);
    }
    let refused = "idempotency-key: two words\r\nexpect: 100-continue\r\n";
    let whole = request("POST", "/echo", refused, b"never");
    let got = shop.ask(&whole[..whole.len() - 5]).await;
    assert_eq!(got.status, 400, "no `100 Continue` for the body");
}

#[tokio::test]
async fn methods_without_effects_are_left_alone() {
    let shop = shop().await;
    for method in ["GET", "OPTIONS", "DELETE"] {
        for _ in 0..2 {
            let got = shop.ask(&request(method, "/echo", KEY, b"")).await;
            assert_eq!((got.status, got.is_replay()), (200, false), "{method}");
        }
    }
    let mut wire = shop.wire().await;
    for _ in 0..2 {
        wire.send(&request("HEAD", "/echo", KEY, b"")).await;
        let (status, headers) = wire.head().await.unwrap();
        assert_eq!(status, 200);
        assert!(!headers.iter().any(|(name, _)| name.starts_with("idempot")));
    }
    assert_eq!(
        (shop.effects(), states(shop.engine.store()).await),
        (8, vec![])
    );
}

/// Each chunk comes back before the next one is sent; if anything buffered them, this test would hang.
#[tokio::test]
async fn unguarded_and_observed_requests_stream_with_trailers() {
    let observed = Operation {
        mode: refrain::policy::Mode::Observe,
        ..Operation::default()
    };
    let observing = Policy::new(vec![observed]).unwrap();
    let cases = [
        ("PUT", KEY, Policy::default()),
        ("POST", "", Policy::default()),
        ("POST", KEY, observing.clone()),
        ("POST", "idempotency-key: two words\r\n", observing),
    ];
    for (method, headers, policy) in cases {
        let shop = shop_on(policy, Engine::new(Memory::new())).await;
        let mut wire = shop.wire().await;
        let head = format!(
            "{method} /stream HTTP/1.1\r\nhost: shop\r\n{headers}te: trailers\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        wire.send(head.as_bytes()).await;
        for number in 0..3 {
            wire.send(format!("5\r\nping{number}\r\n").as_bytes()).await;
            if number == 0 {
                assert_eq!(wire.head().await.unwrap().0, 200);
            }
            let pong = wire.chunk().await.unwrap();
            assert_eq!(pong, format!("ping{number}").into_bytes());
        }
        wire.send(b"0\r\nx-sum: 42\r\n\r\n").await;
        assert_eq!(wire.chunk().await, None);
        let trailers = wire.fields().await.unwrap();
        assert_eq!(trailers, [("x-sum".into(), "42".into())], "{method}");
    }
}

#[tokio::test]
async fn upgrades_pass_through() {
    let shop = shop().await;
    let mut wire = shop.wire().await;
    let headers = "connection: upgrade\r\nupgrade: shout\r\n";
    let got = wire.ask(&request("GET", "/upgrade", headers, b"")).await;
    assert_eq!((got.status, got.header("upgrade")), (101, Some("shout")));
    wire.send(b"hello").await;
    assert_eq!(wire.exactly(5).await.unwrap(), b"HELLO");
}

#[tokio::test]
async fn many_headers_and_any_bytes_arrive() {
    let shop = shop().await;
    let binary: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let more: String = (0..80).map(|it| format!("x-{it}: {it}\r\n")).collect();
    let bytes = request("POST", "/echo", &format!("{KEY}{more}"), &binary);
    let first = shop.ask(&bytes).await;
    // Host, key, length, attempt and 80 more.
    assert_eq!(first.header("x-seen"), Some("84"));
    let again = shop.ask(&bytes).await;
    assert!(first.body == binary && again.body == binary && again.is_replay());
}

#[tokio::test]
async fn a_replay_keeps_encoding_order_and_trailers() {
    let shop = shop().await;
    let bytes = request("POST", "/many", &format!("{KEY}te: trailers\r\n"), b"x");
    let (first, again) = (shop.ask(&bytes).await, shop.ask(&bytes).await);
    for got in [&first, &again] {
        assert_eq!(got.body, b"\x1f\x8b\x00\xff");
        assert_eq!(got.header("content-encoding"), Some("gzip"));
        assert_eq!(got.all("link"), ["</1>; rel=first", "</9>; rel=last"]);
        assert_eq!(got.header("etag"), Some("\"v1\""));
        assert_eq!(got.trailers, [("x-sum".into(), "42".into())]);
    }
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    assert_eq!(
        (again.is_replay(), again.header("set-cookie")),
        (true, None)
    );
    // A client that does not accept trailers gets everything else.
    let plain = shop.ask(&request("POST", "/many", KEY, b"x")).await;
    assert_eq!((plain.body.len(), plain.trailers.len()), (4, 0));
}

#[tokio::test]
async fn answers_without_a_body_are_replayed_without_one() {
    for status in [204, 304] {
        let shop = shop().await;
        let bytes = request("POST", &format!("/status/{status}"), KEY, b"x");
        let mut wire = shop.wire().await;
        for is_replay in [false, true, true] {
            let got = wire.ask(&bytes).await;
            assert_eq!((got.status, got.is_replay()), (status, is_replay));
            assert_eq!(got.header("etag"), Some("\"v1\""));
        }
    }
}

async fn shop_in(folder: &Path) -> Shop {
    let store = Embedded::open(folder, Options::default()).unwrap();
    shop_on(Policy::default(), Engine::new(store)).await
}

#[test]
fn responses_are_replayed_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let paid = request("POST", "/echo", KEY, b"paid");
    let cut = request("POST", "/slow", "idempotency-key: k-2\r\n", b"cut off");
    // Each process life has its own runtime, and dropping that ends all of its tasks.
    let life = || tokio::runtime::Runtime::new().unwrap();
    life().block_on(async {
        let shop = shop_in(folder.path()).await;
        assert!(!shop.ask(&paid).await.is_replay());
        let mut wire = shop.wire().await;
        wire.send(&cut).await;
        until(|| shop.started.load(Ordering::SeqCst) == 1).await;
    });
    life().block_on(async {
        let shop = shop_in(folder.path()).await;
        let got = shop.ask(&paid).await;
        assert_eq!((got.is_replay(), got.text().as_str()), (true, "paid"));
        let got = shop.ask(&cut).await;
        assert_eq!(got.status, 409);
        assert!(got.text().contains("outcome-unknown"), "{}", got.text());
        assert_eq!(
            (shop.effects(), shop.started.load(Ordering::SeqCst)),
            (0, 0)
        );
    });
}
