//! A client with a loop must be refused alone: its own retries, and other clients, are served, also after a restart of
//! the proxy and by other proxies on the same store.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "nodes_support/server.rs"]
mod server;
mod support;

use std::time::Duration;

use server::{Kind, Server};
use support::{Client, HttpResponse, Proxy, Starting, Upstream, call, request, until};

const REFUSED: &str = r#"refrain_quota_refused_total{quota="rate"}"#;

/// `POST /orders` of a client with this API key.
fn post(client: &str, key: &str, body: &str) -> Vec<u8> {
    let headers = [("authorization", client), ("idempotency-key", key)];
    request("POST /orders", &headers, body.as_bytes())
}

/// Checks a refusal, and returns its `Retry-After`.
fn refusal(told: &HttpResponse) -> Duration {
    let code = told.code();
    assert_eq!(
        (told.status, code.as_deref()),
        (429, Some("scope-over-quota"))
    );
    assert!(
        told.text().contains(r#""advice":"wait""#),
        "{}",
        told.text()
    );
    let page = told.header("link").unwrap();
    assert!(page.contains("problems/scope-over-quota"), "{page}");
    Duration::from_secs(told.header("retry-after").unwrap().parse().unwrap())
}

#[test]
fn a_client_over_its_rate_is_refused_alone_and_its_retries_are_served() {
    let upstream = Upstream::echo();
    let quota = "[policy]\nquota = { keys_per_second = 1 }\n";
    let proxy = Proxy::start(upstream.address, quota);
    assert_eq!(proxy.metric(REFUSED), 0.0);
    assert_eq!(call(proxy.address, post("a", "k0", "x")).status, 200);
    // Some of these come within the same second, however slow the machine is: stop at the first refusal.
    let (mut ran, mut refused) = (1, None);
    let mut client = Client::connect(proxy.address);
    while refused.is_none() {
        let told = client.send(post("a", &format!("k{ran}"), "x")).answer();
        match told.status {
            200 => ran += 1,
            _ => refused = Some((tokio::time::Instant::now(), refusal(&told))),
        }
    }
    let (at, after) = refused.unwrap();
    assert_eq!(after, Duration::from_secs(1));
    assert_eq!(upstream.count(), ran);
    let again = client.send(post("a", "k0", "x")).answer();
    assert!(again.is_replay(), "{}", again.text());
    let other = client.send(post("b", "k0", "x")).answer();
    assert_eq!((other.status, other.is_replay()), (200, false));
    // After the time in `Retry-After`, the same request with the same key runs.
    until("the time is over", || at.elapsed() >= after);
    let key = format!("k{ran}");
    let late = client.send(post("a", &key, "x")).answer();
    assert_eq!((late.status, late.is_replay()), (200, false));
    assert_eq!(proxy.metric(REFUSED), 1.0);
    assert_eq!(proxy.metric("refrain_quota_scopes"), 2.0);
    assert_eq!(proxy.metric("refrain_quota_uncounted_total"), 0.0);
}

/// A refused upload must not hang, and its connection must not take its bytes for the next request.
#[test]
fn a_large_upload_is_refused_before_it_is_read() {
    let upstream = Upstream::start(|_, stream| support::answer(stream, "200 OK", &[], b"done"));
    let proxy = Proxy::start(upstream.address, "[policy]\nquota = { records_max = 1 }\n");
    assert_eq!(call(proxy.address, post("a", "k0", "x")).status, 200);
    let mut client = Client::connect(proxy.address);
    client.send(
        "POST /orders HTTP/1.1\r\nhost: a\r\nauthorization: a\r\nidempotency-key: k1\r\ncontent-length: 4000000\r\n\r\nx",
    );
    refusal(&client.answer());
    assert_eq!(proxy.metric("refrain_buffered_body_bytes"), 0.0);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn requests_in_flight_are_limited_for_each_client() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = std::sync::Mutex::new(receiver);
    let upstream = Upstream::start(move |_, stream| {
        receiver.lock().unwrap().recv().unwrap();
        support::answer(stream, "200 OK", &[], b"done")
    });
    let proxy = Proxy::start(
        upstream.address,
        "[policy]\nquota = { in_flight_max = 2 }\n",
    );
    let sent: Vec<_> = (0..2)
        .map(|number| {
            let mut client = Client::connect(proxy.address);
            client.send(post("a", &format!("k{number}"), "x"));
            client
        })
        .collect();
    upstream.wait_for(2);
    let mut refused = Client::connect(proxy.address);
    let told = refused.send(post("a", "k2", "x")).answer();
    assert_eq!(refusal(&told), Duration::from_secs(1));
    (0..3).for_each(|_| sender.send(()).unwrap());
    for mut client in sent {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(refused.send(post("a", "k2", "x")).answer().status, 200);
    assert_eq!(upstream.count(), 3);
}

/// A proxy that may keep two records of each client.
fn start(upstream: &Upstream, store: &str) -> Proxy {
    let file =
        format!("store = {store}\n[policy]\nquota = {{ records_max = 2, bytes_max = \"1MiB\" }}\n");
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .file(&file)
        .start()
}

fn check_counted(proxy: &Proxy) {
    let day = Duration::from_secs(86_400);
    let after = refusal(&call(proxy.address, post("a", "k3", "x")));
    // Retention and remember are 8 days by default; 2 % more at most.
    assert!(
        after > day * 8 - day / 2 && after <= day * 8 + day * 8 / 50,
        "{after:?}"
    );
    assert!(call(proxy.address, post("a", "k1", "x")).is_replay());
    assert_eq!(proxy.metric("refrain_quota_uncounted_total"), 0.0);
}

fn records_outlive_a_restart(store: &str) {
    let upstream = Upstream::echo();
    let first = start(&upstream, store);
    for key in ["k1", "k2"] {
        assert_eq!(call(first.address, post("a", key, "x")).status, 200);
    }
    check_counted(&first);
    first.terminate();
    assert!(first.ended().success());
    let second = start(&upstream, store);
    check_counted(&second);
    assert_eq!(call(second.address, post("b", "k1", "x")).status, 200);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn records_in_a_folder_count_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("\"file:{}\"", folder.path().join("records").display());
    records_outlive_a_restart(&store);
}

#[test]
fn records_on_postgres_count_after_a_restart() {
    let server = Server::start(Kind::Postgres);
    records_outlive_a_restart(&format!("\"{}\"", server.url()));
}

#[test]
fn records_on_redis_count_after_a_restart() {
    let server = Server::start(Kind::Redis);
    records_outlive_a_restart(&format!("\"{}\"", server.url()));
}

/// A proxy that starts later counts what another one has stored.
#[test]
fn records_of_another_proxy_count() {
    let server = Server::start(Kind::Tiered);
    let store = server.url();
    let upstream = Upstream::echo();
    let first = start(&upstream, &store);
    for key in ["k1", "k2"] {
        assert_eq!(call(first.address, post("a", key, "x")).status, 200);
    }
    let second = start(&upstream, &store);
    check_counted(&second);
    check_counted(&first);
    assert_eq!(upstream.count(), 2);
}
