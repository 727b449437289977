//! Slow, many or disconnected clients and upstreams that close, crash and return must neither block well-behaved
//! clients nor make a request run twice.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use refrain_testkit::servers::free_port;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{
    AfterResponse, Client, HttpResponse, Proxy, Seen, Starting, Upstream, answer, call, get, http2,
    post, request, until,
};

const MOMENT: Duration = Duration::from_millis(50);

fn check_served(proxy: &Proxy) {
    assert_eq!(call(proxy.address, get("/")).status, 200);
}

#[test]
fn slow_request_head_gets_408_and_is_closed() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nhead_timeout = \"500ms\"");
    let slow: Vec<_> = (0..30)
        .map(|_| {
            let mut client = Client::connect(proxy.address);
            client.send("GET / HTTP/1.1\r\nhost: a\r\n");
            client
        })
        .collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = slow
        .iter()
        .map(|client| (client.stream.try_clone().unwrap(), is_over.clone()))
        .map(|(mut stream, is_over)| {
            thread::spawn(move || {
                while !is_over.load(Relaxed) && stream.write_all(b"x-a: 1\r\n").is_ok() {
                    thread::sleep(MOMENT);
                }
            })
        })
        .collect();
    check_served(&proxy);
    for mut client in slow {
        assert_eq!(client.answer().status, 408);
        assert!(client.is_closed());
    }
    is_over.store(true, Relaxed);
    writers.into_iter().for_each(|it| it.join().unwrap());
    check_served(&proxy);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn closes_idle_connections_and_keeps_active_ones() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nkeep_alive = \"12s\"");
    let mut silent = Client::connect(proxy.address);
    let mut busy = Client::connect(proxy.address);
    for _ in 0..65 {
        assert_eq!(busy.send(get("/")).answer().status, 200);
        thread::sleep(4 * MOMENT);
    }
    assert!(silent.is_closed());
    assert!(busy.is_closed());
}

#[test]
fn times_out_stalled_bodies_but_not_slow_ones() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nclient_timeout = \"500ms\"");
    for key in ["", "idempotency-key: k\r\n"] {
        let head = format!("POST /a HTTP/1.1\r\nhost: a\r\n{key}content-length: 10\r\n\r\n");
        let mut stalled = Client::connect(proxy.address);
        stalled.send(format!("{head}01234"));
        let rest = stalled.try_answer();
        assert!(rest.is_none_or(|answer| answer.status == 408));
        assert_eq!(upstream.count(), 0);
    }
    let proxy = Proxy::start(upstream.address, "[proxy]\nclient_timeout = \"12s\"");
    let mut moving = ["", "idempotency-key: k\r\n"].map(|key| {
        let head = format!("POST /a HTTP/1.1\r\nhost: a\r\n{key}content-length: 50\r\n\r\n");
        let mut client = Client::connect(proxy.address);
        client.send(head);
        client
    });
    for _ in 0..50 {
        thread::sleep(5 * MOMENT);
        for client in &mut moving {
            client.send("x");
        }
    }
    for mut client in moving {
        assert_eq!(client.answer().text(), "x".repeat(50));
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn closes_clients_that_do_not_read_the_response() {
    let is_freed = Arc::new(AtomicBool::new(false));
    let freed = is_freed.clone();
    let upstream = Upstream::start(move |seen, stream| {
        if seen.start() != "GET /large" {
            return answer(stream, "200 OK", &[], b"");
        }
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x1_0000));
        while stream.write_all(chunk.as_bytes()).is_ok() {}
        freed.store(true, Relaxed);
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nclient_timeout = \"500ms\"");
    let mut idle = Client::connect(proxy.address);
    idle.send(get("/large"));
    until("the upstream connection is closed", || {
        is_freed.load(Relaxed)
    });
    check_served(&proxy);
}

