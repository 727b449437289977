//! Ten thousand clients that wait for their next request: the memory that docs/proxy.md declares for each of them is
//! enough.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{io::Write as _, net::TcpStream};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Client, Proxy, Upstream, call, get, http2, until};

const CLIENTS: u64 = 10_000;
/// Open files that two processes with [`CLIENTS`] connections need: the proxy reserves some for the upstream.
const OPEN_FILES: u64 = 30_000;

/// Raises the limit of open files, which the proxy inherits; beyond the hard limit only if this is allowed.
fn raise_open_files() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    for wanted in [OPEN_FILES.max(maximum), maximum] {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: Some(wanted),
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return wanted;
        }
    }
    panic!("the limit of open files cannot be set");
}

fn waiting_http1(proxy: &Proxy) -> TcpStream {
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.send(get("/")).answer().status, 200);
    client.stream
}

fn waiting_http2(proxy: &Proxy) -> TcpStream {
    let mut stream = http2::connect(proxy.address, 65_535);
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", "/"),
    ];
    stream.write_all(&http2::head(1, &fields, false)).unwrap();
    assert_eq!(http2::answer(&mut stream), Some(200));
    stream
}

/// Opens connections that have had one request each, and compares their memory with the budget for each, in KiB.
fn check(name: &str, budget: u64, connect: fn(&Proxy) -> TcpStream) {
    let open_files = raise_open_files();
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nkeep_alive = \"10m\"");
    // Buffers of threads, and of connections to the upstream.
    for _ in 0..100 {
        assert_eq!(call(proxy.address, get("/")).status, 200);
    }
    until("no connection is open", || {
        proxy.metric("refrain_connections") == 0.0
    });
    let max = proxy.metric("refrain_connections_max") as u64;
    // This process has the other ends, and some files of its own.
    let count = CLIENTS.min(max).min(open_files.saturating_sub(500));
    let before = proxy.memory();
    let waiting: Vec<_> = (0..count).map(|_| connect(&proxy)).collect();
    let open = proxy.metric("refrain_connections") as u64;
    assert_eq!(open, count, "{name}");
    let each = (proxy.memory() - before) as f64 / count as f64;
    println!(
        "{name}: {count} idle connections, {each:.1} KiB each, limit of open files {open_files}"
    );
    assert!(
        each < budget as f64,
        "{name}: {each} KiB for each of {count}"
    );
    // Each of them is still served.
    let mut last = waiting.into_iter().last().unwrap();
    if name == "HTTP/1.1" {
        last.write_all(&get("/")).unwrap();
        assert!(std::io::Read::read(&mut last, &mut [0; 100]).unwrap() > 0);
    }
    assert_eq!(call(proxy.address, get("/")).status, 200);
}

#[test]
fn idle_connections_stay_within_their_memory_budget() {
    check("HTTP/1.1", 24, waiting_http1);
    check("HTTP/2", 40, waiting_http2);
}
