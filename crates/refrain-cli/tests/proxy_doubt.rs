//! Upstream failures must be reported truthfully: an unknown outcome as unknown, an unsent request as safe to retry,
//! and a late response must still settle the record.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use support::{
    AfterResponse, Client, HttpResponse, Parked, Proxy, Seen, Starting, Upstream, answer, call,
    get, post, request, until,
};

fn check(answer: &HttpResponse, status: u16, code: &str) {
    let told = (answer.status, answer.code());
    assert_eq!(told, (status, Some(code.into())), "{}", answer.text());
}

/// Checks a first request whose outcome is unknown, with this status, and the responses of its duplicates.
fn check_doubt(
    settings: &str,
    status: u16,
    script: impl Fn(&Seen, &mut TcpStream) -> AfterResponse + Send + Sync + 'static,
) {
    let upstream = Upstream::start(script);
    let proxy = Proxy::start(upstream.address, settings);
    let first = call(proxy.address, post("k", "x"));
    check(&first, status, "outcome-unknown");
    for _ in 0..2 {
        let later = call(proxy.address, post("k", "x"));
        check(&later, 409, "outcome-unknown");
        assert_eq!(later.header("retry-after"), None);
    }
    check(&call(proxy.address, post("k", "y")), 422, "key-reused");
    upstream.wait_for(1);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn late_response_is_an_unknown_outcome() {
    check_doubt("[policy]\ntimeout = \"200ms\"", 504, |_, _| {
        thread::sleep(support::PATIENCE);
        AfterResponse::Close
    });
}

#[test]
fn stalled_response_is_an_unknown_outcome() {
    check_doubt("[policy]\ntimeout = \"200ms\"", 504, |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfive.");
        thread::sleep(support::PATIENCE);
        AfterResponse::Close
    });
}

#[test]
fn connection_closed_without_a_response_is_an_unknown_outcome() {
    check_doubt("", 502, |_, _| AfterResponse::Close);
}

