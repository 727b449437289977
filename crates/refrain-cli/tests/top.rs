//! `refrain top` on a real terminal, as an operator watches a proxy: what it shows, and how it leaves the terminal.
//! A terminal left in raw mode shows nothing that the operator types next.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    net::{SocketAddr, TcpListener},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Proxy, Starting, Terminal, Upstream, answer, call, post};

/// Shows the cursor again, and leaves the alternate screen.
const LEFT: &str = "\u{1b}[?25h\u{1b}[?1049l";
const COLOR: &str = "\u{1b}[38;5;";

fn top(admin: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("top").args(arguments);
    if !arguments.contains(&"--interval") {
        command.args(["--interval", "200ms"]);
    }
    command.env("REFRAIN_ADMIN", format!("http://{admin}"));
    command.env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    command
}

fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// A proxy whose upstream closes the connection of the order `lost`.
fn shop() -> (Upstream, Proxy) {
    let upstream = Upstream::start(|seen, stream| match seen.header("idempotency-key") {
        Some("lost") => support::AfterResponse::Close,
        _ => answer(stream, "201 Created", &[], b"{}"),
    });
    let proxy = Proxy::start(
        upstream.address,
        "[[operation]]\nmatch = \"POST /orders\"\n",
    );
    (upstream, proxy)
}

#[test]
fn an_operator_watches_requests_and_unknown_outcomes() {
    let (_upstream, proxy) = shop();
    call(proxy.address, post("order-7", "{}"));
    let mut terminal = Terminal::start(top(proxy.admin, &[]));
    terminal.see("Refrain 0.1.0");
    terminal.see("ready");
    terminal.see("no unknown outcomes");
    terminal.see("SINCE THE START");
    terminal.see("POST /orders");
    call(proxy.address, post("order-7", "{}"));
    terminal.see("replayed ");
    let lost = call(proxy.address, post("lost", "{}"));
    assert_eq!(lost.code().as_deref(), Some("outcome-unknown"));
    terminal.see("UNKNOWN OUTCOMES: 1");
    let record = lost.header("refrain-record").unwrap();
    terminal.see(record);
    terminal.press(b"u");
    terminal.see("refrain records resolve ID");
    terminal.see("u everything");
    terminal.press(b"p");
    terminal.see("PAUSED");
    terminal.press(b"u");
    terminal.see("LATEST REQUESTS");
    terminal.press(b"\x1b[B");
    terminal.press(b"p");
    terminal.resize(40, 20);
    terminal.see("u unknown only  up/dow~");
    assert!(terminal.seen().contains(COLOR));
    terminal.press(b"q");
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains(LEFT), "{seen}");
    assert!(
        !seen.contains("up/dow~\u{1b}[K"),
        "the last column is cleared"
    );
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    let (_upstream, proxy) = shop();
    type End = fn(&mut Terminal);
    let ends: [(&str, End); 4] = [
        ("Ctrl-C", |it| it.press(b"\x03")),
        ("SIGTERM", |it| it.signal(Signal::TERM)),
        ("SIGINT", |it| it.signal(Signal::INT)),
        ("SIGHUP", |it| it.signal(Signal::HUP)),
    ];
    for (name, end) in ends {
        let mut terminal = Terminal::start(top(proxy.admin, &[]));
        terminal.see("q quit");
        assert!(!terminal.is_as_before(), "{name}: not in raw mode");
        end(&mut terminal);
        let (code, seen) = terminal.end();
        assert_eq!(code, Some(0), "{name}: {seen}");
        assert!(seen.ends_with(LEFT), "{name}: {seen}");
    }
}

#[test]
fn without_colors_nothing_is_colored() {
    let (_upstream, proxy) = shop();
    let mut command = top(proxy.admin, &[]);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(command);
    terminal.see("q quit");
    terminal.press(b"q");
    let (_, seen) = terminal.end();
    assert!(!seen.contains(COLOR), "{seen}");
}

/// An admin address with one request of a hostile client.
fn fake_admin(listener: TcpListener) -> Upstream {
    Upstream::on(listener, |seen, stream| {
        let overview = json!({
            "ready": false,
            "reason": "store",
            "detail": "gone\u{1b}]0;title\u{7}",
            "uptime_seconds": 7,
            "records": { "indeterminate": 0 },
        });
        let requests = json!({ "requests": [{
            "seq": 1,
            "time": "2026-11-19T20:35:50.878Z",
            "method": "POST",
            "path": "/\u{1b}[2J",
            "outcome": "passed",
            "total_us": 10,
        }], "next": 1 });
        let body = match seen.start() {
            "GET /api/overview" => overview,
            _ => requests,
        };
        answer(stream, "200 OK", &[], body.to_string().as_bytes())
    })
}

/// An admin address whose process was started at `started`, with `unknown` outcomes.
fn overview(started: &str, unknown: u64) -> Vec<u8> {
    let records = json!({ "indeterminate": unknown });
    let overview = json!({ "ready": true, "started": started, "records": records });
    overview.to_string().into_bytes()
}

#[test]
fn a_process_that_hangs_is_not_shown_as_ready() {
    let asked = AtomicUsize::new(0);
    let admin = Upstream::start(move |seen, stream| {
        if seen.start() == "GET /api/overview" && asked.fetch_add(1, Ordering::SeqCst) > 0 {
            // Until the test ends.
            loop {
                thread::park();
            }
        }
        answer(stream, "200 OK", &[], &overview("a", 0))
    });
    let mut terminal = Terminal::start(top(admin.address, &[]));
    terminal.see("ready");
    terminal.see("no answer for 5 s");
    terminal.see("did not answer within 5 s");
    terminal.press(b"q");
    assert_eq!(terminal.end().0, Some(0));
}

