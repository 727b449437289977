//! What an HTTP client sees of a guarded operation, row by row of the contract, from the real binary.
//!
//! Responses after upstream failures are tested in `proxy_doubt.rs`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use support::{
    AfterResponse, Client, HttpResponse, Proxy, Seen, Upstream, answer, call, find, get, post,
    request, until,
};

/// Responds with the status in the request's `x-status` and a counter.
fn obeying(seen: &Seen, stream: &mut TcpStream) -> AfterResponse {
    let status = seen.header("x-status").unwrap_or("201 Created");
    let mut headers = vec![("content-type", "text/plain")];
    headers.extend(seen.header("x-say").map(|said| ("refrain-outcome", said)));
    answer(stream, status, &headers, seen.at.to_string().as_bytes())
}

/// Checks every member of a problem, and that its page exists.
fn check_problem(proxy: &Proxy, answer: &HttpResponse, status: u16, code: &str, advice: &str) {
    assert_eq!(answer.status, status, "{} {}", answer.head, answer.text());
    assert_eq!(answer.code().as_deref(), Some(code), "{}", answer.text());
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["advice"], advice);
    for member in ["title", "detail"] {
        assert!(!problem[member].as_str().unwrap().is_empty(), "{problem}");
    }
    let page = problem["type"].as_str().unwrap();
    let link = format!("<{page}>; rel=\"describedby\"");
    assert_eq!(answer.header("link"), Some(&*link));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let page = call(proxy.address, get(page));
    assert_eq!(page.status, 200, "{}", page.head);
    assert!(page.text().contains(code), "{}", page.text());
}

#[test]
fn strips_reserved_request_headers_of_clients() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let forged = [
        ("refrain-attempt", "7"),
        ("Refrain-Record", "00"),
        ("refrain-fence", "9.9.9"),
        ("refrain-outcome", "keep"),
        ("refrain-anything", "x"),
        ("Refrain_Fence", "9.9.9"),
        ("refrain_record-x", "00"),
    ];
    let keyed = [&forged[..], &[("idempotency-key", "k")]].concat();
    call(proxy.address, request("GET /a", &forged, b""));
    call(proxy.address, request("PUT /a", &forged, b"x"));
    call(proxy.address, request("POST /orders", &forged, b"x"));
    call(proxy.address, request("POST /orders", &keyed, b"x"));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 4);
    for (at, seen) in seen.iter().enumerate() {
        let attempt = seen.header("refrain-attempt");
        assert_eq!(attempt, (at == 3).then_some("1"), "{}", seen.head);
        let head = seen.head.to_lowercase();
        let told = head.replace('_', "-").matches("refrain-").count();
        assert_eq!(told, usize::from(at == 3), "{}", seen.head);
    }
}

