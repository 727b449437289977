//! A request that no rule matches must pass as if there were no proxy: byte for byte, in both directions at once.
//!
//! A fault proxy with bugs of its own proves nothing: a lost end, a stale connection or a request that
//! swallows the next one would be blamed on the service under test.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use refrain_verify::chaos::Chaos;
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(60);
/// More bytes than the socket buffers hold.
const LARGE: usize = 12 << 20;

/// The proxy under test in front of a service whose connections the test handles.
struct Stage {
    address: SocketAddr,
    chaos: Chaos,
    accepted: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<thread::JoinHandle<()>>,
}

impl Stage {
    fn new(rules: &[&str], serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Self {
        let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
        let chaos = Chaos::new(&format!("http://{}", upstream.local_addr().unwrap()), 7).unwrap();
        for rule in rules {
            chaos.rules().add(rule.parse().unwrap()).unwrap();
        }
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = accepted.clone();
        thread::spawn(move || {
            for stream in upstream.incoming() {
                let (stream, serve) = (stream.unwrap(), serve.clone());
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                counted.fetch_add(1, SeqCst);
                thread::spawn(move || serve(stream));
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = chaos.clone();
        let serving = thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let stopped = async {
                    let _ = stopped.await;
                };
                running.serve(listener, stopped).await.unwrap();
            });
        });
        Self {
            address,
            chaos,
            accepted,
            stop: Some(stop),
            serving: Some(serving),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes; returns everything received until the connection closes.
    fn exchange(&self, sent: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(sent.as_bytes()).unwrap();
        rest(&mut stream)
    }
}

/// Reads up to the end of a head.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap())
}

/// Reads this many bytes.
fn body(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    body
}

fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    String::from_utf8(rest).unwrap()
}

/// Bytes that depend on their position.
fn large() -> Vec<u8> {
    (0..LARGE).map(|at| (at / 251 + at % 251) as u8).collect()
}

/// Answers each request with the request's own head.
fn echo_heads(mut stream: TcpStream) {
    while let Ok(head) = head(&mut stream) {
        let length = head.len();
        let answer =
            format!("HTTP/1.1 200 Well\r\nX-Odd-CASE: 1\r\nContent-Length: {length}\r\n\r\n{head}");
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

#[test]
fn pipelined_requests_are_answered_in_turn_over_one_connection() {
    let stage = Stage::new(&[], echo_heads);
    let asked = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: Shop\r\nAccept-ODD: x\r\n");
    let all: String = (0..50)
        .map(|at| {
            format!(
                "{}Connection: keep-alive\r\n\r\n",
                asked(&format!("/{at}?q"))
            )
        })
        .collect();
    let last = format!("{}connection: close\r\n\r\n", asked("/last"));
    let told = stage.exchange(&format!("{all}{last}"));
    let answer = |path: &str, close: &str| {
        let shown = format!("{}\r\n", asked(path));
        let length = shown.len();
        format!(
            "HTTP/1.1 200 Well\r\nX-Odd-CASE: 1\r\nContent-Length: {length}\r\n{close}\r\n{shown}"
        )
    };
    let mut expected: String = (0..50).map(|at| answer(&format!("/{at}?q"), "")).collect();
    expected += &answer("/last", "connection: close\r\n");
    assert_eq!(told, expected);
    assert_eq!(stage.accepted.load(SeqCst), 1);
    assert_eq!(stage.chaos.passed(), 51);
}

#[test]
fn bodies_pass_both_ways_at_once() {
    // An echo server stops reading when the client does not read its response.
    for is_chunked in [false, true] {
        let stage = Stage::new(&[], move |mut stream| {
            let Ok(asked) = head(&mut stream) else { return };
            let framing = asked.lines().find(|line| {
                line.starts_with("content-length") || line.starts_with("transfer-encoding")
            });
            let answer = format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", framing.unwrap());
            stream.write_all(answer.as_bytes()).unwrap();
            let mut out = stream.try_clone().unwrap();
            let _ = io::copy(&mut stream, &mut out);
        });
        let sent = large();
        let message = match is_chunked {
            false => [
                b"content-length: ",
                LARGE.to_string().as_bytes(),
                b"\r\n\r\n",
                &sent,
            ]
            .concat(),
            true => {
                let mut message = b"transfer-encoding: chunked\r\n\r\n".to_vec();
                for piece in sent.chunks(70_000) {
                    write!(message, "{:x}\r\n", piece.len()).unwrap();
                    message.extend_from_slice(piece);
                    message.extend_from_slice(b"\r\n");
                }
                message.extend_from_slice(b"0\r\n\r\n");
                message
            }
        };
        let mut stream = stage.connect();
        let mut writing = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            writing
                .write_all(b"POST / HTTP/1.1\r\nhost: x\r\n")
                .unwrap();
            writing.write_all(&message).unwrap();
        });
        assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
        let got = match is_chunked {
            false => body(&mut stream, LARGE),
            true => chunks(&mut stream),
        };
        assert!(got == sent, "is_chunked: {is_chunked}");
        writer.join().unwrap();
    }
}