/// An operator who reads the log must know which payment it is, and what to do.
#[test]
fn unknown_outcome_is_one_line_of_the_log() {
    let upstream = Upstream::start(|_, _| AfterResponse::Close);
    let proxy = Proxy::start(upstream.address, "");
    let told = call(proxy.address, post("k", "x"));
    check(&told, 502, "outcome-unknown");
    check(&call(proxy.address, post("k", "x")), 409, "outcome-unknown");
    let record = told.header("refrain-record").unwrap();
    until("the unknown outcome is logged", || {
        proxy.errors().contains("outcome is unknown")
    });
    let log = proxy.errors();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    let [line] = lines[..] else {
        panic!("not one line: {lines:?}");
    };
    let upstream = format!("upstream=http://{}", upstream.address);
    for part in [
        record,
        "POST /orders",
        "reset",
        &upstream,
        "refrain records resolve",
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}

/// Responds without length and without chunks: only the end of the connection ends the body.
fn until_close(seen: &Seen, stream: &mut TcpStream) -> AfterResponse {
    let version = seen.header("x-version").unwrap_or("1.1");
    let answer = format!("HTTP/{version} 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it");
    stream.write_all(answer.as_bytes()).unwrap();
    AfterResponse::Close
}

#[test]
fn response_ended_by_close_is_an_unknown_outcome() {
    check_doubt("", 502, until_close);
    check_doubt("[policy]\nreply = \"stored\"", 502, |_, stream| {
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        AfterResponse::Close
    });
}

#[test]
fn response_ended_by_close_is_accepted_if_allowed() {
    let upstream = Upstream::start(until_close);
    let proxy = Proxy::start(upstream.address, "[proxy]\nhttp10_upstream = true");
    for version in ["1.0", "1.1"] {
        let headers = [("idempotency-key", version), ("x-version", version)];
        let bytes = request("POST /orders", &headers, b"x");
        for is_replay in [false, true] {
            let told = call(proxy.address, &bytes);
            let got = (told.status, told.text(), told.is_replay());
            assert_eq!(got, (200, "all of it", is_replay));
        }
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn an_unguarded_answer_may_end_with_its_connection() {
    let upstream = Upstream::start(until_close);
    let proxy = Proxy::start(upstream.address, "");
    for version in ["1.0", "1.1"] {
        let bytes = request("GET /", &[("x-version", version)], b"");
        let told = call(proxy.address, bytes);
        assert_eq!((told.status, told.text()), (200, "all of it"));
    }
}

#[test]
fn truncated_response_is_an_unknown_outcome() {
    for cut in [
        &b"HTTP/1.1 200 OK\r\ncontent-le"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfive.",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfive.\r\n",
    ] {
        check_doubt("", 502, move |_, stream| {
            stream.write_all(cut).unwrap();
            AfterResponse::Close
        });
    }
}

#[test]
fn malformed_response_is_an_unknown_outcome() {
    for noise in [
        &b"SSH-2.0-OpenSSH_9\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: y\r\n folded\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nfive.\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\nfive.\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ] {
        check_doubt("", 502, move |_, stream| {
            stream.write_all(noise).unwrap();
            // The proxy has to notice the broken connection before this upstream returns.
            thread::sleep(Duration::from_millis(200));
            let _ = stream.shutdown(Shutdown::Both);
            AfterResponse::Close
        });
    }
}

#[test]
fn outcome_that_arrives_after_a_504_is_replayed() {
    let (go_on, gone_on) = mpsc::channel();
    let gone_on = Mutex::new(gone_on);
    let upstream = Upstream::start(move |_, stream| {
        gone_on.lock().unwrap().recv().unwrap();
        answer(stream, "201 Created", &[("location", "/orders/1")], b"made")
    });
    let proxy = Proxy::start(upstream.address, "[policy]\ntimeout = \"200ms\"");
    check(&call(proxy.address, post("k", "x")), 504, "outcome-unknown");
    check(&call(proxy.address, post("k", "x")), 409, "outcome-unknown");
    go_on.send(()).unwrap();
    until("the outcome is stored", || {
        call(proxy.address, post("k", "x")).status == 201
    });
    let later = call(proxy.address, post("k", "x"));
    assert!(later.is_replay());
    assert_eq!(later.text(), "made");
    assert_eq!(later.header("location"), Some("/orders/1"));
    assert_eq!(upstream.count(), 1);
}

/// Short times, so that an attempt soon counts as unable to act.
const SETTLES_SOON: &str = "timeout = \"200ms\"\nlease = \"1s\"\nsettle_after = \"200ms\"";

/// An upstream that waits for a signal, then responds to its first request with `first`; later ones get 201.
fn late_upstream(first: &'static str) -> (Upstream, mpsc::Sender<()>) {
    let (go_on, gone_on) = mpsc::channel();
    let gone_on = Mutex::new(gone_on);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.start().starts_with("GET ") {
            return answer(stream, "404 Not Found", &[], b"");
        }
        if seen.at > 0 {
            return answer(stream, "201 Created", &[], b"second");
        }
        match gone_on.lock().unwrap().recv() {
            Ok(()) => answer(stream, first, &[], b"first"),
            Err(_) => AfterResponse::Close,
        }
    });
    (upstream, go_on)
}

fn awaits_late_responses(proxy: &Proxy, count: usize) {
    until("the late response is awaited, or no longer", || {
        proxy.metric("refrain_late_responses_awaited") == count as f64
    });
}

#[test]
fn a_response_after_settle_after_is_replayed() {
    let (upstream, go_on) = late_upstream("201 Created");
    let proxy = Proxy::start(upstream.address, &format!("[policy]\n{SETTLES_SOON}"));
    check(&call(proxy.address, post("k", "x")), 504, "outcome-unknown");
    awaits_late_responses(&proxy, 1);
    check(&call(proxy.address, post("k", "x")), 409, "outcome-unknown");
    go_on.send(()).unwrap();
    until("the outcome is known", || {
        call(proxy.address, post("k", "x")).status == 201
    });
    let later = call(proxy.address, post("k", "x"));
    assert_eq!((later.text(), later.is_replay()), ("first", true));
    assert_eq!(upstream.count(), 1);
    until("the resolution is counted", || {
        proxy.metric("refrain_resolutions_total") == 1.0
    });
}

/// No timeout of connections, of clients or of unguarded requests ends the wait.
#[test]
fn a_response_long_after_every_other_timeout_is_replayed() {
    let (go_on, gone_on) = mpsc::channel();
    let gone_on = Mutex::new(gone_on);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.start() == "GET /slow" {
            thread::sleep(support::PATIENCE);
            return AfterResponse::Close;
        }
        gone_on.lock().unwrap().recv().unwrap();
        answer(stream, "201 Created", &[], b"first")
    });
    let settings = format!(
        "[proxy]\nread_timeout = \"1s\"\nclient_timeout = \"1s\"\nkeep_alive = \"1s\"\n\
         upstream_idle = \"1s\"\n[policy]\n{SETTLES_SOON}"
    );
    let proxy = Proxy::start(upstream.address, &settings);
    check(&call(proxy.address, post("k", "x")), 504, "outcome-unknown");
    awaits_late_responses(&proxy, 1);
    // Each waits for a timeout as long as the others, and begins after the 504.
    for _ in 0..2 {
        assert_eq!(call(proxy.address, get("/slow")).status, 504);
    }
    check(&call(proxy.address, post("k", "x")), 409, "outcome-unknown");
    awaits_late_responses(&proxy, 1);
    go_on.send(()).unwrap();
    until("the outcome is known", || {
        call(proxy.address, post("k", "x")).status == 201
    });
    assert!(call(proxy.address, post("k", "x")).is_replay());
    let posts = upstream.seen().len() - 2;
    assert_eq!(posts, 1);
}

