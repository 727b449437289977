//! A running proxy follows its file on SIGHUP and `POST /api/reload`; a file that the start would refuse changes nothing.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use serde_json::Value;
use support::{
    Client, Proxy, Starting, Upstream, answer, call, post, request, request_json, until,
};

const ORDERS: &str = "[[operation]]\nmatch = \"POST /orders\"\n";

fn write(proxy: &Proxy, text: &str) {
    fs::write(proxy.folder().join("refrain.toml"), text).unwrap();
}

/// Status and body of `POST /api/reload`.
fn reload(proxy: &Proxy) -> (u16, Value) {
    let request = request_json(proxy.admin, "POST /api/reload", "");
    let answer = call(proxy.admin, request);
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn rejected(proxy: &Proxy) -> f64 {
    proxy.metric("refrain_config_reloads_total{result=\"rejected\"}")
}

fn applied(proxy: &Proxy) -> f64 {
    proxy.metric("refrain_config_reloads_total{result=\"applied\"}")
}

/// Answers 201; requests to `/orders` with the body `slow` wait for a message first.
fn upstream() -> (Upstream, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.body == b"slow" {
            released.lock().unwrap().recv().unwrap();
        }
        answer(
            stream,
            "201 Created",
            &[],
            format!("{}", seen.at).as_bytes(),
        )
    });
    (upstream, release)
}

