//! Clients that send as slowly, as much or as senselessly as they can: others are served meanwhile, memory stays
//! within a bound, and the offending connections are closed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use support::{
    AfterResponse, Client, PATIENCE, Proxy, Upstream, answer, call, get,
    http2::{self, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PRIORITY, SETTINGS},
    until,
};

/// A client that sends more than this without being closed is not limited.
const FLOOD_BYTES_MAX: usize = 64 << 20;
/// All floods together may cost the proxy this much memory, in KiB: some connections with full buffers.
const GROWTH_MAX: u64 = 48 << 10;

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "shop.test"),
    (":path", "/"),
];

fn post_with(key: &str) -> [(&str, &str); 5] {
    let [_, scheme, authority, _] = GET;
    let (method, path) = ((":method", "POST"), (":path", "/slow"));
    [method, scheme, authority, path, ("idempotency-key", key)]
}

/// A well-behaved client, which calls all the time.
struct Bystander {
    is_over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    calling: JoinHandle<()>,
}

impl Bystander {
    fn start(address: SocketAddr) -> Self {
        let (is_over, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stop, count) = (is_over.clone(), served.clone());
        let calling = thread::spawn(move || {
            while !stop.load(Relaxed) {
                assert_eq!(call(address, get("/")).status, 200);
                count.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self {
            is_over,
            served,
            calling,
        }
    }

    fn served(&self) -> usize {
        self.served.load(Relaxed)
    }

    /// Ends it, after it was served once more.
    fn end(self) {
        let before = self.served();
        until("the other client is served", || {
            self.served() > before || self.calling.is_finished()
        });
        self.is_over.store(true, Relaxed);
        self.calling.join().unwrap();
    }
}

/// Whether the proxy has closed the connection, with or without last words.
fn is_closed(mut stream: &TcpStream) -> bool {
    let mut bytes = [0; 64 << 10];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Sends frames until the proxy closes the connection; reads all replies if `reads`.
fn flood(proxy: &Proxy, name: &str, reads: bool, frames: impl Fn(u32) -> Vec<u8>) {
    let mut stream = http2::connect(proxy.address, 65_535);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let reader = stream.try_clone().unwrap();
    let reading = reads.then(|| thread::spawn(move || is_closed(&reader)));
    let mut sent = 0;
    for number in 0.. {
        let bytes = frames(number);
        if let Err(error) = stream.write_all(&bytes) {
            let kind = error.kind();
            assert_ne!(kind, std::io::ErrorKind::WouldBlock, "{name} is not closed");
            break;
        }
        sent += bytes.len();
        assert!(sent < FLOOD_BYTES_MAX, "{name} is not closed");
    }
    if let Some(reading) = reading {
        assert!(reading.join().unwrap(), "{name}");
    }
}

/// A field of 4 KB that enters the compression table, and references to it: they unpack to 12 MB.
fn compressed_bomb(stream: u32) -> Vec<u8> {
    const LEN: usize = 3_900;
    let mut block = http2::block(&GET);
    block.extend([0x40, 1, b'a', 0x7f]);
    let rest = LEN - 127;
    block.extend([(rest % 128) as u8 | 0x80, (rest / 128) as u8]);
    block.extend(vec![b'v'; LEN]);
    block.extend(vec![0x80 | 62; 3_000]);
    http2::frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

#[test]
fn floods_of_http_2_frames_end_their_connections_only() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nclient_timeout = \"1s\"");
    assert_eq!(call(proxy.address, get("/")).status, 200);
    let before = proxy.memory();
    let bystander = Bystander::start(proxy.address);
    let odd = |number: u32| 2 * number + 1;
    let continued = |field: &'static [(&str, &str)]| {
        move |number| match number {
            0 => http2::frame(HEADERS, 0, 1, &http2::block(&GET)),
            _ => http2::frame(CONTINUATION, 0, 1, &http2::block(field)),
        }
    };
    let body_of = |piece: &'static [u8]| {
        move |number| match number {
            0 => http2::head(1, &post_with("k"), true),
            _ => http2::frame(DATA, 0, 1, piece).repeat(100),
        }
    };
    let window = [&[0, 4][..], &65_535_u32.to_be_bytes()].concat();
    let settings = |_| http2::frame(SETTINGS, 0, 0, &window).repeat(100);
    let pings = |_| http2::ping().repeat(100);
    flood(&proxy, "rapid reset", true, |number| {
        let stream = odd(number);
        [http2::head(stream, &GET, false), http2::reset(stream)].concat()
    });
    flood(&proxy, "CONTINUATION", true, continued(&[("x-a", "b")]));
    flood(&proxy, "empty CONTINUATION", true, continued(&[]));
    flood(&proxy, "empty DATA", true, body_of(b""));
    flood(&proxy, "DATA of a byte", true, body_of(b"x"));
    flood(&proxy, "compressed fields", true, |at| {
        compressed_bomb(odd(at))
    });
    flood(&proxy, "SETTINGS", true, settings);
    flood(&proxy, "PING", true, pings);
    flood(&proxy, "PRIORITY", true, |number| {
        http2::frame(PRIORITY, 0, odd(number), &[0, 0, 0, 0, 1]).repeat(100)
    });
    flood(&proxy, "window updates of an idle client", true, |_| {
        http2::frame(http2::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()).repeat(100)
    });
    flood(&proxy, "unknown frames", true, |_| {
        http2::frame(0xee, 0, 0, b"x").repeat(100)
    });
    flood(&proxy, "PING without reading", false, pings);
    bystander.end();
    let grown = proxy.memory_high().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} KiB");
}