/// Reads a chunked body.
fn chunks(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(body(stream, 1));
        }
        let size = str::from_utf8(&line).unwrap().trim();
        let size = usize::from_str_radix(size, 16).unwrap();
        all.extend(body(stream, size));
        assert_eq!(body(stream, 2), b"\r\n");
        if size == 0 {
            return all;
        }
    }
}

#[test]
fn an_answer_before_the_end_of_the_request_arrives_and_the_request_goes_on() {
    let (told, tells) = std::sync::mpsc::channel();
    let stage = Stage::new(&[], move |mut stream| {
        let Ok(_) = head(&mut stream) else { return };
        let answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok";
        stream.write_all(answer).unwrap();
        told.send(body(&mut stream, LARGE)).unwrap();
    });
    let mut stream = stage.connect();
    let asked = format!("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: {LARGE}\r\n\r\n");
    stream.write_all(asked.as_bytes()).unwrap();
    let shown = head(&mut stream).unwrap();
    assert!(shown.starts_with("HTTP/1.1 202 Accepted\r\n"), "{shown}");
    assert_eq!(body(&mut stream, 2), b"ok");
    // Send the body only after the response.
    stream.write_all(&large()).unwrap();
    assert!(tells.recv_timeout(PATIENCE).unwrap() == large());
    assert_eq!(rest(&mut stream), "");
}

#[test]
fn rejection_reaches_a_client_that_is_still_sending() {
    let stage = Stage::new(&[], |mut stream| {
        let Ok(_) = head(&mut stream) else { return };
        let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nno!";
        stream.write_all(answer).unwrap();
        // The rest is not read, so the connection closes with a reset.
    });
    let mut stream = stage.connect();
    let asked = format!("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: {LARGE}\r\n\r\n");
    // On a busy machine the proxy may have stopped reading; the rejection arrives anyway.
    let _ = stream.write_all(&[asked.as_bytes(), &vec![0; 100_000]].concat());
    let shown = head(&mut stream).unwrap();
    assert!(shown.starts_with("HTTP/1.1 413 Too Large\r\n"), "{shown}");
    assert!(shown.contains("connection: close\r\n"), "{shown}");
    assert_eq!(body(&mut stream, 3), b"no!");
}

#[test]
fn versions_and_ends_are_brought_together() {
    let answers = |stream: &mut TcpStream, answer: &str| {
        let is_asked = head(stream).is_ok();
        let _ = stream.write_all(answer.as_bytes());
        is_asked
    };
    for (upstream, asked, shown) in [
        // An HTTP/1.0 client gets no chunks, and its connection closes.
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nabc",
        ),
        (
            "HTTP/1.0 200 OK\r\n\r\nabc",
            "GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ),
        // It may keep the connection open.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na",
            "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
            "HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: keep-alive\r\n\r\naHTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na",
        ),
        // No body, even if the head has a length.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
            "HEAD / HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n",
        ),
        (
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\nHTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\nconnection: close\r\n\r\n",
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            "GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
        ),
        // A malformed response is not forwarded.
        ("SSH-2.0-x\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", ""),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "GET / HTTP/1.1\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            "",
        ),
        // A truncated response must not look complete.
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        ),
    ] {
        let stage = Stage::new(&[], move |mut stream| {
            let is_last = upstream.ends_with("\r\nab\r\n") || upstream.starts_with("HTTP/1.0");
            while answers(&mut stream, upstream) && !is_last {}
        });
        assert_eq!(stage.exchange(asked), shown, "{upstream:?} to {asked:?}");
    }
}

#[test]
fn malformed_request_is_rejected_and_not_forwarded() {
    let stage = Stage::new(&[], echo_heads);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000));
    let wide = format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(300 << 10));
    for (sent, status) in [
        ("nonsense\r\n\r\n", "400"),
        ("GET / HTTP/3.0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\na b: c\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", "400"),
        (
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "400",
        ),
        ("POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", "400"),
        ("CONNECT x:1 HTTP/1.1\r\n\r\n", "501"),
        (&many, "431"),
        (&wide, "431"),
        (&long, "414"),
    ] {
        let shown = stage.exchange(sent);
        let start = format!("HTTP/1.1 {status} ");
        assert!(
            shown.starts_with(&start),
            "{:?}: {shown}",
            &sent[..20.min(sent.len())]
        );
        assert!(shown.contains("connection: close\r\n"), "{shown}");
        assert!(shown.contains("\r\n\r\nrefrain chaos: "), "{shown}");
    }
    assert_eq!((stage.accepted.load(SeqCst), stage.chaos.passed()), (0, 0));
}

