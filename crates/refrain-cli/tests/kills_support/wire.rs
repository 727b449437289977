//! HTTP/1.1 with exact bytes, for clients and servers.

#![allow(dead_code, reason = "each test file uses only part of this module")]

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Longer than any response takes: a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    /// Bytes that are read and not parsed yet.
    ahead: Vec<u8>,
}

/// A request or a response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    /// Start line.
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(it, _)| it == name);
        named.next().map(|(_, value)| value.as_str())
    }

    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Path and query of a request.
    pub(crate) fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap()
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").unwrap_or_default()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Problem code; empty if the response is not a problem.
    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or_default().to_owned()
    }

    /// What a client acts on: `201`, or `409 in-flight`.
    pub(crate) fn verdict(&self) -> String {
        let verdict = format!("{} {}", self.status(), self.code());
        verdict.trim_end().to_owned()
    }
}

/// Bytes of a request; each of `headers` ends with a line break.
pub(crate) fn request(method: &str, target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = match body.is_empty() && method == "GET" {
        true => String::new(),
        false => format!("content-length: {}\r\n", body.len()),
    };
    let head = format!("{method} {target} HTTP/1.1\r\nhost: shop\r\n{headers}{length}\r\n");
    [head.as_bytes(), body].concat()
}

/// Bytes of a `POST` with a key.
pub(crate) fn post(target: &str, key: &str, body: &[u8]) -> Vec<u8> {
    request("POST", target, &format!("idempotency-key: {key}\r\n"), body)
}

/// Bytes of a response.
pub(crate) fn response(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = body.len();
    let head = format!("HTTP/1.1 {status} As-It-Is\r\n{headers}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Sends a request on a new connection.
pub(crate) async fn ask(address: SocketAddr, bytes: &[u8]) -> Message {
    let mut wire = Wire::open(address).await.unwrap();
    wire.ask(bytes).await.unwrap()
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let ahead = Vec::new();
        Self { stream, ahead }
    }

    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Resets the connection, as when the client's process is killed.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Sends a request and reads its response.
    pub(crate) async fn ask(&mut self, bytes: &[u8]) -> io::Result<Message> {
        self.send(bytes).await?;
        self.response().await
    }

    pub(crate) async fn response(&mut self) -> io::Result<Message> {
        self.message(false).await
    }

    pub(crate) async fn request(&mut self) -> io::Result<Message> {
        self.message(true).await
    }

    /// Reads the head of the next message, and nothing of its body.
    pub(crate) async fn head(&mut self) -> io::Result<Message> {
        let line = self.line().await?;
        let mut headers = Vec::new();
        loop {
            let field = self.line().await?;
            let Some((name, value)) = field.split_once(':') else {
                break;
            };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let body = Vec::new();
        Ok(Message {
            line,
            headers,
            body,
        })
    }

    async fn message(&mut self, is_request: bool) -> io::Result<Message> {
        let mut message = self.head().await?;
        if !is_request && matches!(message.status(), 100..200 | 204 | 304) {
            return Ok(message);
        }
        if message.header("transfer-encoding") == Some("chunked") {
            message.body = self.chunks().await?;
        } else if let Some(length) = message.header("content-length") {
            message.body = self.exactly(length.parse().unwrap()).await?;
        }
        Ok(message)
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let size = usize::from_str_radix(&line, 16).unwrap();
            body.extend(self.exactly(size).await?);
            self.line().await?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.ahead.drain(..end + 2).collect();
                return Ok(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            self.more().await?;
        }
    }

    pub(crate) async fn exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < len {
            self.more().await?;
        }
        Ok(self.ahead.drain(..len).collect())
    }

    /// Reads more bytes. The end of the connection is an error, because the caller expects more.
    async fn more(&mut self) -> io::Result<()> {
        let mut some = vec![0; 16_384];
        match timeout(PATIENCE, self.stream.read(&mut some)).await?? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                self.ahead.extend(&some[..len]);
                Ok(())
            }
        }
    }
}
