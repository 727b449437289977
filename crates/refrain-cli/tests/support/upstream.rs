//! A scripted upstream that records every request byte by byte.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard},
    thread::JoinHandle,
};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use super::{find, until};

/// A service behind the proxy.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    noted: Arc<Mutex<Noted>>,
    accepting: Accepting,
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) head: String,
    /// Without its framing.
    pub(crate) body: Vec<u8>,
    /// As received, each with its line end.
    pub(crate) trailers: String,
    /// Number of its connection, from 0.
    pub(crate) connection: usize,
    /// Number among all requests, from 0.
    pub(crate) at: usize,
}

/// Whether the upstream keeps or closes the connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    Keep,
    Close,
}

/// The accepting thread, and the connections that it accepted.
struct Accepting {
    socket: TcpListener,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Noted {
    seen: Vec<Seen>,
    connections: usize,
    closed: usize,
    /// Requests that a strict server would reject.
    faults: Vec<String>,
}

impl Upstream {
    /// Responds to each request with `script`.
    pub(crate) fn start(
        script: impl Fn(&Seen, &mut TcpStream) -> AfterResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self::on(listener, script)
    }

    /// The same on a port that is already known.
    pub(crate) fn on(
        listener: TcpListener,
        script: impl Fn(&Seen, &mut TcpStream) -> AfterResponse + Send + Sync + 'static,
    ) -> Self {
        let noted = Arc::<Mutex<Noted>>::default();
        let script = Arc::new(script);
        let address = listener.local_addr().unwrap();
        let (seen, streams) = (noted.clone(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let open = streams.clone();
        let socket = listener.try_clone().unwrap();
        let thread = serve(listener, move |stream, connection| {
            let kept = stream.try_clone().unwrap();
            open.lock().unwrap().push(kept);
            note(&noted).connections += 1;
            let mut reading = Reading::new(stream);
            while let Some(seen) = reading.next(&noted, connection) {
                if script(&seen, &mut reading.stream) == AfterResponse::Close {
                    break;
                }
            }
            let _ = reading.stream.shutdown(Shutdown::Both);
            note(&noted).closed += 1;
        });
        Self {
            address,
            noted: seen,
            accepting: Accepting {
                socket,
                streams,
                thread,
            },
        }
    }

    /// Stops the upstream with all its connections, and frees its port.
    pub(crate) fn kill(self) {
        let Accepting {
            socket,
            streams,
            thread,
        } = self.accepting;
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
        thread.join().unwrap();
        for stream in streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Passes each connection to `talk`; nothing is recorded.
    pub(crate) fn raw(talk: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, move |stream, _| talk(stream));
        address
    }

    /// Responds to every request with `200` and its body.
    pub(crate) fn echo() -> Self {
        Self::start(|seen, stream| answer(stream, "200 OK", &[], &seen.body))
    }

    /// Requests received so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let noted = note(&self.noted);
        assert!(noted.faults.is_empty(), "badly framed: {:?}", noted.faults);
        noted.seen.clone()
    }

    /// Number of requests received so far.
    pub(crate) fn count(&self) -> usize {
        self.seen().len()
    }

    /// Number of connections opened so far, and how many of them are closed.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let noted = note(&self.noted);
        (noted.connections, noted.closed)
    }

    /// Waits until this many requests have been received.
    pub(crate) fn wait_for(&self, count: usize) {
        until(&format!("{count} requests"), || self.count() >= count);
    }
}

impl Seen {
    /// Method and target.
    pub(crate) fn start(&self) -> &str {
        let line = self.head.lines().next().unwrap();
        line.strip_suffix(" HTTP/1.1").unwrap()
    }

    /// A header's value; `None` if it is missing. Panics if there are two.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        let value = values.next();
        assert!(
            values.next().is_none(),
            "{name} stands twice: {}",
            self.head
        );
        value
    }
}

/// A reserved port that refuses connections until it is listened on.
pub(crate) struct Parked(OwnedFd);

impl Parked {
    pub(crate) fn new() -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        bind(&socket, &any).unwrap();
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        getsockname(&self.0).unwrap().try_into().unwrap()
    }

    pub(crate) fn listen(self) -> TcpListener {
        listen(&self.0, 128).unwrap();
        self.0.into()
    }
}

