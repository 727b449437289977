//! A proxy is killed while the upstream works on a request, and no client retries. After the restart the proxy itself has
//! to find out whether the payment was made: not before the old request can no longer act, and not with a lookup that the
//! upstream could answer wrongly.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    sync::{Mutex, mpsc},
    time::Duration,
};

use support::{
    AfterResponse, Client, Proxy, Starting, Upstream, answer, call, post, request, until,
};
use tempfile::TempDir;
use tokio::time::Instant;

const SETTLE_AFTER: Duration = Duration::from_secs(3);

/// An upstream that never responds to its first order, and looks orders up with this status.
struct Shop {
    upstream: Upstream,
    looked_up: mpsc::Receiver<Instant>,
    records: TempDir,
    settings: String,
}

impl Shop {
    fn new(lookup: &'static str, settings: &str) -> Self {
        let (note, looked_up) = mpsc::channel();
        let note = Mutex::new(note);
        let upstream = Upstream::start(move |seen, stream| {
            if seen.start().starts_with("GET ") {
                note.lock()
                    .unwrap()
                    .send(tokio::time::Instant::now())
                    .unwrap();
                return answer(stream, lookup, &[], b"found");
            }
            if seen.at == 0 {
                // Until the proxy is killed.
                let _ = std::io::Read::read(stream, &mut [0]);
                return AfterResponse::Close;
            }
            answer(stream, "201 Created", &[], b"second")
        });
        let settings = format!(
            "[[operation]]\nmatch = \"POST /orders\"\ntimeout = \"3s\"\nlease = \"1s\"\nsettle_after = \"3s\"\n{settings}"
        );
        Self {
            upstream,
            looked_up,
            records: tempfile::tempdir().unwrap(),
            settings,
        }
    }

    fn start(&self) -> Proxy {
        Starting::new()
            .arg("--upstream", format!("http://{}", self.upstream.address))
            .arg("--store", format!("file:{}", self.records.path().display()))
            .variable("PROBE_TOKEN", "the-probe's")
            .file(&self.settings)
            .start()
    }

    /// Sends a request, kills the proxy while the upstream works on it, and starts another proxy.
    fn restart_during(&self, request: &[u8]) -> Proxy {
        let proxy = self.start();
        let mut client = Client::connect(proxy.address);
        client.send(request);
        self.upstream.wait_for(1);
        // Killed, not terminated.
        drop(proxy);
        self.start()
    }
}

fn resolved(proxy: &Proxy) {
    until("the record is settled", || {
        proxy.metric("refrain_resolutions_total") == 1.0
    });
}

#[test]
fn after_a_kill_the_record_is_settled_by_the_probe_without_a_retry() {
    for (lookup, status, text, orders) in [
        ("200 OK", 200, "found", 1),
        ("404 Not Found", 201, "second", 2),
    ] {
        let settings = "probe = \"GET /lookup?of={record}\"\n\
                        probe_authorization = { secret_env = \"PROBE_TOKEN\" }";
        let shop = Shop::new(lookup, settings);
        let begun = tokio::time::Instant::now();
        let proxy = shop.restart_during(&post("k", "x"));
        resolved(&proxy);
        let asked = shop.looked_up.try_recv().unwrap();
        assert!(asked - begun >= SETTLE_AFTER, "too early");
        let told = call(proxy.address, post("k", "x"));
        assert_eq!((told.status, told.text()), (status, text));
        assert_eq!(told.is_replay(), orders == 1);
        let seen = shop.upstream.seen();
        let record = seen[0].header("refrain-record").unwrap();
        assert_eq!(seen[1].start(), format!("GET /lookup?of={record}"));
        assert_eq!(seen[1].header("host"), seen[0].header("host"));
        assert_eq!(told.header("refrain-record"), Some(record));
        let posts = seen.iter().filter(|it| it.start() == "POST /orders");
        assert_eq!(posts.count(), orders);
    }
}

const ORDER: [(&str, &str); 2] = [("authorization", "Bearer a"), ("idempotency-key", "k")];

#[test]
fn a_probe_after_a_kill_has_the_credential_and_the_key_that_the_policy_allows() {
    let settings = "probe = \"GET /lookup?key={key}\"\nrecords_keys = \"clear\"\n\
                    probe_authorization = { secret_env = \"PROBE_TOKEN\" }";
    let shop = Shop::new("200 OK", settings);
    let proxy = shop.restart_during(&request("POST /orders", &ORDER, b"x"));
    resolved(&proxy);
    let seen = shop.upstream.seen();
    assert_eq!(seen[1].start(), "GET /lookup?key=k");
    let shown = seen[1].header("authorization");
    assert_eq!(shown, Some("Bearer the-probe's"));
    // Only its client gets the outcome, as always.
    let other = [("authorization", "Bearer b"), ORDER[1]];
    let told = call(proxy.address, request("POST /orders", &other, b"x"));
    assert_eq!(told.text(), "second");
    let told = call(proxy.address, request("POST /orders", &ORDER, b"x"));
    assert_eq!((told.text(), told.is_replay()), ("found", true));
}

#[test]
fn after_a_kill_the_record_is_a_line_of_the_log() {
    let shop = Shop::new("404 Not Found", "");
    let proxy = shop.restart_during(&request("POST /orders", &ORDER, b"x"));
    let fix = "refrain records resolve";
    until("the record is logged", || proxy.errors().contains(fix));
    let told = call(proxy.address, request("POST /orders", &ORDER, b"x"));
    assert_eq!(told.status, 409);
    let id = told.header("refrain-record").unwrap();
    let log = proxy.errors();
    let [line] = log
        .lines()
        .filter(|it| it.contains(fix))
        .collect::<Vec<_>>()[..]
    else {
        panic!("not one line: {log}");
    };
    for part in ["WARN", id, "POST /orders", "lapsed"] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}

#[test]
fn a_record_that_cannot_be_looked_up_is_one_line_of_the_log() {
    for (settings, fix) in [
        ("probe = \"GET /lookup?of={record}\"", "probe_authorization"),
        (
            "probe = \"GET /lookup?key={key}\"\nprobe_authorization = { secret_env = \"PROBE_TOKEN\" }",
            "records_keys",
        ),
    ] {
        let shop = Shop::new("404 Not Found", settings);
        let proxy = shop.restart_during(&request("POST /orders", &ORDER, b"x"));
        until("the record is logged", || {
            proxy.errors().contains("only when a client retries")
        });
        let log = proxy.errors();
        let lines = log.lines().filter(|it| it.contains("client retries"));
        let [line] = lines.collect::<Vec<_>>()[..] else {
            panic!("not one line: {log}");
        };
        for part in ["WARN", "POST /orders", "records=1", fix] {
            assert!(line.contains(part), "no {part} in {line}");
        }
        assert!(shop.looked_up.try_recv().is_err());
    }
}