/// A client that is not idle is not closed, however long its download takes.
#[test]
fn a_download_that_takes_longer_than_keep_alive_is_not_cut() {
    // Larger than the socket buffers of a client that does not read.
    const LARGE: usize = 16 << 20;
    let upstream = Upstream::start(|_, stream| answer(stream, "200 OK", &[], &vec![b'x'; LARGE]));
    let settings = "[proxy]\nkeep_alive = \"8s\"\nclient_timeout = \"10m\"\nthreads = 1\n[policy]\noutcome_bytes_max = \"64MiB\"";
    let proxy = Proxy::start(upstream.address, settings);
    assert_eq!(call(proxy.address, post("k", "x")).body.len(), LARGE);
    let mut slow = [post("k", "x"), get("/large")].map(|bytes| {
        let mut client = Client::connect_narrow(proxy.address);
        assert_eq!(client.send(bytes).head().unwrap().status, 200);
        client
    });
    for _ in 0..2 {
        // Idle for a shorter time than the others have paused.
        assert!(Client::connect(proxy.address).is_closed());
        for client in &mut slow {
            assert_eq!(client.exactly(LARGE / 2).len(), LARGE / 2);
        }
    }
}

/// The proxy closed the connection; the read did not time out.
fn check_closed(read: std::io::Result<usize>) {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    let kind = read.err().map(|error| error.kind());
    assert!(!matches!(kind, Some(TimedOut | WouldBlock)), "{kind:?}");
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "shop.test"),
    (":path", "/large"),
];

#[test]
fn a_stream_of_http_2_that_makes_no_room_for_its_answer_is_closed() {
    let upstream = Upstream::start(|_, stream| answer(stream, "200 OK", &[], &[b'x'; 1 << 20]));
    let proxy = Proxy::start(upstream.address, "[proxy]\nclient_timeout = \"500ms\"");
    let mut stuck = http2::connect(proxy.address, 0);
    stuck.write_all(&http2::head(1, &GET, false)).unwrap();
    let mut rest = Vec::new();
    check_closed(stuck.read_to_end(&mut rest));
    assert!(rest.len() < 1_000, "{}", rest.len());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_long_upload_that_moves_is_not_cut_off() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nread_timeout = \"10s\"");
    let mut client = Client::connect(proxy.address);
    client.send("PUT /a HTTP/1.1\r\nhost: a\r\ncontent-length: 44\r\n\r\n");
    for _ in 0..44 {
        thread::sleep(5 * MOMENT);
        client.send("x");
    }
    assert_eq!(client.answer().text(), "x".repeat(44));
}

#[test]
fn upstream_timeout_starts_after_a_long_upload() {
    let upstream = Upstream::start(|seen, stream| {
        thread::sleep(Duration::from_secs(3));
        answer(stream, "200 OK", &[], &seen.body)
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nread_timeout = \"10s\"");
    let mut client = Client::connect(proxy.address);
    client.send("PUT /a HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n");
    for _ in 0..14 {
        thread::sleep(Duration::from_millis(600));
        client.send("x");
    }
    assert_eq!(client.answer().text(), "xxxxxxxxxxxxxx");
}

#[test]
fn thousands_of_idle_connections_do_not_slow_others() {
    const IDLE: usize = 5_000;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let mut idle: Vec<_> = (0..IDLE).map(|_| Client::connect(proxy.address)).collect();
    for at in 0..100 {
        let key = format!("k{at}");
        assert_eq!(call(proxy.address, post(&key, "x")).status, 200);
    }
    // Each of them is an accepted connection, not just one in the listen queue.
    for client in idle.iter_mut().step_by(499) {
        assert_eq!(client.send(get("/")).answer().status, 200);
    }
    let high = proxy.memory_high();
    assert!(high < 200 << 10, "{high} KiB");
}

/// Value of a metric in `/metrics`.
fn metric(proxy: &Proxy, name: &str) -> u64 {
    let scraped = proxy.ask_admin("/metrics");
    let text = scraped.text();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("{name} is not in: {text}"));
    value.parse().unwrap()
}

