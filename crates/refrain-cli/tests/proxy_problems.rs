//! Every response of the proxy's own must be a problem with a code, an advice and a page; no connection is closed
//! without a response.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{thread, time::Duration};

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{
    AfterResponse, Client, HttpResponse, Parked, Proxy, Upstream, answer, call, get, post, request,
    until,
};

/// Checks that the response is this problem and links to its page.
fn check(proxy: &Proxy, told: &HttpResponse, status: u16, code: &str, advice: &str) {
    assert_eq!((told.status, told.code().as_deref()), (status, Some(code)));
    let problem: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    let page = format!("/.well-known/refrain/problems/{code}");
    assert_eq!(problem["type"], page.as_str());
    assert_eq!(problem["status"], status, "{code}");
    assert_eq!(problem["advice"], advice, "{code}");
    assert!(!problem["title"].as_str().unwrap().is_empty(), "{code}");
    assert!(problem["detail"].as_str().unwrap().ends_with('.'), "{code}");
    let link = format!("<{page}>; rel=\"describedby\"");
    assert_eq!(told.header("link"), Some(&*link), "{code}");
    let shown = call(proxy.address, get(&page));
    assert_eq!(shown.status, 200, "{code}");
    assert!(shown.text().contains(&format!("`{code}`")), "{code}");
}

fn refused_heads(proxy: &Proxy, code: &str) -> f64 {
    proxy.metric(&format!("refrain_refused_heads_total{{code=\"{code}\"}}"))
}

/// The HTTP/2 library itself rejects heads that are too large for it, without a body.
#[tokio::test]
async fn a_head_too_large_over_http_2_is_a_problem() {
    let upstream = Upstream::echo();
    let settings = "[proxy]\nheaders_max = 20\nhead_bytes_max = \"8KiB\"";
    let proxy = Proxy::start(upstream.address, settings);
    let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let large = [("x", "x".repeat(9 << 10))].to_vec();
    let many = vec![("x", "y".to_owned()); 21];
    // HTTP/2 clients may split cookies; they are one field to the proxy.
    let cookies = vec![("cookie", "a=b".to_owned()); 40];
    for (fields, status) in [(large, 431), (many, 431), (cookies, 200)] {
        let mut request = Request::get("http://shop.test/a");
        for (name, value) in &fields {
            request = request.header(*name, value);
        }
        let request = request.body(String::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status, "{}", fields[0].0);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        if status == 431 {
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["code"], "head-too-large");
            assert_eq!(problem["advice"], "new-key");
        }
    }
    assert_eq!(refused_heads(&proxy, "head-too-large"), 2.0);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn malformed_request_gets_a_problem_response() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nheaders_max = 20");
    let chunked = |key: &str| {
        format!("POST /a HTTP/1.1\r\nhost: a\r\n{key}transfer-encoding: chunked\r\n\r\nx\r\n")
    };
    let many = "x: y\r\n".repeat(30);
    for (bytes, status, code) in [
        ("GET /\r\n\r\n".to_owned(), 400, "request-malformed"),
        (
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            400,
            "request-malformed",
        ),
        (chunked("idempotency-key: k\r\n"), 400, "request-malformed"),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)),
            414,
            "target-too-long",
        ),
        (
            format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"),
            431,
            "head-too-large",
        ),
        (
            "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n".to_owned(),
            501,
            "method-unsupported",
        ),
    ] {
        let mut client = Client::connect(proxy.address);
        let told = client.send(bytes).answer();
        check(&proxy, &told, status, code, "new-key");
        assert!(client.is_closed(), "{code}");
    }
    for (code, count) in [
        ("request-malformed", 2.0),
        ("target-too-long", 1.0),
        ("head-too-large", 1.0),
        ("method-unsupported", 1.0),
        ("request-timeout", 0.0),
    ] {
        assert_eq!(refused_heads(&proxy, code), count, "{code}");
    }
    // A part of an unguarded request may have been forwarded, so the proxy cannot claim that nothing ran.
    let told = call(proxy.address, chunked(""));
    check(&proxy, &told, 400, "request-malformed", "ask");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn slow_clients_are_told_so_before_they_are_closed() {
    let upstream = Upstream::echo();
    let settings = "[proxy]\nhead_timeout = \"300ms\"\nclient_timeout = \"300ms\"";
    let proxy = Proxy::start(upstream.address, settings);
    let body = "content-length: 9\r\n\r\n1234";
    let keyed = "POST /a HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\n";
    for (bytes, advice) in [
        ("GET / HTTP/1.1\r\nhost:".to_owned(), "reuse-key"),
        ("P".to_owned(), "reuse-key"),
        (format!("{keyed}{body}"), "reuse-key"),
        (
            format!("{keyed}transfer-encoding: chunked\r\n\r\n9\r\n1"),
            "reuse-key",
        ),
        // A part of it may have been forwarded.
        (format!("POST /a HTTP/1.1\r\nhost: a\r\n{body}"), "ask"),
    ] {
        let mut client = Client::connect(proxy.address);
        let told = client.send(&bytes).answer();
        check(&proxy, &told, 408, "request-timeout", advice);
        assert_eq!(told.header("connection"), Some("close"), "{bytes:?}");
        assert!(client.is_closed(), "{bytes:?}");
    }
    assert_eq!(upstream.count(), 0);
    // Two requests without a complete head; the others are rejected because of their body.
    assert_eq!(refused_heads(&proxy, "request-timeout"), 2.0);
    // The key is still free.
    assert_eq!(call(proxy.address, post("k", "x")).status, 200);
}