#[test]
fn a_request_in_progress_keeps_its_policy_and_the_next_one_on_its_connection_gets_the_new_one() {
    let (upstream, release) = upstream();
    let proxy = Proxy::start(upstream.address, ORDERS);
    let mut client = Client::connect(proxy.address);
    client.send(post("old", "slow"));
    upstream.wait_for(1);

    write(&proxy, &format!("{ORDERS}release = [201]\n"));
    proxy.hang_up();
    until("the reload", || applied(&proxy) == 1.0);
    release.send(()).unwrap();
    assert_eq!(client.answer().status, 201);

    // The old policy kept the outcome, and the new one releases it.
    assert!(client.send(post("old", "slow")).answer().is_replay());
    for _ in 0..2 {
        assert!(!client.send(post("new", "quick")).answer().is_replay());
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_bad_file_keeps_the_old_policy_and_says_where_and_what_was_meant() {
    let (upstream, _release) = upstream();
    let proxy = Proxy::start(upstream.address, ORDERS);
    write(&proxy, &format!("{ORDERS}retentoin = \"1d\"\n"));
    let (status, report) = reload(&proxy);
    assert_eq!(status, 422, "{report}");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("refrain.toml:3:1"), "{report}");
    assert!(error.contains("`retention`"), "{report}");
    assert_eq!(report["problems"][0]["line"], 3);
    assert!(report["fix"].as_str().unwrap().contains("refrain check"));
    assert_eq!((rejected(&proxy), applied(&proxy)), (1.0, 0.0));

    proxy.hang_up();
    until("the second rejection", || rejected(&proxy) == 2.0);
    let errors = proxy.errors();
    let lines: Vec<_> = errors.lines().filter(|it| it.contains("ERROR")).collect();
    assert_eq!(lines.len(), 2, "{errors}");
    for line in lines {
        assert!(
            line.contains("refrain.toml:3:1") && line.contains("`retention`"),
            "{line}"
        );
    }
    // Still in force.
    call(proxy.address, post("k", "b"));
    assert!(call(proxy.address, post("k", "b")).is_replay());
}

#[test]
fn what_operators_see_follows_the_new_policy() {
    let (upstream, _release) = upstream();
    let proxy = Proxy::start(upstream.address, ORDERS);
    let loaded = proxy.metric("refrain_config_loaded_timestamp_seconds");
    assert!(loaded > 1_700_000_000.0, "{loaded}");
    write(
        &proxy,
        "[proxy]\ndrain = \"7s\"\n[[operation]]\nmatch = \"POST /refunds\"\nretention = \"36h\"\n",
    );
    let (status, report) = reload(&proxy);
    assert_eq!(status, 200, "{report}");
    assert_eq!(report["operations"]["added"][0], "POST /refunds");
    assert_eq!(report["operations"]["removed"][0], "POST /orders");
    assert_eq!(report["needs_restart"], serde_json::json!(["proxy.drain"]));

    for _ in 0..2 {
        let refund = request("POST /refunds", &[("idempotency-key", "r")], b"b");
        assert_eq!(call(proxy.address, refund).status, 201);
    }
    let metric = "refrain_requests_total{operation=\"POST /refunds\",outcome=\"replayed\"}";
    assert_eq!(proxy.metric(metric), 1.0);
    let listed = proxy.ask_admin("/api/operations");
    assert!(listed.text().contains("POST /refunds") && !listed.text().contains("POST /orders"));
    let page = proxy.ask_admin("/operations");
    assert!(page.text().contains("POST /refunds") && !page.text().contains("POST /orders"));
    // Settings that need a restart are shown as they are in force.
    let page = proxy.ask_admin("/configuration");
    assert!(
        page.text().contains("1d12h") && page.text().contains("30s"),
        "{}",
        page.text()
    );
    assert!(!page.text().contains("7s<"), "{}", page.text());
}

/// The new policy audits an operation, and the folder of the audit log is a file.
#[test]
fn what_the_start_would_refuse_is_refused_and_accepted_once_it_is_repaired() {
    let (upstream, _release) = upstream();
    let top = "audit_log = \"audit\"\n";
    let proxy = Proxy::start(upstream.address, &format!("{top}{ORDERS}"));
    fs::write(proxy.folder().join("audit"), "a file").unwrap();
    write(&proxy, &format!("{top}{ORDERS}audit = \"required\"\n"));
    let (status, report) = reload(&proxy);
    assert_eq!(status, 503, "{report}");
    assert!(
        report["error"].as_str().unwrap().contains("audit"),
        "{report}"
    );
    assert_eq!(call(proxy.address, post("k", "b")).status, 201);
    assert_eq!(proxy.metric("refrain_audit_entries_total"), 0.0);

    fs::remove_file(proxy.folder().join("audit")).unwrap();
    let (status, report) = reload(&proxy);
    assert_eq!(status, 200, "{report}");
    assert_eq!(call(proxy.address, post("l", "b")).status, 201);
    until("the entries", || {
        proxy.metric("refrain_audit_entries_total") >= 3.0
    });
}

#[test]
fn only_a_resolver_may_reload_and_a_proxy_without_a_file_says_so() {
    let (upstream, _release) = upstream();
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .variable("REFRAIN_ADMIN_TOKEN", "resolver-token")
        .variable("REFRAIN_ADMIN_READER_TOKEN", "reader-token")
        .start();
    for (token, status) in [
        ("none", 401),
        ("reader-token", 403),
        ("resolver-token", 422),
    ] {
        let request = format!(
            "POST /api/reload HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: 0\r\n\r\n",
            proxy.admin
        );
        let answer = call(proxy.admin, request);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(status == 422, answer.text().contains("--config"));
    }
}

#[test]
fn no_request_fails_while_the_policy_is_replaced_again_and_again() {
    let (upstream, _release) = upstream();
    let proxy = Proxy::start(upstream.address, ORDERS);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3)
        .map(|at| {
            let (stop, address) = (stop.clone(), proxy.address);
            thread::spawn(move || {
                let mut client = Client::connect(address);
                let mut sent = 0;
                while !stop.load(Relaxed) {
                    let key = format!("{at}-{sent}");
                    assert_eq!(client.send(post(&key, "b")).answer().status, 201);
                    assert!(client.send(post(&key, "b")).answer().is_replay());
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    for round in 1..=30 {
        write(&proxy, &format!("{ORDERS}retention = \"{round}d\"\n"));
        let (status, report) = reload(&proxy);
        assert_eq!(status, 200, "{report}");
    }
    stop.store(true, Relaxed);
    let sent: usize = clients.into_iter().map(|it| it.join().unwrap()).sum();
    assert!(sent > 0);
    assert_eq!(upstream.count(), sent);
}
