//! A fault that does not happen proves nothing: each one is checked at the client and at the upstream, over real
//! connections.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use refrain_verify::chaos::{Chaos, Event};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);
const BODY: &[u8] = b"{\"paid\":20}";

/// Counts requests, stores their bodies, and answers each with [`BODY`].
struct Upstream {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
    accepted: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let it = Self {
            address: listener.local_addr().unwrap(),
            bodies: Arc::default(),
            accepted: Arc::default(),
        };
        let (bodies, accepted) = (it.bodies.clone(), it.accepted.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, bodies) = (stream.unwrap(), bodies.clone());
                accepted.fetch_add(1, SeqCst);
                thread::spawn(move || serve(stream, &bodies));
            }
        });
        it
    }

    fn count(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }

    fn wait_for(&self, count: usize) {
        let since = Instant::now();
        while self.count() < count {
            assert!(since.elapsed() < PATIENCE, "{} of {count}", self.count());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn serve(mut stream: TcpStream, bodies: &Mutex<Vec<Vec<u8>>>) {
    while let Some((_, body)) = message(&mut stream) {
        bodies.lock().unwrap().push(body);
        let head = format!(
            "HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n",
            BODY.len()
        );
        if stream.write_all(&[head.as_bytes(), BODY].concat()).is_err() {
            return;
        }
    }
}

/// Reads one message with a length: its head, and as much of its body as arrives.
fn message(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: u64 = length.map_or(0, |length| length.parse().unwrap());
    let mut body = Vec::new();
    let _ = stream.take(length).read_to_end(&mut body);
    Some((head, body))
}

/// The proxy under test with these rules, on its own runtime.
struct Stage {
    chaos: Chaos,
    address: SocketAddr,
    upstream: Upstream,
}

impl Stage {
    fn new(rules: &[&str]) -> Self {
        let upstream = Upstream::start();
        let chaos = Chaos::new(&format!("http://{}", upstream.address), 7).unwrap();
        for rule in rules {
            chaos.rules().add(rule.parse().unwrap()).unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = chaos.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                serving
                    .serve(listener, std::future::pending())
                    .await
                    .unwrap();
            });
        });
        Self {
            chaos,
            address,
            upstream,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn send(&self) -> TcpStream {
        let mut stream = self.connect();
        post(&mut stream);
        stream
    }

    /// Returns the only event in the journal.
    fn event(&self) -> Event {
        let since = Instant::now();
        loop {
            if let [event] = &self.chaos.journal().after(0)[..] {
                return event.clone();
            }
            assert!(since.elapsed() < PATIENCE, "no fault was injected");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn post(stream: &mut TcpStream) {
    let head =
        "POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\ncontent-length: 4\r\n\r\n20.0";
    stream.write_all(head.as_bytes()).unwrap();
}

fn paid(stream: &mut TcpStream) -> bool {
    message(stream).is_some_and(|(head, body)| head.starts_with("http/1.1 201") && body == BODY)
}

fn rest(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).map(|_| rest)
}

#[test]
fn unmatched_requests_pass_over_one_connection() {
    let stage = Stage::new(&["POST /other drop-answer"]);
    let mut stream = stage.connect();
    for _ in 0..3 {
        post(&mut stream);
        assert!(paid(&mut stream));
    }
    assert_eq!((stage.upstream.count(), stage.chaos.passed()), (3, 3));
    assert_eq!(stage.upstream.accepted.load(SeqCst), 1);
    assert!(stage.chaos.journal().after(0).is_empty());
}

#[test]
fn dropped_response_took_effect_and_reaches_no_client() {
    let stage = Stage::new(&["POST /pay drop-answer x1"]);
    assert_eq!(rest(&mut stage.send()).unwrap(), b"");
    assert_eq!(stage.upstream.count(), 1);
    assert_eq!(stage.event().upstream, Some(201));
    // The rule hits once: the retry succeeds.
    assert!(paid(&mut stage.send()));
}

#[test]
fn a_request_sent_twice_arrives_twice_and_is_answered_once() {
    let stage = Stage::new(&["POST /pay twice"]);
    let mut stream = stage.send();
    assert!(paid(&mut stream));
    assert_eq!(*stage.upstream.bodies.lock().unwrap(), [b"20.0", b"20.0"]);
    assert_eq!(
        stage.event().note.as_deref(),
        Some("the second copy got 201")
    );
}

#[test]
fn a_request_sent_again_later_arrives_later() {
    let stage = Stage::new(&["POST /pay twice:300ms"]);
    let since = Instant::now();
    assert!(paid(&mut stage.send()));
    // Checked well before the second one is sent; skipped if the machine was too slow.
    let count = stage.upstream.count();
    if since.elapsed() < Duration::from_millis(250) {
        assert_eq!(count, 1);
    }
    stage.upstream.wait_for(2);
    assert!(since.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_delay_holds_up_the_request_and_one_of_the_answer_does_not() {
    for (fault, arrived) in [("delay:400ms", 0), ("delay-answer:400ms", 1)] {
        let stage = Stage::new(&[&format!("POST /pay {fault}")]);
        let since = Instant::now();
        let mut stream = stage.send();
        if arrived == 1 {
            stage.upstream.wait_for(1);
        }
        // Checked well before the delay ends; skipped if the machine was too slow.
        let count = stage.upstream.count();
        if since.elapsed() < Duration::from_millis(350) {
            assert_eq!(count, arrived, "{fault}");
        }
        assert!(paid(&mut stream));
        assert!(since.elapsed() >= Duration::from_millis(400));
    }
}

#[test]
fn a_cut_answer_says_how_long_it_should_have_been() {
    let stage = Stage::new(&["POST /pay cut:5"]);
    let (head, body) = message(&mut stage.send()).unwrap();
    assert!(
        head.contains(&format!("content-length: {}", BODY.len())),
        "{head}"
    );
    assert_eq!(body, &BODY[..5]);
    assert_eq!(stage.upstream.count(), 1);
}

#[test]
fn a_reset_before_reaches_nobody_and_a_reset_after_does() {
    for (fault, arrives) in [("reset-before", 0), ("reset-after", 1)] {
        let stage = Stage::new(&[&format!("POST /pay {fault}")]);
        let error = rest(&mut stage.send()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{fault}");
        stage.upstream.wait_for(arrives);
        assert_eq!(stage.event().note, None);
        assert_eq!(stage.upstream.count(), arrives);
    }
}

#[test]
fn requests_are_answered_in_another_order_than_they_came() {
    let stage = Stage::new(&["POST /pay reorder:20s"]);
    let mut first = stage.send();
    // Held back until another request comes.
    first
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert!(first.read(&mut [0]).is_err());
    assert_eq!(stage.upstream.count(), 0);
    assert!(paid(&mut stage.send()));
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(paid(&mut first));
    let notes = stage.chaos.journal().after(0);
    let notes: Vec<_> = notes
        .iter()
        .filter_map(|event| event.note.as_deref())
        .collect();
    assert_eq!(
        notes,
        [
            "overtook another request",
            "was overtaken by another request"
        ]
    );
}

#[test]
fn a_slow_answer_is_whole_and_takes_its_time() {
    let stage = Stage::new(&["POST /pay slow:20"]);
    let since = Instant::now();
    assert!(paid(&mut stage.send()));
    assert!(since.elapsed() >= Duration::from_millis(400));
}

#[test]
fn the_same_seed_hits_the_same_requests() {
    let hit = || {
        let stage = Stage::new(&["POST /pay drop-answer 50%"]);
        let sent = (0..12).map(|_| paid(&mut stage.send()));
        sent.collect::<Vec<_>>()
    };
    let first = hit();
    assert!(first.contains(&true) && first.contains(&false), "{first:?}");
    assert_eq!(first, hit());
}

#[test]
fn an_upstream_that_is_not_there_is_said_to_be() {
    let stage = Stage::new(&[]);
    // Bound, so that no other process gets the port, but not listening.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = held.local_addr().unwrap();
    let chaos = Chaos::new(&format!("http://{gone}"), 7).unwrap();
    drop(stage);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        chaos.serve(listener, std::future::pending()).await
    });
    let mut stream = TcpStream::connect(address).unwrap();
    post(&mut stream);
    let (head, body) = message(&mut stream).unwrap();
    assert!(head.starts_with("http/1.1 502"), "{head}");
    assert!(String::from_utf8(body).unwrap().contains("is unreachable"));
    assert!(Chaos::new("ftp://x", 1).is_err());
}
