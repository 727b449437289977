//! A client that sends arbitrary bytes and parses responses strictly.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, socket_with,
    sockopt::set_socket_recv_buffer_size,
};

use super::{PATIENCE, find};

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

/// A parsed HTTP/1.1 response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// As received, each with its line end.
    pub(crate) trailers: String,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// A client for which the system buffers little of what it does not read.
    pub(crate) fn connect_narrow(address: SocketAddr) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        set_socket_recv_buffer_size(&socket, 4096).unwrap();
        connect(&socket, &address).unwrap();
        Self::over(socket.into())
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Sends bytes. If the proxy has closed the connection, the next read reports it.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// A second handle, to send from another thread.
    pub(crate) fn sender(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    pub(crate) fn say_no_more(&mut self) -> &mut Self {
        let _ = self.stream.shutdown(Shutdown::Write);
        self
    }

    /// The next response to a request other than `HEAD`.
    pub(crate) fn answer(&mut self) -> HttpResponse {
        self.try_answer()
            .expect("a response before the end of the connection")
    }

    /// The next response; `None` if the connection ends before its first byte.
    pub(crate) fn try_answer(&mut self) -> Option<HttpResponse> {
        loop {
            let answer = self.head()?;
            match answer.status {
                // An interim response is followed by the final one.
                100..=199 if answer.status != 101 => {}
                101 | 204 | 304 => return Some(answer),
                _ => return Some(self.with_body(answer)),
            }
        }
    }

    /// The next head; no byte after it is consumed.
    pub(crate) fn head(&mut self) -> Option<HttpResponse> {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            if !self.fill() {
                assert!(self.buffer.is_empty(), "cut off: {:?}", self.buffered());
                return None;
            }
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        assert!(head.starts_with("HTTP/1.1 "), "{head:?}");
        Some(HttpResponse {
            status: status.unwrap(),
            head,
            body: Vec::new(),
            trailers: String::new(),
        })
    }

    fn with_body(&mut self, mut answer: HttpResponse) -> HttpResponse {
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend(chunk);
            }
            loop {
                let line = self.line();
                if line == "\r\n" {
                    return answer;
                }
                answer.trailers += &line;
            }
        }
        match answer.header("content-length") {
            Some(len) => answer.body = self.exactly(len.parse().unwrap()),
            None => {
                while self.fill() {}
                answer.body = std::mem::take(&mut self.buffer);
            }
        }
        answer
    }

    /// The next chunk; `None` for the last one, which is followed by the trailers.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.line();
        let len = usize::from_str_radix(line.trim_end(), 16).unwrap();
        if len == 0 {
            return None;
        }
        let chunk = self.exactly(len);
        assert_eq!(self.line(), "\r\n");
        Some(chunk)
    }

    pub(crate) fn line(&mut self) -> String {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                return String::from_utf8(self.buffer.drain(..at + 2).collect()).unwrap();
            }
            assert!(self.fill(), "cut off: {:?}", self.buffered());
        }
    }

    pub(crate) fn exactly(&mut self, len: usize) -> Vec<u8> {
        while self.buffer.len() < len {
            assert!(self.fill(), "cut off: {:?}", self.buffered());
        }
        self.buffer.drain(..len).collect()
    }

    /// Whether the proxy has closed the connection without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill() && self.buffer.is_empty()
    }

    fn buffered(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Reads more bytes; `false` at the end.
    fn fill(&mut self) -> bool {
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(len) => {
                self.buffer.extend_from_slice(&bytes[..len]);
                len > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            // A stopped process continues.
            Err(error) if error.kind() == ErrorKind::Interrupted => self.fill(),
            Err(error) => panic!("{error}; received so far: {:?}", self.buffered()),
        }
    }
}

impl HttpResponse {
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

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Whether the response is a replay.
    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Problem code, if the response is one of Refrain's problems.
    pub(crate) fn code(&self) -> Option<String> {
        if self.header("content-type") != Some("application/problem+json") {
            return None;
        }
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().map(String::from)
    }
}

/// Bytes of a request, with a length if it has a body.
pub(crate) fn request(start: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{start} HTTP/1.1\r\nhost: shop.test\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend(format!("{name}: {value}\r\n").bytes());
    }
    if !body.is_empty() || start.starts_with("POST") {
        bytes.extend(format!("content-length: {}\r\n", body.len()).bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    bytes
}

/// `POST /orders` with a key.
pub(crate) fn post(key: &str, body: &str) -> Vec<u8> {
    request("POST /orders", &[("idempotency-key", key)], body.as_bytes())
}

/// `GET` without headers.
pub(crate) fn get(path: &str) -> Vec<u8> {
    request(&format!("GET {path}"), &[], b"")
}

/// A request without a body, with the server's address as `Host`.
pub(crate) fn request_to(address: SocketAddr, start: &str) -> Vec<u8> {
    format!("{start} HTTP/1.1\r\nhost: {address}\r\n\r\n").into()
}

/// A request with a JSON body, with the server's address as `Host`.
pub(crate) fn request_json(address: SocketAddr, start: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{start} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into()
}

/// Sends one request on a new connection.
pub(crate) fn call(address: SocketAddr, bytes: impl AsRef<[u8]>) -> HttpResponse {
    Client::connect(address).send(bytes).answer()
}