/// Idle connections use up the descriptors of the process; the store still needs some for its next segments.
#[test]
fn a_crowd_of_idle_connections_does_not_shut_the_store() {
    let upstream = Upstream::echo();
    let proxy = Starting::new()
        .open_files(64)
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "file:records")
        .file("[proxy]\nthreads = 1")
        .start();
    let mut early = Client::connect(proxy.address);
    assert_eq!(early.send(get("/")).answer().status, 200);
    let crowd: Vec<_> = (0..200).map(|_| Client::connect(proxy.address)).collect();
    let max = metric(&proxy, "refrain_connections_max");
    assert!((2..32).contains(&max), "{max}");
    until("connections are accepted up to the limit", || {
        metric(&proxy, "refrain_connections") == max
    });
    assert!(metric(&proxy, "refrain_connections_exhausted_total") > 0);
    // Fills several segments; the first one has 4 MiB.
    let body = "x".repeat(1 << 20);
    let check = |early: &mut Client, round: &str| {
        for at in 0..16 {
            let answer = early.send(post(&format!("{round}-{at}"), &body)).answer();
            assert_eq!(answer.status, 200, "{round}-{at}: {}", answer.head);
        }
    };
    check(&mut early, "beside");
    drop(crowd);
    let answer = call(proxy.address, post("late", "x"));
    assert_eq!(answer.status, 200, "{}", answer.head);
    check(&mut early, "after");
    assert_eq!(proxy.ask_admin("/readyz").status, 200);
}

/// Shells and service managers often start a process with a low soft limit and a high hard limit.
#[test]
fn the_limit_of_open_files_is_raised_at_the_start() {
    let upstream = Upstream::echo();
    let proxy = Starting::new()
        .through(&["sh", "-c", "ulimit -S -n 64; exec \"$0\" \"$@\""])
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .start();
    let max = metric(&proxy, "refrain_connections_max");
    assert!(max > 100, "{max}");
}

#[test]
fn connections_over_the_limit_wait_for_a_place() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nconnections_max = 3");
    let mut first: Vec<_> = (0..3).map(|_| Client::connect(proxy.address)).collect();
    for client in &mut first {
        assert_eq!(client.send(get("/")).answer().status, 200);
    }
    let mut fourth = Client::connect(proxy.address);
    fourth.send(get("/fourth"));
    thread::sleep(4 * MOMENT);
    assert_eq!(upstream.count(), 3);
    first.pop();
    assert_eq!(fourth.answer().status, 200);
    for client in &mut first {
        assert_eq!(client.send(get("/")).answer().status, 200);
    }
}

#[test]
fn one_connection_carries_many_requests_on_both_sides() {
    let upstream = Upstream::echo();
    let settings = "[proxy]\nthreads = 1\nupstream_idle = \"1h\"";
    let proxy = Proxy::start(upstream.address, settings);
    let mut client = Client::connect(proxy.address);
    for at in 0..50 {
        let body = at.to_string();
        let key = format!("k{at}");
        assert_eq!(client.send(post(&key, &body)).answer().text(), body);
    }
    assert_eq!(upstream.connections().0, 1);
}

#[test]
fn requests_sent_ahead_are_answered_in_their_order() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let bytes: Vec<u8> = (0..60)
        .flat_map(|at| match at % 3 {
            0 => post(&format!("k{at}"), &at.to_string()),
            1 => request("PUT /a", &[], at.to_string().as_bytes()),
            // A duplicate of the request two positions before.
            _ => post(&format!("k{}", at - 2), &(at - 2).to_string()),
        })
        .collect();
    let mut client = Client::connect(proxy.address);
    client.send(bytes);
    for at in 0..60 {
        let answer = client.answer();
        let (expected, is_replay) = (if at % 3 == 2 { at - 2 } else { at }, at % 3 == 2);
        assert_eq!(answer.text(), expected.to_string());
        assert_eq!(answer.is_replay(), is_replay);
    }
    assert_eq!(upstream.count(), 40);
}

