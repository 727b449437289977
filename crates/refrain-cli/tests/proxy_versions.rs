//! The guarantees must not depend on the protocol: clients may use HTTP/2 without TLS, and upstreams TLS.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    convert::Infallible,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::{
    Request, Response,
    body::{Body, Frame},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{
    AfterResponse, Proxy, Starting, Upstream, answer, call, find, get, http2 as frames, post,
    request, until,
};
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned, crypto::ring, pki_types::PrivateKeyDer,
};

type Sender = http2::SendRequest<Sent>;
type Sent = Either<Full<Bytes>, Stalled>;

/// A body that never yields data.
struct Stalled;

impl Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

fn whole(body: impl Into<Full<Bytes>>) -> Sent {
    Either::Left(body.into())
}

/// Connects with HTTP/2 prior knowledge.
async fn connect(address: SocketAddr) -> Sender {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let io = TokioIo::new(stream);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn send(sender: &Sender, request: Request<Sent>) -> (Response<()>, Bytes) {
    let response = sender.clone().send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), body)
}

fn order(key: &str, body: &'static str) -> Request<Sent> {
    Request::post("http://shop.test/orders")
        .header("idempotency-key", key)
        .body(whole(body))
        .unwrap()
}

#[tokio::test]
async fn http_2_and_1_share_their_keys() {
    let upstream = Upstream::start(|seen, stream| {
        answer(
            stream,
            "201 Created",
            &[("connection", "keep-alive")],
            &seen.body,
        )
    });
    let proxy = Proxy::start(upstream.address, "");
    let sender = connect(proxy.address).await;
    let (first, body) = send(&sender, order("k", "x")).await;
    assert_eq!((first.status().as_u16(), &*body), (201, &b"x"[..]));
    let (again, body) = send(&sender, order("k", "x")).await;
    assert_eq!((again.status().as_u16(), &*body), (201, &b"x"[..]));
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert!(call(proxy.address, post("k", "x")).is_replay());
    let (other, _) = send(&sender, order("k", "y")).await;
    assert_eq!(other.status(), 422);
    let mut elsewhere = order("k", "x");
    *elsewhere.uri_mut() = "http://other.test/orders".parse().unwrap();
    let (other, _) = send(&sender, elsewhere).await;
    assert_eq!(other.status(), 422);
    let crumbs = Request::get("http://shop.test/a?b")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(whole(""))
        .unwrap();
    send(&sender, crumbs).await;
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].start(), "GET /a?b");
    assert_eq!(seen[1].header("cookie"), Some("a=1; b=2"));
    for seen in &seen {
        assert_eq!(seen.header("host"), Some("shop.test"));
        assert_eq!(seen.header("via"), Some("2.0 refrain"));
    }
}

#[tokio::test]
async fn many_streams_of_one_connection_run_beside_each_other() {
    // Requests at the upstream now, and their maximum.
    let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let highest = most.clone();
    let upstream = Upstream::start(move |seen, stream| {
        highest.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
        thread::sleep(Duration::from_millis(200));
        now.fetch_sub(1, Relaxed);
        answer(stream, "200 OK", &[], &seen.body)
    });
    let proxy = Proxy::start(upstream.address, "");
    let sender = connect(proxy.address).await;
    let body: Bytes = vec![b'x'; 100_000].into();
    let calls: Vec<_> = (0..40)
        .map(|at| {
            let (sender, body) = (sender.clone(), body.clone());
            tokio::spawn(async move {
                let request = Request::post("http://shop.test/a");
                let request = match at % 2 {
                    0 => request.header("idempotency-key", format!("k{at}")),
                    _ => request,
                };
                let request = request.body(whole(body)).unwrap();
                send(&sender, request).await
            })
        })
        .collect();
    for call in calls {
        let (head, answer) = call.await.unwrap();
        assert_eq!((head.status().as_u16(), &answer), (200, &body));
    }
    let most = most.load(Relaxed);
    assert!(most > 4, "at most {most} concurrent requests");
    assert_eq!(upstream.count(), 40);
}

