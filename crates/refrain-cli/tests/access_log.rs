//! An operator asks the access log what happened to a request: every request must have its line, and the log must neither
//! show keys nor fail a request.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Stdio},
    sync::{Mutex, mpsc},
};

use serde_json::Value;
use support::{
    AfterResponse, Client, HttpResponse, Proxy, Seen, Starting, Upstream, answer, call, get, post,
    request, until,
};

/// A proxy with an access log in this folder.
fn logged(upstream: SocketAddr, settings: &str, folder: &Path) -> Proxy {
    Starting::new()
        .arg("--upstream", format!("http://{upstream}"))
        .arg("--store", "memory:")
        .arg("--access-log", folder.join("access.log").display())
        .file(settings)
        .start()
}

/// The lines of the log, once there are `count`.
fn lines(folder: &Path, count: usize) -> Vec<Value> {
    let text = || fs::read_to_string(folder.join("access.log")).unwrap_or_default();
    until("every request has its line", || {
        text().matches('\n').count() >= count
    });
    let text = text();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn check(line: &Value, expected: &[(&str, Value)]) {
    for (name, value) in expected {
        assert_eq!(line[name], *value, "{name} of {line}");
    }
}

/// Executes `POST /orders`, and closes the connection of `POST /lost`.
fn shop(seen: &Seen, stream: &mut TcpStream) -> AfterResponse {
    match seen.start() {
        start if start.contains("/lost") => AfterResponse::Close,
        _ => answer(stream, "201 Created", &[], b"secret-answer"),
    }
}

#[test]
fn every_request_has_a_line_with_its_outcome() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (upstream, folder) = (Upstream::start(shop), tempfile::tempdir().unwrap());
    let settings =
        "[[operation]]\nmatch = \"POST /orders\"\n[[operation]]\nmatch = \"POST /lost\"\n";
    let proxy = logged(upstream.address, settings, folder.path());
    let ask = |start: &str, body: &str| {
        let key = format!("secret-{}", start.len());
        let headers = [("idempotency-key", &*key), ("traceparent", TRACE)];
        call(proxy.address, request(start, &headers, body.as_bytes()))
    };
    let told = [
        ask("POST /orders?card=secret-query", "secret-body"),
        ask("POST /orders?card=secret-query", "secret-body"),
        ask("POST /orders?card=secret-query", "other"),
        ask("POST /lost", "x"),
        ask("POST /lost", "x"),
        call(proxy.address, get("/secret-path")),
        call(
            proxy.address,
            "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        ),
    ];
    let lines = lines(folder.path(), told.len());
    let expected = [
        ("POST /orders", "executed", None),
        ("POST /orders", "replayed", None),
        ("POST /orders", "refused", Some("key-reused")),
        ("POST /lost", "unknown", None),
        ("POST /lost", "unknown", None),
        ("", "passed", None),
        ("", "refused", Some("request-malformed")),
    ];
    for ((line, told), (operation, outcome, code)) in lines.iter().zip(&told).zip(expected) {
        let operation = (!operation.is_empty()).then_some(operation);
        let expected = [
            ("operation", operation.into()),
            ("outcome", outcome.into()),
            ("code", code.into()),
            ("status", told.status.into()),
            ("record", told.header("refrain-record").into()),
        ];
        check(line, &expected);
        assert!(line["total_us"].is_u64(), "{line}");
        let time = line["time"].as_str().unwrap();
        assert_eq!((time.len(), &time[26..]), (27, "Z"), "{time}");
    }
    let trace = "0af7651916cd43dd8448eb211c80319c";
    check(
        &lines[0],
        &[("trace_id", trace.into()), ("method", "POST".into())],
    );
    assert!(lines[0]["upstream_us"].as_u64() <= lines[0]["total_us"].as_u64());
    assert_eq!(lines[1]["upstream_us"], Value::Null);
    let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn duplicate_that_waited_says_so() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = Upstream::start(move |_, stream| {
        let _ = released.lock().unwrap().recv();
        answer(stream, "201 Created", &[], b"made")
    });
    let folder = tempfile::tempdir().unwrap();
    let proxy = logged(upstream.address, "", folder.path());
    let (mut first, mut second) = (
        Client::connect(proxy.address),
        Client::connect(proxy.address),
    );
    first.send(post("k", "x"));
    upstream.wait_for(1);
    second.send(post("k", "x"));
    until("the duplicate waits", || {
        proxy.metric("refrain_waiting_duplicates") == 1.0
    });
    release.send(()).unwrap();
    assert_eq!((first.answer().status, second.answer().status), (201, 201));
    let lines = lines(folder.path(), 2);
    let mut outcomes: Vec<_> = lines
        .iter()
        .map(|line| line["outcome"].as_str().unwrap())
        .collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["executed", "waited"]);
}