#[test]
fn an_old_client_is_answered_and_closed() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert_eq!(upstream.seen()[0].header("via"), Some("1.0 refrain"));
}

/// Sends requests one by one to an upstream that closes each connection after its response.
fn check_closing(headers: &'static [(&str, &str)]) {
    let upstream = Upstream::start(move |seen, stream| {
        answer(stream, "200 OK", headers, &seen.body);
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    for at in 0..50 {
        let bytes = match at % 2 {
            0 => post(&format!("k{at}"), "x"),
            _ => request("POST /keyless", &[], b"x"),
        };
        let answer = call(proxy.address, bytes);
        assert_eq!(
            (answer.status, answer.text()),
            (200, "x"),
            "{}",
            answer.head
        );
        until("it has closed", || upstream.connections().1 == at + 1);
    }
    assert_eq!(upstream.count(), 50);
}

#[test]
fn upstream_that_closes_after_each_response_loses_no_request() {
    check_closing(&[("connection", "close")]);
    // Also without announcing it with `Connection: close`.
    check_closing(&[]);
}

#[test]
fn connections_that_died_while_idle_are_not_used() {
    let upstream = Upstream::echo();
    let address = upstream.address;
    let proxy = Proxy::start(address, "[proxy]\nthreads = 2");
    let burst = |at: usize| {
        let callers: Vec<_> = (0..10)
            .map(|by| {
                let (address, key) = (proxy.address, format!("k{at}-{by}"));
                thread::spawn(move || call(address, post(&key, "x")).status)
            })
            .collect();
        let statuses = callers.into_iter().map(|it| it.join().unwrap());
        statuses.collect::<Vec<_>>()
    };
    assert_eq!(burst(0), [200; 10]);
    upstream.kill();
    let upstream = Upstream::on(TcpListener::bind(address).unwrap(), |seen, stream| {
        answer(stream, "200 OK", &[], &seen.body)
    });
    assert_eq!(burst(1), [200; 10]);
    assert_eq!(upstream.count(), 10);
}

#[test]
fn nothing_is_sent_twice_over_a_connection_that_breaks() {
    let upstream = Upstream::start(|seen, stream| match seen.start() {
        "GET /ok" => answer(stream, "200 OK", &[], b""),
        _ => AfterResponse::Close,
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    for (at, bytes) in [
        get("/gone"),
        request("DELETE /gone", &[], b""),
        request("PUT /gone", &[], b"x"),
        post("k", "x"),
    ]
    .into_iter()
    .enumerate()
    {
        // So that the next request uses a pooled connection.
        assert_eq!(call(proxy.address, get("/ok")).status, 200);
        assert_eq!(call(proxy.address, bytes).status, 502);
        assert_eq!(upstream.count(), 2 * (at + 1));
    }
}

#[test]
fn response_for_a_disconnected_client_reaches_no_other_client() {
    let upstream = Upstream::start(|seen, stream| {
        let target = seen.start().to_owned();
        if target == "GET /slow" {
            thread::sleep(2 * MOMENT);
        }
        let body = match &*target {
            "GET /long" => target.repeat(500_000),
            _ => target,
        };
        answer(stream, "200 OK", &[], body.as_bytes())
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    for at in 0..20 {
        let mut gone = Client::connect(proxy.address);
        let path = if at % 2 == 0 { "/slow" } else { "/long" };
        gone.send(get(path));
        upstream.wait_for(2 * at + 1);
        if at % 2 == 1 {
            gone.exactly(1_000);
        }
        drop(gone);
        let path = format!("/{at}");
        let answer = call(proxy.address, get(&path));
        assert_eq!(answer.text(), format!("GET {path}"));
    }
}

/// Retries one key until its response is final.
fn insist(address: SocketAddr, key: &str) -> HttpResponse {
    loop {
        let answer = call(address, post(key, "x"));
        match answer.code().as_deref() {
            Some("upstream-unreachable") => thread::sleep(Duration::from_millis(5)),
            _ => return answer,
        }
    }
}

#[test]
fn an_upstream_killed_in_mid_load_neither_loses_nor_repeats() {
    let effects = Arc::<Mutex<HashMap<String, u32>>>::default();
    let script = |effects: Arc<Mutex<HashMap<String, u32>>>| {
        move |seen: &Seen, stream: &mut TcpStream| {
            let key = seen.header("idempotency-key").unwrap().to_owned();
            *effects.lock().unwrap().entry(key).or_default() += 1;
            thread::sleep(Duration::from_millis(3));
            answer(stream, "201 Created", &[], b"made")
        }
    };
    // The port stays reserved while the upstream is down.
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let listener = TcpListener::bind(address).unwrap();
    let mut upstream = Upstream::on(listener, script(effects.clone()));
    let proxy = Proxy::start(address, "");
    let is_over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..6)
        .map(|by| {
            let (proxy, is_over) = (proxy.address, is_over.clone());
            thread::spawn(move || {
                let mut told = Vec::new();
                while !is_over.load(Relaxed) {
                    let key = format!("{by}-{}", told.len());
                    let answer = insist(proxy, &key);
                    told.push((key, answer.status, answer.code()));
                }
                told
            })
        })
        .collect();
    let goes_on = || {
        let enough = effects.lock().unwrap().len() + 40;
        until("more requests have executed", || {
            effects.lock().unwrap().len() >= enough
        });
    };
    for _ in 0..4 {
        goes_on();
        upstream.kill();
        thread::sleep(MOMENT);
        let listener = TcpListener::bind(address).unwrap();
        upstream = Upstream::on(listener, script(effects.clone()));
    }
    goes_on();
    is_over.store(true, Relaxed);
    let told: Vec<_> = callers
        .into_iter()
        .flat_map(|it| it.join().unwrap())
        .collect();
    let effects = effects.lock().unwrap();
    let mut made = 0;
    for (key, status, code) in &told {
        let happened = effects.get(key).copied().unwrap_or_default();
        match (status, code.as_deref()) {
            (201, None) => assert_eq!(happened, 1, "{key}"),
            (502, Some("outcome-unknown")) => assert!(happened <= 1, "{key}: {happened}"),
            other => panic!("{key}: {other:?}"),
        }
        made += u32::from(*status == 201);
    }
    assert!(made > 100, "{made} of {}", told.len());
}

/// An upstream that took the end of the connection for the end of the upload would store a part of it as the whole.
#[test]
fn an_upload_that_is_cut_after_an_early_answer_stays_incomplete() {
    let (seen, uploads) = mpsc::channel();
    let upstream = Upstream::raw(move |mut stream| {
        let mut read = Vec::new();
        let mut bytes = [0; 1024];
        while !read.ends_with(b"\r\n\r\n5\r\nstart\r\n") {
            let len = stream.read(&mut bytes).unwrap();
            read.extend(&bytes[..len]);
        }
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        let mut writer = stream.try_clone().unwrap();
        // Each piece makes the proxy look at the upload again.
        let answering = thread::spawn(move || {
            while writer.write_all(b"1\r\nb\r\n").is_ok() {
                thread::sleep(MOMENT);
            }
        });
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            read.extend(&bytes[..len]);
        }
        answering.join().unwrap();
        seen.send(read).unwrap();
    });
    let proxy = Proxy::start(upstream, "[proxy]\nread_timeout = \"5s\"");
    let mut client = Client::connect(proxy.address);
    client.send("PUT /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nstart\r\n");
    assert_eq!(client.head().unwrap().status, 200);
    assert_eq!(client.chunk().unwrap(), b"a");
    drop(client);
    let upload = uploads.recv().unwrap();
    let upload = String::from_utf8_lossy(&upload);
    assert!(upload.ends_with("5\r\nstart\r\n"), "{upload}");
}