#[test]
fn idle_connection_is_closed_without_a_response() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nkeep_alive = \"5s\"");
    let mut fresh = Client::connect(proxy.address);
    let mut used = Client::connect(proxy.address);
    assert_eq!(used.send(get("/")).answer().status, 200);
    assert!(fresh.is_closed());
    assert!(used.is_closed());
}

#[test]
fn an_upstream_that_does_not_answer_is_a_problem_for_unguarded_requests_too() {
    let upstream = Upstream::start(|seen, stream| match seen.start() {
        "GET /slow" => {
            thread::sleep(Duration::from_secs(3));
            AfterResponse::Close
        }
        "GET /none" => {
            let _ = std::io::Write::write_all(stream, b"nonsense\r\n\r\n");
            AfterResponse::Close
        }
        "GET /switched" => {
            let _ = std::io::Write::write_all(stream, b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
            AfterResponse::Close
        }
        _ => AfterResponse::Close,
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nread_timeout = \"200ms\"");
    let told = call(proxy.address, get("/slow"));
    check(&proxy, &told, 504, "upstream-timeout", "ask");
    // With the default timeout, which no response here comes near.
    let proxy = Proxy::start(upstream.address, "");
    for start in ["GET /", "GET /none", "GET /switched", "POST /orders"] {
        let told = call(proxy.address, request(start, &[], b""));
        check(&proxy, &told, 502, "upstream-failed", "ask");
    }
    let nobody = Parked::new();
    let proxy = Proxy::start(nobody.address(), "");
    for start in ["GET /", "POST /orders"] {
        let told = call(proxy.address, request(start, &[], b""));
        check(&proxy, &told, 502, "upstream-unreachable", "reuse-key");
    }
}

#[test]
fn requests_that_the_drain_cuts_are_logged() {
    let upstream = Upstream::start(|_, stream| {
        // Returns when the proxy exits.
        let _ = std::io::Read::read(stream, &mut [0]);
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\ndrain = \"300ms\"");
    let mut unguarded = Client::connect(proxy.address);
    unguarded.send(get("/reports/7?token=secret"));
    let mut guarded = Client::connect(proxy.address);
    guarded.send(post("k-secret", "x"));
    let mut hung_up = Client::connect(proxy.address);
    hung_up.send(post("gone", "x"));
    upstream.wait_for(3);
    drop(hung_up);
    until("the hang-up is noticed", || {
        proxy.metric("refrain_connections") == 2.0
    });
    let _idle = Client::connect(proxy.address);
    proxy.terminate();
    until("the cut requests are logged", || {
        let log = proxy.errors();
        let has = |text: &str| {
            log.lines()
                .any(|line| line.contains("cut") && line.contains(text))
        };
        has("/reports/7") && has("/orders")
    });
    let log = proxy.errors();
    assert_eq!(log.matches("cut off by the shutdown").count(), 2, "{log}");
    assert!(log.contains("2 guarded"), "{log}");
    assert!(!log.contains("secret"), "{log}");
    assert!(proxy.ended().success());
}

#[test]
fn requests_that_a_second_signal_cuts_are_logged() {
    let upstream = Upstream::start(|_, stream| {
        // Returns when the proxy exits.
        let _ = std::io::Read::read(stream, &mut [0]);
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\ndrain = \"1h\"");
    let mut unguarded = Client::connect(proxy.address);
    unguarded.send(get("/reports/7"));
    let mut guarded = Client::connect(proxy.address);
    guarded.send(post("k", "x"));
    upstream.wait_for(2);
    proxy.terminate();
    // The proxy is draining: it has received the first signal.
    until("it takes no more connections", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    });
    proxy.terminate();
    until("the cut requests are logged", || {
        proxy.errors().matches("cut off by the shutdown").count() == 2
    });
    assert!(proxy.errors().contains("1 guarded"), "{}", proxy.errors());
    assert!(proxy.ended().success());
}

#[test]
fn a_drain_that_cuts_nothing_logs_nothing() {
    let upstream = Upstream::start(|_, stream| {
        thread::sleep(Duration::from_millis(200));
        answer(stream, "200 OK", &[], b"")
    });
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    client.send(post("k", "x"));
    upstream.wait_for(1);
    proxy.terminate();
    assert_eq!(client.answer().status, 200);
    let log = proxy.folder().join("stderr");
    let kept = std::fs::File::open(log).unwrap();
    assert!(proxy.ended().success());
    let log = std::io::read_to_string(kept).unwrap();
    assert!(!log.contains("cut"), "{log}");
}