#[test]
fn the_first_answer_is_the_operations_own_and_duplicates_get_its_bytes_again() {
    let body: Vec<u8> = (0..=255).cycle().take(70_001).collect();
    let sent = body.clone();
    let upstream = Upstream::start(move |_, stream| {
        let headers = [
            ("content-type", "application/x-thing"),
            ("location", "/orders/7"),
            ("etag", "\"e\""),
            ("link", "</next>; rel=next"),
            ("set-cookie", "a=b"),
            ("x-trace", "t1"),
            ("cache-control", "private"),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ];
        answer(stream, "203 Very Odd", &headers, &sent)
    });
    let proxy = Proxy::durable(upstream.address, "");
    let first = call(proxy.address, post("abc", "{\"amount\": 1}"));
    assert_eq!((first.status, &first.body), (203, &body));
    for (name, value) in [
        ("set-cookie", "a=b"),
        ("x-trace", "t1"),
        ("cache-control", "private"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("location", "/orders/7"),
    ] {
        assert_eq!(first.header(name), Some(value));
    }
    assert!(!first.is_replay());
    for _ in 0..2 {
        let again = call(proxy.address, post("abc", "{\"amount\": 1}"));
        assert_eq!((again.status, &again.body), (203, &body));
        assert!(again.is_replay());
        assert_eq!(again.header("cache-control"), Some("no-store"));
        for name in ["content-type", "location", "etag", "link"] {
            assert_eq!(again.header(name), first.header(name), "{name}");
        }
        for name in ["set-cookie", "x-trace"] {
            assert_eq!(again.header(name), None, "{name}");
        }
        assert_ne!(again.header("date"), first.header("date"));
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("idempotency-key"), Some("abc"));
    assert_eq!(seen[0].header("refrain-attempt"), Some("1"));
    assert_eq!(seen[0].body, b"{\"amount\": 1}");
}

#[test]
fn an_outcome_outlives_the_process() {
    let upstream = Upstream::start(obeying);
    let starting = support::Starting::new();
    let records = tempfile::tempdir().unwrap();
    let start = |starting: support::Starting| {
        starting
            .arg("--upstream", format!("http://{}", upstream.address))
            .arg("--store", format!("file:{}", records.path().display()))
            .start()
    };
    let proxy = start(starting);
    let first = call(proxy.address, post("k", "x"));
    // Dropping kills the proxy without a graceful shutdown.
    drop(proxy);
    let proxy = start(support::Starting::new());
    let again = call(proxy.address, post("k", "x"));
    assert!(again.is_replay());
    assert_eq!((again.status, again.body), (first.status, first.body));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_duplicate_waits_for_the_one_in_flight_and_gets_its_outcome() {
    let upstream = Upstream::start(|_, stream| {
        thread::sleep(Duration::from_millis(300));
        answer(stream, "201 Created", &[], b"made")
    });
    let proxy = Proxy::start(upstream.address, "[policy]\nwait = \"10s\"");
    let address = proxy.address;
    let callers: Vec<_> = (0..5)
        .map(|_| thread::spawn(move || call(address, post("k", "x"))))
        .collect();
    let answers: Vec<_> = callers.into_iter().map(|it| it.join().unwrap()).collect();
    for answer in &answers {
        assert_eq!((answer.status, answer.text()), (201, "made"));
    }
    let replays = answers.iter().filter(|answer| answer.is_replay()).count();
    assert_eq!((replays, upstream.count()), (4, 1));
}

#[test]
fn a_duplicate_that_waited_long_enough_is_told_to_come_back() {
    let (go_on, gone_on) = mpsc::channel();
    let gone_on = Mutex::new(gone_on);
    let upstream = Upstream::start(move |_, stream| {
        gone_on.lock().unwrap().recv().unwrap();
        answer(stream, "201 Created", &[], b"made")
    });
    let proxy = Proxy::start(upstream.address, "[policy]\nwait = \"100ms\"");
    let mut first = Client::connect(proxy.address);
    first.send(post("k", "x"));
    upstream.wait_for(1);
    let early = call(proxy.address, post("k", "x"));
    check_problem(&proxy, &early, 409, "in-flight", "wait");
    let after: u32 = early.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&after), "{after}");
    // A different request with the same key is rejected, whether or not the first one has ended.
    let other = call(proxy.address, post("k", "y"));
    check_problem(&proxy, &other, 422, "key-reused", "new-key");
    go_on.send(()).unwrap();
    assert_eq!(first.answer().text(), "made");
    assert!(call(proxy.address, post("k", "x")).is_replay());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn the_same_key_for_another_request_is_refused() {
    let upstream = Upstream::start(obeying);
    let proxy = Proxy::start(upstream.address, "");
    let key = ("idempotency-key", "k");
    let json = ("content-type", "application/json");
    let send = |start: &str, body: &str| {
        let bytes = request(start, &[key, json], body.as_bytes());
        call(proxy.address, bytes)
    };
    let first = send("POST /orders?a=1", r#"{"amount": 1, "to": "x"}"#);
    assert_eq!(first.status, 201);
    // Member order and white space do not change the fingerprint.
    assert!(send("POST /orders?a=1", r#"{"to":"x","amount":1}"#).is_replay());
    for (start, body) in [
        ("POST /orders?a=1", r#"{"amount": 2, "to": "x"}"#),
        ("POST /orders?a=1", r#"{"amount": 1.0, "to": "x"}"#),
        ("POST /orders?a=2", r#"{"amount": 1, "to": "x"}"#),
        ("POST /orders", r#"{"amount": 1, "to": "x"}"#),
        ("POST /order?a=1", r#"{"amount": 1, "to": "x"}"#),
        ("PATCH /orders?a=1", r#"{"amount": 1, "to": "x"}"#),
    ] {
        let other = send(start, body);
        check_problem(&proxy, &other, 422, "key-reused", "new-key");
    }
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_key_is_there_where_required_and_well_formed_everywhere() {
    let upstream = Upstream::start(obeying);
    let settings = "[[operation]]\nmatch = \"POST /orders\"\nrequired = true";
    let proxy = Proxy::start(upstream.address, settings);
    let send = |keys: &[&str]| {
        let headers: Vec<_> = keys.iter().map(|key| ("Idempotency-Key", *key)).collect();
        call(proxy.address, request("POST /orders", &headers, b"x"))
    };
    check_problem(&proxy, &send(&[]), 400, "key-missing", "new-key");
    let long = "k".repeat(256);
    for keys in [
        &["a", "a"][..],
        &["a", "b"],
        &[&long],
        &[""],
        &["\"\""],
        &["a b"],
        &["\"a"],
        &["\"a\"b"],
        &["k\u{e9}"],
        &["a\tb"],
    ] {
        check_problem(&proxy, &send(keys), 400, "key-invalid", "new-key");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(send(&[&long[1..]]).status, 201);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_quoted_key_is_the_bare_one_unless_strict() {
    let upstream = Upstream::start(obeying);
    let settings = "[[operation]]\nmatch = \"POST /strict\"\nsyntax = \"strict\"";
    let proxy = Proxy::start(upstream.address, settings);
    let send = |path: &str, key: &str| {
        let start = format!("POST {path}");
        call(
            proxy.address,
            request(&start, &[("idempotency-key", key)], b"x"),
        )
    };
    assert!(!send("/orders", "\"abc\"").is_replay());
    assert!(send("/orders", "abc").is_replay());
    assert!(send("/orders", "\"abc\"").is_replay());
    check_problem(&proxy, &send("/strict", "q"), 400, "key-invalid", "new-key");
    assert_eq!(send("/strict", "\"q\"").status, 201);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header("idempotency-key"), Some("\"abc\""));
}

#[test]
fn a_request_without_a_key_runs_each_time() {
    let upstream = Upstream::start(obeying);
    let proxy = Proxy::start(upstream.address, "");
    for at in 0..3 {
        let answer = call(proxy.address, request("POST /orders", &[], b"x"));
        assert_eq!((answer.status, answer.text()), (201, &*at.to_string()));
    }
}

#[test]
fn a_body_over_the_cap_is_passed_on_whole_and_never_run_again() {
    let upstream = Upstream::start(|_, stream| {
        answer(
            stream,
            "201 Created",
            &[("location", "/big/1")],
            &[7; 5_000],
        )
    });
    let proxy = Proxy::start(upstream.address, "[policy]\noutcome_bytes_max = \"1KiB\"");
    let first = call(proxy.address, post("k", "x"));
    assert_eq!((first.status, first.body), (201, vec![7; 5_000]));
    let again = call(proxy.address, post("k", "x"));
    check_problem(&proxy, &again, 409, "body-not-kept", "ask");
    let problem: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!(problem["original_status"], 201);
    assert_eq!(again.header("location"), Some("/big/1"));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_request_over_the_cap_is_refused_and_not_run() {
    let upstream = Upstream::start(obeying);
    let proxy = Proxy::start(upstream.address, "[policy]\nrequest_bytes_max = \"1KiB\"");
    let large = "x".repeat(1_025);
    let answer = call(proxy.address, post("k", &large));
    check_problem(&proxy, &answer, 413, "request-too-large", "new-key");
    let head = "POST /orders HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{head}401\r\n{large}\r\n0\r\n\r\n");
    let answer = call(proxy.address, chunked);
    check_problem(&proxy, &answer, 413, "request-too-large", "new-key");
    assert_eq!(upstream.count(), 0);
    assert_eq!(call(proxy.address, post("k", &large[1..])).status, 201);
}

#[test]
fn after_retention_a_key_is_refused_and_not_run_again() {
    let upstream = Upstream::start(obeying);
    let settings = "[policy]\nretention = \"1s\"\nremember = \"1h\"";
    let proxy = Proxy::start(upstream.address, settings);
    assert_eq!(call(proxy.address, post("k", "x")).status, 201);
    until("retention has ended", || {
        !call(proxy.address, post("k", "x")).is_replay()
    });
    let late = call(proxy.address, post("k", "x"));
    check_problem(&proxy, &late, 410, "key-expired", "ask");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn another_credential_neither_sees_nor_runs_and_another_scope_is_another_key() {
    let upstream = Upstream::start(obeying);
    let proxy = Proxy::start(upstream.address, "");
    let send = |headers: &[(&str, &str)]| {
        let headers = [&[("idempotency-key", "k")], headers].concat();
        call(proxy.address, request("POST /orders", &headers, b"x"))
    };
    let ann = ("authorization", "Basic YW5uOm9uZQ==");
    assert_eq!(send(&[ann]).text(), "0");
    assert!(send(&[ann]).is_replay());
    // The same user with another password, and with another session.
    for other in [
        &[("authorization", "Basic YW5uOnR3bw==")][..],
        &[ann, ("cookie", "session=1")],
    ] {
        check_problem(&proxy, &send(other), 409, "credential-changed", "ask");
    }
    assert_eq!(upstream.count(), 1);
    // Bob's keys are separate from Ann's.
    let bob = send(&[("authorization", "Basic Ym9iOm9uZQ==")]);
    assert_eq!((bob.is_replay(), bob.text()), (false, "1"));
    let nobody = send(&[]);
    assert_eq!((nobody.is_replay(), nobody.text()), (false, "2"));
    // So are those of each API key.
    let api_key = send(&[ann, ("x-api-key", "z")]);
    assert_eq!((api_key.is_replay(), api_key.text()), (false, "3"));
}

#[test]
fn statuses_are_stored_or_released_as_documented() {
    let upstream = Upstream::start(obeying);
    let settings = r#"
[[operation]]
match = "POST /most"
[[operation]]
match = "POST /least"
guarantee = "at-least-once"
[[operation]]
match = "POST /own"
keep = [429]
release = ["5xx", 404]
"#;
    let proxy = Proxy::start(upstream.address, settings);
    let check = |path: &str, status: u16, said: Option<&str>, is_kept: bool| {
        let key = format!("{path}-{status}-{}", said.unwrap_or("nothing"));
        let status_line = format!("{status} Status");
        let mut headers = vec![("idempotency-key", &*key), ("x-status", &*status_line)];
        headers.extend(said.map(|said| ("x-say", said)));
        let bytes = request(&format!("POST {path}"), &headers, b"x");
        let (first, again) = (call(proxy.address, &bytes), call(proxy.address, &bytes));
        for answer in [&first, &again] {
            assert_eq!(answer.status, status, "{path} {}", answer.head);
            assert_eq!(answer.header("refrain-outcome"), None, "{path} {status}");
        }
        assert!(!first.is_replay());
        assert_eq!(again.is_replay(), is_kept, "{path} {status} {said:?}");
        assert_eq!(
            first.body == again.body,
            is_kept,
            "{path} {status} {said:?}"
        );
    };
    for status in [200, 201, 202, 301, 302, 303, 307] {
        check("/most", status, None, true);
        check("/least", status, None, true);
    }
    for status in [401, 403, 407, 408, 421, 425, 429] {
        check("/most", status, None, false);
        check("/least", status, None, false);
    }
    for status in [
        400, 402, 404, 409, 410, 412, 418, 422, 500, 501, 502, 503, 504,
    ] {
        check("/most", status, None, true);
        check("/least", status, None, false);
    }
    for (status, is_kept) in [(429, true), (404, false), (500, false), (400, true)] {
        check("/own", status, None, is_kept);
    }
    check("/most", 200, Some("release"), false);
    check("/most", 429, Some("keep"), true);
    check("/least", 500, Some("keep"), true);
    check("/most", 500, Some("nonsense"), true);
}

#[test]
fn strips_reserved_response_headers_of_operations() {
    let upstream = Upstream::start(obeying);
    let proxy = Proxy::start(upstream.address, "");
    let said = ("x-say", "keep");
    for bytes in [
        request("POST /orders", &[said, ("idempotency-key", "k")], b"x"),
        request("POST /orders", &[said, ("idempotency-key", "k")], b"x"),
        request("POST /orders", &[said], b"x"),
        request("GET /orders", &[said], b""),
        request("DELETE /orders/1", &[said], b""),
    ] {
        let answer = call(proxy.address, &bytes);
        assert_eq!(answer.status, 201);
        assert_eq!(answer.header("refrain-outcome"), None, "{}", answer.head);
    }
    assert_eq!(upstream.count(), 4);
}

#[test]
fn a_refused_burst_costs_the_upstream_one_request() {
    let (go_on, gone_on) = mpsc::channel::<()>();
    let gone_on = Mutex::new(gone_on);
    let upstream = Upstream::start(move |_, stream| {
        gone_on.lock().unwrap().recv().unwrap();
        answer(
            stream,
            "429 Too Many",
            &[("retry-after", "9")],
            b"slow down",
        )
    });
    let proxy = Proxy::start(
        upstream.address,
        "[proxy]\nthreads = 2\n[policy]\nwait = \"1m\"",
    );
    let address = proxy.address;
    let callers: Vec<_> = (0..6)
        .map(|_| thread::spawn(move || call(address, post("k", "x"))))
        .collect();
    until("the others wait", || {
        proxy.metric("refrain_waiting_duplicates") == 5.0
    });
    go_on.send(()).unwrap();
    for caller in callers {
        let answer = caller.join().unwrap();
        assert_eq!((answer.status, answer.text()), (429, "slow down"));
        assert_eq!(answer.header("retry-after"), Some("9"));
        assert!(!answer.is_replay());
    }
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_client_that_hangs_up_stops_neither_the_operation_nor_its_recording() {
    let upstream = Upstream::start(|_, stream| {
        thread::sleep(Duration::from_millis(300));
        answer(stream, "201 Created", &[], b"made")
    });
    let proxy = Proxy::start(upstream.address, "");
    let mut hasty = Client::connect(proxy.address);
    hasty.send(post("k", "x"));
    upstream.wait_for(1);
    drop(hasty);
    let later = call(proxy.address, post("k", "x"));
    assert!(later.is_replay());
    assert_eq!((later.status, later.text()), (201, "made"));
    assert_eq!(upstream.count(), 1);
}

/// Flips one bit at the first occurrence of `said` in a folder's logs.
fn flip(folder: &Path, said: &[u8]) {
    let logs = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.extension().is_some_and(|it| it == "log"));
    let place = |path: std::path::PathBuf| Some((find(&fs::read(&path).unwrap(), said)?, path));
    let (at, path) = logs.filter_map(place).next().unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[said[0] ^ 1], at as u64).unwrap();
}

#[test]
fn a_damaged_record_is_neither_replayed_nor_run_again() {
    let upstream = Upstream::start(|_, stream| {
        answer(stream, "201 Created", &[], b"what was said and shall rot")
    });
    let proxy = Proxy::durable(upstream.address, "");
    assert_eq!(call(proxy.address, post("k", "x")).status, 201);
    assert!(call(proxy.address, post("k", "x")).is_replay());
    flip(
        &proxy.folder().join("records"),
        b"what was said and shall rot",
    );
    for _ in 0..2 {
        let refused = call(proxy.address, post("k", "x"));
        check_problem(&proxy, &refused, 503, "store-unavailable", "reuse-key");
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(upstream.count(), 1);
    // Other records are not affected.
    assert_eq!(call(proxy.address, post("other", "x")).status, 201);
}