/// A connection has hundreds of streams, and each may take a descriptor towards the upstream.
/// The store needs some for its next segments.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_one_connection_do_not_use_up_the_descriptors() {
    let is_open = Arc::new(AtomicBool::new(false));
    let gate = is_open.clone();
    let upstream = Upstream::start(move |seen, stream| {
        until("the gate is open", || gate.load(Relaxed));
        answer(stream, "200 OK", &[], &seen.body)
    });
    let proxy = Starting::new()
        .open_files(64)
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "file:records")
        .file("[proxy]\nthreads = 1\nconnect_timeout = \"5m\"")
        .start();
    let sender = connect(proxy.address).await;
    let body = Bytes::from_static(b"x");
    let calls: Vec<_> = (0..200)
        .map(|at| {
            let (sender, body) = (sender.clone(), body.clone());
            tokio::spawn(async move {
                let request = Request::post("http://shop.test/orders");
                let request = match at % 4 {
                    0 => request.header("idempotency-key", format!("k{at}")),
                    _ => request,
                };
                send(&sender, request.body(whole(body)).unwrap()).await
            })
        })
        .collect();
    tokio::task::block_in_place(|| upstream.wait_for(8));
    let ready = tokio::task::block_in_place(|| proxy.ask_admin("/readyz"));
    assert_eq!(ready.status, 200);
    is_open.store(true, Relaxed);
    for call in calls {
        let (head, answer) = call.await.unwrap();
        assert_eq!((head.status().as_u16(), &answer), (200, &body));
    }
    tokio::task::block_in_place(|| {
        until("most connections are closed", || {
            let (all, closed) = upstream.connections();
            all - closed < 48
        });
    });
    // Fills several segments; the first one has 4 MiB.
    let body = "x".repeat(1 << 20);
    for at in 0..8 {
        let key = format!("after-{at}");
        let told = tokio::task::block_in_place(|| call(proxy.address, post(&key, &body)));
        assert_eq!(told.status, 200, "{key}: {}", told.head);
    }
}

#[tokio::test]
async fn stalled_http_2_stream_times_out_and_others_continue() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nclient_timeout = \"8s\"");
    let sender = connect(proxy.address).await;
    let stalled = |key: Option<&str>| {
        let mut request = Request::post("http://shop.test/orders");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(Either::Right(Stalled)).unwrap()
    };
    for (key, advice) in [(Some("k"), "reuse-key"), (None, "ask")] {
        let told = send(&sender, stalled(key));
        let mut told = std::pin::pin!(told);
        let mut lively = 0;
        let (head, body) = loop {
            tokio::select! {
                told = &mut told => break told,
                (head, _) = send(&sender, Request::get("http://shop.test/").body(whole("")).unwrap()) => {
                    assert_eq!(head.status(), 200);
                    lively += 1;
                }
            }
        };
        assert_eq!(head.status(), 408, "{key:?}");
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["code"], "request-timeout", "{key:?}");
        assert_eq!(problem["advice"], advice, "{key:?}");
        assert!(lively > 0, "{key:?}");
    }
    // The key is still free, on the same connection.
    let (head, _) = send(&sender, order("k", "x")).await;
    assert_eq!(head.status(), 200);
    let orders = upstream.seen().into_iter();
    assert_eq!(orders.filter(|it| it.start() == "POST /orders").count(), 1);
}

#[test]
fn an_idle_connection_of_http_2_is_kept_as_long_as_any() {
    let upstream = Upstream::echo();
    let settings = "[proxy]\nhead_timeout = \"200ms\"\nkeep_alive = \"10s\"";
    let proxy = Proxy::start(upstream.address, settings);
    let mut stream = frames::connect(proxy.address, 65_535);
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", "/"),
    ];
    for id in [1, 3] {
        stream.write_all(&frames::head(id, &fields, false)).unwrap();
        assert_eq!(frames::answer(&mut stream), Some(200));
        // A frame between two requests does not start the head timeout.
        thread::sleep(Duration::from_millis(50));
        stream.write_all(&frames::ping()).unwrap();
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(upstream.count(), 2);
}