#[test]
fn a_late_refusal_frees_the_key() {
    let (upstream, go_on) = late_upstream("429 Too Many Requests");
    let proxy = Proxy::start(upstream.address, &format!("[policy]\n{SETTLES_SOON}"));
    check(&call(proxy.address, post("k", "x")), 504, "outcome-unknown");
    check(&call(proxy.address, post("k", "x")), 409, "outcome-unknown");
    go_on.send(()).unwrap();
    until("the key is free", || {
        call(proxy.address, post("k", "x")).status == 201
    });
    assert_eq!(call(proxy.address, post("k", "x")).text(), "second");
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_late_response_is_not_awaited_once_the_record_is_settled() {
    let (upstream, go_on) = late_upstream("201 Created");
    let settings = format!(
        "[[operation]]\nmatch = \"POST /orders\"\nprobe = \"GET /orders?key={{key}}\"\n{SETTLES_SOON}"
    );
    let proxy = Proxy::start(upstream.address, &settings);
    check(&call(proxy.address, post("k", "x")), 504, "outcome-unknown");
    until("the probe has freed the key", || {
        call(proxy.address, post("k", "x")).status == 201
    });
    awaits_late_responses(&proxy, 0);
    drop(go_on);
    assert_eq!(call(proxy.address, post("k", "x")).text(), "second");
}

/// Larger than the socket buffers of an upstream that does not read.
const LARGE: usize = 16 << 20;

/// Reads and discards up to `len` bytes of a body; returns their number.
fn swallow(stream: &mut TcpStream, len: usize) -> usize {
    let mut body = stream.take(len as u64);
    let mut bytes = vec![0; 1 << 20];
    let mut read = 0;
    while let Ok(more @ 1..) = body.read(&mut bytes) {
        read += more;
    }
    read
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

/// Otherwise the upstream could still read the rest of it, and execute it in addition to the retry.
#[test]
fn a_request_that_was_not_sent_completely_is_cut_before_its_key_is_free() {
    let (go_on, gone_on) = mpsc::channel();
    let (count, counted) = mpsc::channel();
    let first = Mutex::new(Some((gone_on, count)));
    let upstream = Upstream::raw(move |mut stream| {
        let head = read_head(&mut stream);
        if head.starts_with("GET ") {
            let none = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(none.as_bytes()).unwrap();
            return;
        }
        let waiting = first.lock().unwrap().take();
        if let Some((gone_on, count)) = waiting {
            gone_on.recv().unwrap();
            count.send(swallow(&mut stream, LARGE)).unwrap();
        } else if swallow(&mut stream, LARGE) == LARGE {
            answer(&mut stream, "201 Created", &[], b"second");
        }
    });
    let settings = "[proxy]\nthreads = 1\n[[operation]]\nmatch = \"POST /orders\"\nprobe = \"GET /orders?key={key}\"\nrequest_bytes_max = \"64MiB\"\ntimeout = \"2s\"\nlease = \"1s\"\nsettle_after = \"2s\"";
    let proxy = Proxy::start(upstream, settings);
    let order = post("k", &"x".repeat(LARGE));
    check(&call(proxy.address, &order), 504, "outcome-unknown");
    until("the probe has freed the key", || {
        call(proxy.address, &order).status == 201
    });
    go_on.send(()).unwrap();
    let read = counted.recv().unwrap();
    assert!(read < LARGE, "the upstream got the whole request");
}

#[test]
fn a_request_that_is_answered_early_is_still_sent_to_its_end() {
    let (go_on, gone_on) = mpsc::channel();
    let (count, counted) = mpsc::channel();
    let channels = Mutex::new((gone_on, count));
    let upstream = Upstream::raw(move |mut stream| {
        read_head(&mut stream);
        answer(&mut stream, "200 OK", &[], b"ok");
        let (gone_on, count) = &*channels.lock().unwrap();
        gone_on.recv().unwrap();
        count.send(swallow(&mut stream, LARGE)).unwrap();
    });
    let settings = "[policy]\nrequest_bytes_max = \"64MiB\"";
    let proxy = Proxy::start(upstream, settings);
    let told = call(proxy.address, post("k", &"x".repeat(LARGE)));
    assert_eq!((told.status, told.text()), (200, "ok"));
    go_on.send(()).unwrap();
    assert_eq!(counted.recv().unwrap(), LARGE);
}

#[test]
fn unsent_request_releases_the_key() {
    let parked = Parked::new();
    let proxy = Proxy::start(parked.address(), "");
    for _ in 0..2 {
        let answer = call(proxy.address, post("k", "x"));
        check(&answer, 502, "upstream-unreachable");
        let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(problem["advice"], "reuse-key");
    }
    // An unguarded request gets the same response.
    check(&call(proxy.address, get("/")), 502, "upstream-unreachable");
    let upstream = Upstream::on(parked.listen(), |_, stream| {
        answer(stream, "201 Created", &[], b"made")
    });
    let first = call(proxy.address, post("k", "x"));
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert!(call(proxy.address, post("k", "x")).is_replay());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn at_least_once_executes_again_after_unknown_outcome() {
    let upstream = Upstream::start(|seen, stream| match seen.at {
        0 => AfterResponse::Close,
        _ => answer(stream, "201 Created", &[], b"made"),
    });
    let settings = "[policy]\nguarantee = \"at-least-once\"\nlease = \"3s\"\ntimeout = \"10s\"";
    let proxy = Proxy::start(upstream.address, settings);
    let first = call(proxy.address, post("k", "x"));
    check(&first, 502, "outcome-unknown");
    // The advice is to retry, not to ask: a retry will execute the request.
    assert!(first.text().contains("\"advice\":\"wait\""), "{first:?}");
    until("it ran again", || {
        call(proxy.address, post("k", "x")).status == 201
    });
    assert!(call(proxy.address, post("k", "x")).is_replay());
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].header("refrain-attempt"), Some("2"));
}

#[test]
fn probe_resolves_an_unknown_outcome() {
    let is_known = Mutex::new(false);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.start().starts_with("GET ") {
            return answer(stream, "200 OK", &[], b"found");
        }
        let is_first = !std::mem::replace(&mut *is_known.lock().unwrap(), true);
        assert!(is_first, "the request ran twice");
        AfterResponse::Close
    });
    let settings = r#"
