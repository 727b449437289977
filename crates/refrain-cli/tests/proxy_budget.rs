//! Clients that send large bodies and never finish must not exhaust memory: buffered bodies have a total limit.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use support::{Client, HttpResponse, Proxy, Upstream, call, get, post, request, until};

const MIB: usize = 1 << 20;
const USED: &str = "refrain_buffered_body_bytes";
const REFUSED: &str = "refrain_over_budget_total";

/// A client that declares 8 MiB less one byte, sends `len` bytes of it, and then stops.
fn unfinished(proxy: &Proxy, key: &str, len: usize) -> Client {
    let mut client = Client::connect(proxy.address);
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n",
        8 * MIB - 1
    );
    client.send(head).send(vec![b'x'; len]);
    client
}

fn check_refused(told: &HttpResponse) {
    assert_eq!(
        (told.status, told.code().as_deref()),
        (503, Some("over-budget"))
    );
    assert_eq!(told.header("retry-after"), Some("1"));
    assert!(
        told.text().contains(r#""advice":"wait""#),
        "{}",
        told.text()
    );
}

#[test]
fn unfinished_bodies_take_no_more_memory_than_the_budget() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nbuffered_bytes_max = \"32MiB\"");
    let before = proxy.memory_high();
    let clients: Vec<_> = (0..40)
        .map(|at| unfinished(&proxy, &format!("k{at}"), 7 * MIB))
        .collect();
    // 28 MiB are available for large bodies: four fit, the others are rejected.
    until("the others are refused", || proxy.metric(REFUSED) >= 36.0);
    let used = proxy.metric(USED);
    assert!((1.0..=32.0 * 1_048_576.0).contains(&used), "{used}");
    let grown = proxy.memory_high() - before;
    assert!(grown < 110 << 10, "{grown} KiB");
    assert_eq!(upstream.count(), 0);
    drop(clients);
    until("all memory is released", || proxy.metric(USED) == 0.0);
}

#[test]
fn beyond_the_budget_large_bodies_are_refused_and_small_ones_still_run() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nbuffered_bytes_max = \"10MiB\"");
    let mut first = unfinished(&proxy, "first", 7 * MIB);
    until("it is read", || proxy.metric(USED) >= (7 * MIB) as f64);
    // The declared length does not count: this request is only rejected once it sends too much.
    let mut promising = unfinished(&proxy, "promising", 10);
    let refused = call(proxy.address, post("large", &"x".repeat(3 * MIB)));
    check_refused(&refused);
    assert_eq!(call(proxy.address, post("small", "x")).status, 200);
    assert_eq!(upstream.count(), 1);
    promising.send(vec![b'x'; 3 * MIB]);
    check_refused(&promising.answer());
    // Requests that are not buffered are not limited.
    let keyless = request("POST /orders", &[], &vec![b'x'; 6 * MIB]);
    assert_eq!(call(proxy.address, keyless).status, 200);
    assert_eq!(call(proxy.address, get("/")).status, 200);
    assert!(proxy.metric(REFUSED) >= 2.0);
    // A rejected request leaves no record.
    first.say_no_more();
    until("its memory is released", || proxy.metric(USED) == 0.0);
    let again = call(proxy.address, post("large", &"x".repeat(3 * MIB)));
    assert_eq!((again.status, again.is_replay()), (200, false));
    until("its memory is released", || proxy.metric(USED) == 0.0);
}

#[test]
fn captured_answers_count_and_are_never_refused() {
    // Larger than the socket buffers of a client that does not read.
    const LARGE: usize = 32 * MIB;
    let upstream =
        Upstream::start(|_, stream| support::answer(stream, "200 OK", &[], &vec![b'x'; LARGE]));
    let settings =
        "[proxy]\nbuffered_bytes_max = \"4MiB\"\n[policy]\noutcome_bytes_max = \"64MiB\"";
    let proxy = Proxy::start(upstream.address, settings);
    let told = call(proxy.address, post("k", "x"));
    assert_eq!((told.status, told.body.len()), (200, LARGE));
    until("its memory is released", || proxy.metric(USED) == 0.0);
    // A client that does not read its response keeps it in memory: meanwhile other large requests are rejected.
    let mut slow = Client::connect(proxy.address);
    slow.send(post("slow", "x"));
    until("it is captured", || proxy.metric(USED) >= LARGE as f64);
    check_refused(&call(proxy.address, post("other", &"x".repeat(MIB))));
    assert_eq!(slow.answer().body.len(), LARGE);
    until("its memory is released", || proxy.metric(USED) == 0.0);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn replays_count_until_slow_clients_have_them() {
    // Larger than the socket buffers of a client that does not read.
    const LARGE: usize = 16 * MIB;
    let upstream =
        Upstream::start(|_, stream| support::answer(stream, "200 OK", &[], &vec![b'x'; LARGE]));
    let settings = "[proxy]\nbuffered_bytes_max = \"64MiB\"\nclient_timeout = \"10m\"\n[policy]\noutcome_bytes_max = \"64MiB\"";
    let proxy = Proxy::start(upstream.address, settings);
    assert_eq!(call(proxy.address, post("k", "x")).body.len(), LARGE);
    until("its memory is released", || proxy.metric(USED) == 0.0);
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let mut client = Client::connect_narrow(proxy.address);
            client.send(post("k", "x"));
            client
        })
        .collect();
    // 56 MiB are available for large bodies: three fit, the others are rejected.
    until("the others are refused", || proxy.metric(REFUSED) >= 7.0);
    assert!(proxy.metric(USED) >= (3 * LARGE) as f64);
    let mut replays = Vec::new();
    for mut client in clients {
        let mut told = client.head().unwrap();
        if told.status == 200 {
            replays.push(client);
        } else {
            let len = told.header("content-length").unwrap().parse().unwrap();
            told.body = client.exactly(len);
            check_refused(&told);
        }
    }
    assert_eq!(replays.len(), 3);
    // One client leaves, the others read.
    replays.pop();
    for mut client in replays {
        assert_eq!(client.exactly(LARGE).len(), LARGE);
    }
    until("all memory is released", || proxy.metric(USED) == 0.0);
    assert_eq!(upstream.count(), 1);
}