#[test]
fn a_connection_that_the_upstream_closed_is_not_used_again() {
    for is_reset in [false, true] {
        let turns = Arc::new(Barrier::new(2));
        let ours = turns.clone();
        let stage = Stage::new(&[], move |mut stream| {
            if head(&mut stream).is_ok() {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                stream.write_all(answer).unwrap();
                // Unread bytes turn the close into a reset.
                if !is_reset {
                    body(&mut stream, 4);
                }
                ours.wait();
                drop(stream);
                ours.wait();
            }
        });
        let mut client = stage.connect();
        let asked = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody";
        for at in 0..20 {
            client.write_all(asked).unwrap();
            assert!(head(&mut client).is_ok(), "request {at}");
            assert_eq!(body(&mut client, 2), b"ok");
            // The connection closes silently, and only then the next request is sent.
            turns.wait();
            turns.wait();
        }
        assert_eq!(stage.accepted.load(SeqCst), 20);
    }
}

#[test]
fn a_body_that_waits_to_be_wanted_is_asked_for_once() {
    for rules in [&[][..], &["POST / twice"], &["POST / delay:10ms"]] {
        let stage = Stage::new(rules, |mut stream| {
            while let Ok(asked) = head(&mut stream) {
                assert!(!asked.contains("xpect"), "{asked}");
                let got = body(&mut stream, 4);
                let answer = [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", &got[..]].concat();
                stream.write_all(&answer).unwrap();
            }
        });
        let mut stream = stage.connect();
        let asked = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
        stream.write_all(asked).unwrap();
        assert_eq!(
            head(&mut stream).unwrap(),
            "HTTP/1.1 100 Continue\r\n\r\n",
            "{rules:?}"
        );
        stream.write_all(b"body").unwrap();
        assert!(
            head(&mut stream).unwrap().starts_with("HTTP/1.1 200"),
            "{rules:?}"
        );
        assert_eq!(body(&mut stream, 4), b"body");
    }
}

#[test]
fn a_request_in_chunks_is_sent_twice_whole() {
    let (told, tells) = std::sync::mpsc::channel();
    let stage = Stage::new(&["POST / twice"], move |mut stream| {
        if head(&mut stream).is_ok() {
            told.send(chunks(&mut stream)).unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let mut stream = stage.connect();
    let asked =
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    stream.write_all(asked).unwrap();
    assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
    for _ in 0..2 {
        assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), b"abcde");
    }
}

#[test]
fn disconnect_during_the_body_forwards_no_complete_request() {
    let (told, tells) = std::sync::mpsc::channel();
    let stage = Stage::new(&[], move |mut stream| {
        let Ok(_) = head(&mut stream) else { return };
        told.send(rest(&mut stream)).unwrap();
    });
    let mut stream = stage.connect();
    let asked = b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf";
    stream.write_all(asked).unwrap();
    drop(stream);
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "half");
}

#[test]
fn half_closed_client_gets_its_response() {
    let stage = Stage::new(&["GET / delay:50ms"], echo_heads);
    let mut stream = stage.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(rest(&mut stream).ends_with("\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n"));
}

#[test]
fn at_the_end_the_idle_are_closed_and_the_running_are_answered() {
    let (told, tells) = std::sync::mpsc::channel();
    let (go, going) = std::sync::mpsc::channel();
    let going = std::sync::Arc::new(std::sync::Mutex::new(going));
    let mut stage = Stage::new(&[], move |mut stream| {
        while head(&mut stream).is_ok() {
            told.send(()).unwrap();
            let () = going.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .unwrap();
        }
    });
    let (mut idle, mut running) = (stage.connect(), stage.connect());
    for stream in [&mut idle, &mut running] {
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        tells.recv_timeout(PATIENCE).unwrap();
        go.send(()).unwrap();
        head(stream).unwrap();
        body(stream, 2);
    }
    running.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    tells.recv_timeout(PATIENCE).unwrap();
    stage.stop.take().unwrap().send(()).unwrap();
    assert_eq!(rest(&mut idle), "");
    go.send(()).unwrap();
    let shown = rest(&mut running);
    assert!(
        shown.contains("connection: close\r\n") && shown.ends_with("ok"),
        "{shown}"
    );
    stage.serving.take().unwrap().join().unwrap();
}