/// The list of unknown outcomes may take long: the rest is shown, and no second list is requested before its end.
#[test]
fn a_slow_list_delays_nothing_and_is_requested_once() {
    let lists = Arc::new(AtomicUsize::new(0));
    let overviews = Arc::new(AtomicUsize::new(0));
    let (listed, shown) = (lists.clone(), overviews.clone());
    let admin = Upstream::start(move |seen, stream| match seen.start() {
        "GET /api/overview" => {
            shown.fetch_add(1, Ordering::SeqCst);
            answer(stream, "200 OK", &[], &overview("a", 340))
        }
        start if start.starts_with("GET /api/records") => {
            listed.fetch_add(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        _ => answer(stream, "200 OK", &[], b"{}"),
    });
    let mut terminal = Terminal::start(top(admin.address, &[]));
    terminal.see("UNKNOWN OUTCOMES: 340");
    support::until("several updates", || overviews.load(Ordering::SeqCst) > 4);
    assert_eq!(lists.load(Ordering::SeqCst), 1);
    terminal.press(b"q");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_part_of_the_unknown_outcomes_is_called_a_part() {
    let admin = Upstream::start(|seen, stream| match seen.start() {
        "GET /api/overview" => answer(stream, "200 OK", &[], &overview("a", 340)),
        start if start.starts_with("GET /api/records") => {
            let record = json!({ "id": "7", "first_seen": "2026-11-19T20:35:50.878Z" });
            let body = json!({ "records": [record], "next": "7" }).to_string();
            answer(stream, "200 OK", &[], body.as_bytes())
        }
        _ => answer(stream, "200 OK", &[], b"{}"),
    });
    let shown = output(top(admin.address, &["--once"]));
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("(1 of 340, not the oldest)"), "{text}");
}

/// After a restart, requests are counted from 1 again, even if the new process runs for longer than the old one did.
#[test]
fn requests_of_a_restarted_process_are_shown() {
    let overviews = AtomicUsize::new(0);
    let admin = Upstream::start(move |seen, stream| {
        let start = seen.start();
        if start == "GET /api/overview" {
            let count = overviews.fetch_add(1, Ordering::SeqCst);
            let started = if count < 3 { "a" } else { "b" };
            return answer(stream, "200 OK", &[], &overview(started, 0));
        }
        let is_new = overviews.load(Ordering::SeqCst) > 3;
        let (seq, path) = if is_new { (1, "/new") } else { (500, "/old") };
        let is_asked = start.contains("after=0&");
        let request = json!({ "seq": seq, "method": "POST", "path": path, "outcome": "passed" });
        let requests: &[Value] = if is_asked { &[request] } else { &[] };
        let body = json!({ "requests": requests }).to_string();
        answer(stream, "200 OK", &[], body.as_bytes())
    });
    let mut terminal = Terminal::start(top(admin.address, &[]));
    terminal.see("/old");
    terminal.see("/new");
    terminal.press(b"q");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_lost_connection_is_shown_until_it_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let admin = fake_admin(listener);
    let mut terminal = Terminal::start(top(address, &[]));
    terminal.see("NOT READY: store");
    terminal.see("gone\\u{1b}]0;title\\u{7}");
    admin.kill();
    terminal.see("reconnecting: cannot reach the admin address");
    let _admin = fake_admin(TcpListener::bind(address).unwrap());
    terminal.see("gone\\u{1b}]0;title\\u{7}");
    terminal.press(b"q");
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("/\\u{1b}[2J"), "{seen}");
    assert!(!seen.contains("/\u{1b}[2J"), "{seen}");
}

#[test]
fn without_a_terminal_it_prints_one_frame_or_one_object() {
    let (_upstream, proxy) = shop();
    call(proxy.address, post("lost", "{}"));
    for arguments in [&[][..], &["--once"]] {
        let output = output(top(proxy.admin, arguments));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        for part in [
            "ready",
            "UNKNOWN OUTCOMES: 1, oldest",
            "POST /orders",
            "LATEST REQUESTS",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }
    let output = output(top(proxy.admin, &["--json"]));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["overview"]["records"]["indeterminate"], 1);
    assert_eq!(shown["unknown"][0]["operation"], "POST /orders");
    assert_eq!(shown["requests"][0]["outcome"], "unknown");
}

#[test]
fn what_is_missing_is_named() {
    let upstream = Upstream::echo();
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .variable("REFRAIN_ADMIN_TOKEN", "sesame")
        .start();
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let cases: [(SocketAddr, &[&str], i32, &str); 5] = [
        (
            proxy.admin,
            &[],
            2,
            "requires a token, and none is set; set REFRAIN_ADMIN_TOKEN",
        ),
        (
            proxy.admin,
            &["--token", "open"],
            2,
            "rejects the token; set REFRAIN_ADMIN_TOKEN",
        ),
        (proxy.admin, &["--token", "sesame"], 0, ""),
        (nobody, &[], 69, "cannot reach the admin address"),
        (
            proxy.admin,
            &["--interval", "1ms"],
            2,
            "not between 200ms and 1m",
        ),
    ];
    for (admin, arguments, code, words) in cases {
        let output = output(top(admin, arguments));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {stderr}");
        assert!(stderr.contains(words), "no {words} in {stderr}");
    }
    // A wrong token is reported before the screen changes.
    let (code, seen) = Terminal::start(top(proxy.admin, &[])).end();
    assert_eq!(code, Some(2));
    assert!(!seen.contains("\u{1b}[?1049h"), "{seen}");
}