#[test]
fn lines_are_written_before_the_proxy_ends() {
    let (upstream, folder) = (Upstream::echo(), tempfile::tempdir().unwrap());
    let proxy = logged(upstream.address, "", folder.path());
    let mut client = Client::connect(proxy.address);
    for _ in 0..200 {
        assert_eq!(client.send(get("/")).answer().status, 200);
    }
    proxy.terminate();
    assert!(proxy.ended().success());
    assert_eq!(lines(folder.path(), 0).len(), 200);
}

#[test]
fn log_that_cannot_be_written_fails_no_request() {
    let (upstream, folder) = (Upstream::echo(), tempfile::tempdir().unwrap());
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let proxy = logged(upstream.address, "", &logs);
    fs::remove_dir_all(&logs).unwrap();
    let mut client = Client::connect(proxy.address);
    for at in 0..100 {
        assert_eq!(
            client.send(post(&format!("k{at}"), "x")).answer().status,
            200
        );
    }
    until("the failure is logged", || {
        proxy.errors().contains("cannot write the access log")
    });
    assert_eq!(client.send(post("k0", "x")).answer().status, 200);
    fs::create_dir(&logs).unwrap();
    assert_eq!(lines(&logs, 101).len(), 101);
    assert_eq!(
        proxy
            .errors()
            .matches("cannot write the access log")
            .count(),
        1
    );
    assert_eq!(proxy.metric("refrain_access_log_dropped_total"), 0.0);
}

#[test]
fn unusable_file_is_an_error_before_anything_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/access.log");
    for path in [&missing, &folder.path().to_owned()] {
        let starting = Starting::new()
            .arg("--upstream", "http://127.0.0.1:9")
            .arg("--access-log", path.display());
        let (code, text) = starting.refused();
        assert_eq!(code, Some(69), "{text}");
        for words in [
            &*path.display().to_string(),
            "set access_log to another file",
        ] {
            assert!(text.contains(words), "`{words}` is not in: {text}");
        }
        assert!(!starting.folder.path().join("refrain-data").exists());
    }
}

/// A proxy whose access log is standard output.
struct Printing {
    child: Child,
    address: SocketAddr,
}

impl Printing {
    fn start(upstream: SocketAddr) -> Self {
        let starting = Starting::new()
            .arg("--upstream", format!("http://{upstream}"))
            .arg("--store", "memory:")
            .variable("REFRAIN_ACCESS_LOG", "stdout");
        let mut command = starting.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut greeting = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = greeting.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix("listening on http://")?.parse().ok()
        });
        std::thread::spawn(move || greeting.for_each(drop));
        let address = address.unwrap();
        Self { child, address }
    }

    fn ask(&self) -> HttpResponse {
        call(self.address, get("/"))
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn standard_output_has_nothing_but_lines_of_the_log() {
    let upstream = Upstream::echo();
    let mut proxy = Printing::start(upstream.address);
    let mut shown = BufReader::new(proxy.child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        assert_eq!(proxy.ask().status, 200);
        let line: Value = serde_json::from_str(&shown.next().unwrap().unwrap()).unwrap();
        check(
            &line,
            &[("outcome", "passed".into()), ("status", 200.into())],
        );
    }
}

#[test]
fn closed_standard_output_fails_no_request() {
    let upstream = Upstream::echo();
    let mut proxy = Printing::start(upstream.address);
    drop(proxy.child.stdout.take());
    for _ in 0..50 {
        assert_eq!(proxy.ask().status, 200);
    }
    assert!(proxy.child.try_wait().unwrap().is_none());
}