[[operation]]
match = "POST /orders"
probe = "GET /orders?key={key}"
timeout = "8s"
lease = "1s"
settle_after = "8s"
"#;
    let proxy = Proxy::start(upstream.address, settings);
    check(&call(proxy.address, post("k", "x")), 502, "outcome-unknown");
    until("the probe has resolved the outcome", || {
        call(proxy.address, post("k", "x")).status == 200
    });
    let later = call(proxy.address, post("k", "x"));
    assert_eq!(later.text(), "found");
    let seen = upstream.seen();
    assert_eq!(seen[1].start(), "GET /orders?key=k");
    let posts = seen.iter().filter(|it| it.start() == "POST /orders");
    assert_eq!(posts.count(), 1);
}

#[test]
fn an_unguarded_request_gets_an_honest_502_and_504() {
    let upstream = Upstream::start(|seen, _| {
        if seen.start() == "GET /slow" {
            thread::sleep(support::PATIENCE);
        }
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nread_timeout = \"200ms\"");
    assert_eq!(call(proxy.address, get("/slow")).status, 504);
    // With the default timeout, which no response here comes near.
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(call(proxy.address, get("/")).status, 502);
    let keyless = request("POST /orders", &[], b"x");
    assert_eq!(call(proxy.address, keyless).status, 502);
    upstream.wait_for(3);
    assert_eq!(upstream.count(), 3);
}

/// A proxy whose disk can be filled.
fn on_a_small_disk(upstream: &Upstream, settings: &str) -> Proxy {
    Starting::new()
        .outliving_full_disks()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "file:records")
        .file(settings)
        .start()
}