/// Sends a response with a length.
pub(crate) fn answer(
    stream: &mut TcpStream,
    status: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> AfterResponse {
    let _ = stream.write_all(&respond(status, headers, body));
    AfterResponse::Keep
}

/// Bytes of a response.
pub(crate) fn respond(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend(format!("{name}: {value}\r\n").bytes());
    }
    bytes.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
    bytes.extend(body);
    bytes
}

fn note(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn serve(
    listener: TcpListener,
    talk: impl Fn(TcpStream, usize) + Send + Sync + 'static,
) -> JoinHandle<()> {
    let talk = Arc::new(talk);
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            // An error means that the upstream was killed.
            let Ok(stream) = stream else { return };
            let talk = talk.clone();
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || talk(stream, at));
        }
    })
}

/// A connection with a strict parser.
struct Reading {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Reading {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Reads and records the next request; `None` at the end.
    fn next(&mut self, noted: &Mutex<Noted>, connection: usize) -> Option<Seen> {
        let mut seen = match self.read(connection) {
            Ok(seen) => seen?,
            Err(fault) => {
                note(noted).faults.push(fault);
                return None;
            }
        };
        let mut noted = note(noted);
        seen.at = noted.seen.len();
        noted.seen.push(seen.clone());
        Some(seen)
    }

    /// Reads a request; `None` if the connection ends before or within one, which is allowed.
    fn read(&mut self, connection: usize) -> Result<Option<Seen>, String> {
        let Some(head) = self.until(b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = String::from_utf8(head).map_err(|error| error.to_string())?;
        let mut seen = Seen {
            head,
            body: Vec::new(),
            trailers: String::new(),
            connection,
            at: 0,
        };
        check(&seen.head)?;
        let is_whole = match (
            seen.header("content-length"),
            seen.header("transfer-encoding"),
        ) {
            (None, None) => true,
            (Some(len), None) => {
                let len = len.parse().map_err(|_| format!("length {len}"))?;
                let body = self.exactly(len);
                seen.body = body.clone().unwrap_or_default();
                body.is_some()
            }
            (None, Some("chunked")) => self.chunked(&mut seen)?.is_some(),
            both => return Err(format!("length and encoding: {both:?}")),
        };
        Ok(is_whole.then_some(seen))
    }

    fn chunked(&mut self, seen: &mut Seen) -> Result<Option<()>, String> {
        loop {
            let Some(line) = self.until(b"\r\n") else {
                return Ok(None);
            };
            let line = String::from_utf8_lossy(&line).into_owned();
            let size = line.trim_end();
            let len = usize::from_str_radix(size, 16).map_err(|_| format!("chunk {size:?}"))?;
            if len == 0 {
                break;
            }
            let Some(chunk) = self.exactly(len + 2) else {
                return Ok(None);
            };
            if !chunk.ends_with(b"\r\n") {
                return Err(format!("a chunk of {len} without its end"));
            }
            seen.body.extend(&chunk[..len]);
        }
        loop {
            let Some(line) = self.until(b"\r\n") else {
                return Ok(None);
            };
            if line == b"\r\n" {
                return Ok(Some(()));
            }
            seen.trailers += &String::from_utf8_lossy(&line);
        }
    }

    fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = find(&self.buffer, end) {
                return Some(self.buffer.drain(..at + end.len()).collect());
            }
            self.fill()?;
        }
    }

    fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < len {
            self.fill()?;
        }
        Some(self.buffer.drain(..len).collect())
    }

    fn fill(&mut self) -> Option<()> {
        let mut bytes = [0; 64 << 10];
        let len = self.stream.read(&mut bytes).ok()?;
        self.buffer.extend_from_slice(&bytes[..len]);
        (len > 0).then_some(())
    }
}

/// Checks a head: a line of three words, then fields of a name, a colon and a value.
fn check(head: &str) -> Result<(), String> {
    let is_name = |name: &str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !name.is_empty() && name.bytes().all(is_good)
    };
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.split(' ');
    let words = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.1"), None) = words else {
        return Err(format!("request line {first:?}"));
    };
    if !is_name(method) || !(target.starts_with('/') || target == "*") {
        return Err(format!("request line {first:?}"));
    }
    for line in lines {
        let name = line.split_once(':').map(|(name, _)| name);
        let has_control = line.bytes().any(|byte| byte < 0x20 && byte != b'\t');
        if !name.is_some_and(is_name) || has_control {
            return Err(format!("field {line:?}"));
        }
    }
    Ok(())
}
