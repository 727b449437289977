//! A client that writes and reads raw HTTP/1.1 bytes.

#![allow(
    dead_code,
    reason = "each test file that takes this in uses a part of it"
)]

use std::net::SocketAddr;

use axum::Router;
use refrain_testkit::wait::PATIENCE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

/// Serves on a free port until the test's runtime ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// One connection.
pub(crate) struct Wire {
    writer: OwnedWriteHalf,
    reader: Reader,
}

/// The read half of a connection.
pub(crate) struct Reader {
    stream: OwnedReadHalf,
    /// Bytes that were read but not parsed yet.
    ahead: Vec<u8>,
}

/// A parsed response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Got {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(it, _)| it == name);
        named.map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A request as bytes; each line of `headers` ends with a line break.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("content-length: {}\r\n", body.len()),
    };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: shop\r\n{headers}{length}\r\n");
    [head.as_bytes(), body].concat()
}

/// The same with a chunked body, in chunks of at most `size` bytes.
pub(crate) fn chunked(
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
    size: usize,
) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: shop\r\n{headers}transfer-encoding: chunked\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    for chunk in body.chunks(size) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

impl Wire {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let (stream, writer) = TcpStream::connect(address).await.unwrap().into_split();
        let ahead = Vec::new();
        let reader = Reader { stream, ahead };
        Self { writer, reader }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    /// Closes the connection with a reset, as if the client's process was killed.
    pub(crate) fn reset(self) {
        self.writer.as_ref().set_zero_linger().unwrap();
        self.writer.forget();
    }

    pub(crate) async fn ask(&mut self, bytes: &[u8]) -> Got {
        self.pipeline(bytes, 1).await.remove(0)
    }

    /// Sends all bytes while it reads the responses; returns fewer if the server closes before it has read or sent
    /// everything.
    pub(crate) async fn pipeline(&mut self, bytes: &[u8], answers: usize) -> Vec<Got> {
        let Self { writer, reader } = self;
        let reading = async {
            let mut got = Vec::new();
            while got.len() < answers
                && let Some(one) = reader.got().await
            {
                got.push(one);
            }
            got
        };
        let (_, got) = tokio::join!(writer.write_all(bytes), reading);
        got
    }
}

impl std::ops::Deref for Wire {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl std::ops::DerefMut for Wire {
    fn deref_mut(&mut self) -> &mut Reader {
        &mut self.reader
    }
}

impl Reader {
    /// The next response; `None` if the server has closed.
    pub(crate) async fn got(&mut self) -> Option<Got> {
        let (status, headers) = self.head().await?;
        let mut got = Got {
            status,
            headers,
            body: Vec::new(),
            trailers: Vec::new(),
        };
        if status < 200 || status == 204 || status == 304 {
            return Some(got);
        }
        if got.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                got.body.extend(chunk);
            }
            got.trailers = self.fields().await?;
        } else {
            let length = got.header("content-length").map(|it| it.parse().unwrap());
            got.body = self.exactly(length.unwrap_or(0)).await?;
        }
        Some(got)
    }

    /// The head of the next response only.
    pub(crate) async fn head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        let line = self.line().await?;
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        Some((status, self.fields().await?))
    }

    pub(crate) async fn fields(&mut self) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else {
                return Some(fields);
            };
            fields.push((name.to_lowercase(), value.to_owned()));
        }
    }

    /// The next chunk of a chunked body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
        if size == 0 {
            return None;
        }
        let chunk = self.exactly(size).await?;
        self.line().await?;
        Some(chunk)
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.ahead.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            self.more().await?;
        }
    }

    pub(crate) async fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.ahead.len() < len {
            self.more().await?;
        }
        Some(self.ahead.drain(..len).collect())
    }

    /// Reads more bytes; `None` once the server has closed.
    async fn more(&mut self) -> Option<()> {
        let mut some = [0; 16_384];
        let reading = timeout(PATIENCE, self.stream.read(&mut some));
        let len = reading.await.expect("bytes within a minute").ok()?;
        self.ahead.extend(&some[..len]);
        (len > 0).then_some(())
    }
}