#[test]
fn while_the_store_fails_nothing_runs_unless_told_to() {
    let upstream = Upstream::echo();
    let settings = "[[operation]]\nmatch = \"POST /pass\"\non_store_failure = \"pass\"";
    let proxy = on_a_small_disk(&upstream, settings);
    assert_eq!(call(proxy.address, post("before", "x")).status, 200);
    proxy.fill_disk();
    for key in ["a", "a", "b"] {
        let refused = call(proxy.address, post(key, "x"));
        check(&refused, 503, "store-unavailable");
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(upstream.count(), 1);
    // Requests that need no store still work.
    assert_eq!(call(proxy.address, get("/")).status, 200);
    let passed = request("POST /pass", &[("idempotency-key", "c")], b"x");
    assert_eq!(call(proxy.address, passed).status, 200);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn claims_that_fail_are_logged_at_a_bounded_rate() {
    let upstream = Upstream::echo();
    let proxy = on_a_small_disk(&upstream, "");
    proxy.fill_disk();
    let since = tokio::time::Instant::now();
    let mut client = Client::connect(proxy.address);
    for at in 0..500 {
        let refused = client.send(post(&format!("k{at}"), "x")).answer();
        check(&refused, 503, "store-unavailable");
    }
    until("a failed claim is logged", || {
        proxy.errors().contains("claim failed")
    });
    let seconds = usize::try_from(since.elapsed().as_secs()).unwrap();
    let log = proxy.errors();
    let lines = log.lines().filter(|line| line.contains("claim failed"));
    let lines = lines.count();
    assert!(
        (1..=2 + seconds).contains(&lines),
        "{lines} lines in {seconds} s"
    );
    // Suppressed lines are counted in the next one.
    until("suppressed lines are counted", || {
        check(
            &call(proxy.address, post("more", "x")),
            503,
            "store-unavailable",
        );
        let log = proxy.errors();
        let mut counts = log
            .lines()
            .filter_map(|line| line.split("suppressed=").nth(1));
        counts.any(|count| !count.starts_with('0'))
    });
}

#[test]
fn an_outcome_that_cannot_be_stored_is_not_told() {
    let (full, filled) = mpsc::channel::<()>();
    let filled = Mutex::new(filled);
    let upstream = Upstream::start(move |_, stream| {
        let _ = filled.lock().unwrap().recv();
        answer(stream, "201 Created", &[], b"made")
    });
    let proxy = on_a_small_disk(&upstream, "");
    let mut client = Client::connect(proxy.address);
    client.send(post("k", "x"));
    upstream.wait_for(1);
    proxy.fill_disk();
    full.send(()).unwrap();
    check(&client.answer(), 503, "outcome-unknown");
    let later = call(proxy.address, post("k", "x"));
    assert!([409, 503].contains(&later.status), "{}", later.head);
    assert_eq!(upstream.count(), 1);
}