/// What a client may send is not a flood: pings with each request, and as many cancelled requests as others.
#[test]
fn a_client_that_pings_and_cancels_within_reason_is_served() {
    let upstream = Upstream::start(|seen, stream| match seen.start() {
        "GET /" => answer(stream, "200 OK", &[], b""),
        _ => {
            // Ends when the proxy drops the connection of a cancelled request.
            let _ = stream.read(&mut [0]);
            AfterResponse::Close
        }
    });
    let proxy = Proxy::start(upstream.address, "");
    let mut client = http2::connect(proxy.address, 65_535);
    let [method, scheme, authority, _] = GET;
    let slow = [method, scheme, authority, (":path", "/slow")];
    for round in 0..300 {
        let stream = round * 4 + 1;
        client.write_all(&http2::ping().repeat(10)).unwrap();
        client
            .write_all(&http2::head(stream, &slow, false))
            .unwrap();
        let sent = 2 * round as usize + 1;
        until("it reached the upstream", || upstream.count() == sent);
        client.write_all(&http2::reset(stream)).unwrap();
        client
            .write_all(&http2::head(stream + 2, &GET, false))
            .unwrap();
        assert_eq!(http2::answer(&mut client), Some(200), "round {round}");
    }
}

/// A guarded operation continues without its client, so a stream that is reset makes room for the next one: without
/// a limit, one connection starts any number of operations at a time.
#[test]
fn a_client_that_cancels_guarded_requests_cannot_start_any_number_of_them() {
    const AT_ONCE: usize = 20;
    // The maximum of streams, and of cancelled requests.
    const STARTED_MAX: usize = 256 + 256;
    let is_over = Arc::<AtomicBool>::default();
    let is_done = is_over.clone();
    let upstream = Upstream::start(move |seen, stream| {
        if seen.start() == "GET /" {
            return answer(stream, "200 OK", &[], b"");
        }
        while !is_done.load(Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        answer(stream, "200 OK", &[], b"")
    });
    let proxy = Proxy::start(upstream.address, "");
    let started = || {
        let seen = upstream.seen();
        seen.iter().filter(|it| it.start() == "POST /slow").count()
    };
    let mut client = http2::connect(proxy.address, 65_535);
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut is_open = true;
    for round in 0..STARTED_MAX / AT_ONCE + 2 {
        let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
        let stream = |number: usize| u32::try_from(2 * number + 1).unwrap();
        let heads = numbers.clone().flat_map(|number| {
            let key = format!("k{number}");
            http2::head(stream(number), &post_with(&key), false)
        });
        is_open = client.write_all(&heads.collect::<Vec<_>>()).is_ok();
        if !is_open {
            break;
        }
        until("they run, or the connection is closed", || {
            started() >= numbers.end || proxy.metric("refrain_connections") == 0.0
        });
        let resets: Vec<u8> = numbers
            .flat_map(|number| http2::reset(stream(number)))
            .collect();
        is_open = client.write_all(&resets).is_ok();
    }
    assert!(is_closed(&client) && !is_open, "it is not closed");
    assert!((200..=STARTED_MAX).contains(&started()), "{}", started());
    assert_eq!(call(proxy.address, get("/")).status, 200);
    assert!(
        proxy
            .errors()
            .contains("cancelled too many HTTP/2 requests")
    );
    is_over.store(true, Relaxed);
}

/// How a slow client begins; it continues with single bytes.
fn slow_starts() -> Vec<Vec<u8>> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut head = [&preface[..], &http2::frame(SETTINGS, 0, 0, b"")].concat();
    // The rest of this frame never comes.
    head.extend(&http2::head(1, &[("x-a", &"v".repeat(100))], false)[..20]);
    vec![
        b"G".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\nx-a: ".to_vec(),
        b"POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\nx-a: ".to_vec(),
        preface[..10].to_vec(),
        head,
    ]
}