/// After such a response, a library would send the next request in HTTP/1.0 as well.
#[test]
fn connection_of_an_http_1_0_upstream_is_not_reused() {
    let upstream = Upstream::start(|_, stream| {
        let old = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok";
        stream.write_all(old.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    for at in 0..3 {
        assert_eq!(call(proxy.address, get("/")).text(), "ok");
        let key = format!("k{at}");
        assert_eq!(call(proxy.address, post(&key, "x")).text(), "ok");
    }
    // Each request was in HTTP/1.1: the upstream rejects others.
    let connections: Vec<_> = upstream.seen().iter().map(|it| it.connection).collect();
    assert_eq!(connections, [0, 1, 2, 3, 4, 5]);
}

/// An upstream with TLS for `name` that counts its requests, and its certificate authority as a file.
struct Secured {
    port: u16,
    count: Arc<AtomicUsize>,
    authority: tempfile::NamedTempFile,
}

fn secured(name: &str) -> Secured {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let authority = tempfile::NamedTempFile::new().unwrap();
    fs::write(authority.path(), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let (config, count) = (Arc::new(config), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let counting = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, count) = (config.clone(), counting.clone());
            thread::spawn(move || serve(stream.unwrap(), config, &count));
        }
    });
    Secured {
        port,
        count,
        authority,
    }
}

/// Responds to each head; returns at the first failure.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, count: &AtomicUsize) {
    let connection = ServerConnection::new(config).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let (mut read, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        read.extend_from_slice(&bytes[..len]);
        if find(&read, b"\r\n\r\n").is_some() {
            read.clear();
            let at = count.fetch_add(1, Relaxed).to_string();
            let answer = support::respond("201 Created", &[], at.as_bytes());
            stream.write_all(&answer).unwrap();
        }
    }
}

fn in_front_of(secured: &Secured, host: &str, is_trusted: bool) -> Proxy {
    let starting = Starting::new()
        .arg("--upstream", format!("https://{host}:{}", secured.port))
        .arg("--store", "memory:");
    let own = secured.authority.path();
    let other = secured_by_nobody();
    let trusted = if is_trusted { own } else { other.path() };
    starting
        .variable("SSL_CERT_FILE", trusted.display())
        .start()
}

/// A certificate authority that has signed nothing.
fn secured_by_nobody() -> tempfile::NamedTempFile {
    let made = rcgen::generate_simple_self_signed(["nobody.test".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), made.cert.pem()).unwrap();
    file
}

#[test]
fn an_upstream_with_tls_is_guarded_as_well() {
    for (name, host) in [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1")] {
        let secured = secured(name);
        let proxy = in_front_of(&secured, host, true);
        let order = request("POST /orders", &[("idempotency-key", "k")], b"");
        assert_eq!(call(proxy.address, &order).text(), "0");
        let again = call(proxy.address, &order);
        assert_eq!((again.is_replay(), again.text()), (true, "0"));
        assert_eq!(call(proxy.address, get("/")).text(), "1");
        assert_eq!(secured.count.load(Relaxed), 2);
    }
}

#[test]
fn nothing_is_sent_to_an_upstream_that_cannot_prove_who_it_is() {
    let untrusted = secured("localhost");
    let misnamed = secured("other.test");
    for (secured, is_trusted) in [(&untrusted, false), (&misnamed, true)] {
        let proxy = in_front_of(secured, "localhost", is_trusted);
        for _ in 0..2 {
            let answer = call(proxy.address, post("k", "x"));
            let told = (answer.status, answer.code());
            assert_eq!(told, (502, Some("upstream-unreachable".into())));
        }
        assert_eq!(secured.count.load(Relaxed), 0);
    }
}