/// Slowloris, with as many clients as the proxy accepts: once their time is over, they have made room for others.
#[test]
fn clients_that_send_a_byte_now_and_then_are_closed() {
    const CLIENTS: usize = 100;
    let upstream = Upstream::echo();
    let settings = format!(
        "[proxy]\nconnections_max = {CLIENTS}\nhead_timeout = \"1s\"\nclient_timeout = \"1s\"\nkeep_alive = \"1s\""
    );
    let proxy = Proxy::start(upstream.address, &settings);
    let starts = slow_starts();
    let slow: Vec<_> = (0..CLIENTS)
        .map(|at| {
            let mut client = Client::connect(proxy.address);
            client.send(&starts[at % starts.len()]);
            client.stream
        })
        .collect();
    let is_over = Arc::<AtomicBool>::default();
    let is_done = is_over.clone();
    let mut dripping: Vec<_> = slow.iter().map(|it| it.try_clone().unwrap()).collect();
    let dripper = thread::spawn(move || {
        while !is_done.load(Relaxed) {
            dripping.retain_mut(|stream| stream.write_all(b"x").is_ok());
            thread::sleep(Duration::from_millis(50));
        }
    });
    // It waits for a place.
    assert_eq!(call(proxy.address, get("/")).status, 200);
    for stream in &slow {
        assert!(is_closed(stream));
    }
    is_over.store(true, Relaxed);
    dripper.join().unwrap();
    assert_eq!(upstream.count(), 1);
}

/// Slow bodies make progress, so they are not closed; they cost a connection each, and what they have sent.
#[test]
fn slow_bodies_do_not_hold_up_others() {
    const CLIENTS: usize = 200;
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(call(proxy.address, get("/")).status, 200);
    let before = proxy.memory();
    let mut slow: Vec<_> = (0..CLIENTS)
        .map(|at| {
            let mut client = Client::connect(proxy.address);
            client.send(format!(
                "POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k{at}\r\ncontent-length: 8000000\r\n\r\n"
            ));
            client
        })
        .collect();
    let bystander = Bystander::start(proxy.address);
    while bystander.served() < 100 && !bystander.calling.is_finished() {
        for client in &mut slow {
            client.send("x");
        }
        thread::sleep(Duration::from_millis(5));
    }
    bystander.end();
    // The announced lengths add up to 1.6 GB: memory is taken only for bytes that have arrived.
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 64 * CLIENTS as u64, "{grown} KiB");
    assert!(slow.iter_mut().all(|client| {
        client.stream.set_nonblocking(true).unwrap();
        let read = client.stream.peek(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }));
}
