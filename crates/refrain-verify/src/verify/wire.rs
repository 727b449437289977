//! Writes HTTP requests byte by byte, because an HTTP library would refuse to send some of them.

use std::{io::ErrorKind, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::place::{Endpoint, Stream};

/// Maximum size of a response, in bytes.
const ANSWER_BYTES_MAX: usize = 32 << 20;
const FIELDS_MAX: usize = 128;

/// A request as sent on the wire. A header may occur twice and contain any bytes.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Bytes,
}

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReceivedResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

/// Why there is no response: the connection was closed or refused, or timed out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Lost(pub(super) String);

pub(super) type Sent = Result<ReceivedResponse, Lost>;

impl Request {
    /// Removes all headers of this name.
    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers
            .retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self
    }

    /// Replaces all headers of this name with one.
    pub(super) fn set_header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.without(name).add_header(name, value)
    }

    /// Adds a header.
    pub(super) fn add_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers
            .push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    fn bytes(&self, authority: &str) -> Vec<u8> {
        let (method, target) = (&self.method, &self.target);
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nhost: {authority}\r\n").into_bytes();
        for (name, value) in &self.headers {
            bytes.extend(name.as_bytes());
            bytes.extend(b": ");
            bytes.extend(value);
            bytes.extend(b"\r\n");
        }
        let is_told = |(name, _): &(String, _)| name.eq_ignore_ascii_case("connection");
        if !self.headers.iter().any(is_told) {
            bytes.extend(b"connection: close\r\n");
        }
        let length = self.body.len();
        bytes.extend(format!("content-length: {length}\r\n\r\n").bytes());
        bytes.extend(&self.body);
        bytes
    }
}

impl ReceivedResponse {
    /// Also true for a 303 with a `Location`, which services send after a form.
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status) || self.status == 303 && self.header("location").is_some()
    }

    pub(super) fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status)
    }

    /// Returns the first header of this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(super) fn all<'a, 'n>(
        &'a self,
        name: &'n str,
    ) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        let is_it = move |(found, _): &&(String, String)| found.eq_ignore_ascii_case(name);
        self.headers.iter().filter(is_it).map(|(_, value)| &**value)
    }
}

/// A connection with one request, whose last byte may still be held back.
#[derive(Debug)]
pub(super) struct PartialRequest {
    stream: Box<dyn Stream>,
    held: Option<u8>,
    /// Bytes received but not parsed yet.
    buffer: Vec<u8>,
}

impl PartialRequest {
    /// Connects and sends everything except the last byte, which [`PartialRequest::release`] sends.
    pub(super) async fn prepare(
        place: &Endpoint,
        authority: &str,
        request: &Request,
        patience: Duration,
    ) -> Result<Self, Lost> {
        let mut bytes = request.bytes(authority);
        let held = bytes.pop();
        let opened = async {
            let mut stream = place.connect().await?;
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            Ok::<_, std::io::Error>(stream)
        };
        let stream = timed(patience, opened).await?;
        Ok(Self {
            stream,
            held,
            buffer: Vec::new(),
        })
    }

    /// Sends the last byte, so that the service has the whole request.
    pub(super) async fn release(&mut self) -> Result<(), Lost> {
        match self.held.take() {
            Some(byte) => {
                let sent = async {
                    self.stream.write_all(&[byte]).await?;
                    self.stream.flush().await
                };
                sent.await
                    .map_err(|error| Lost(format!("the connection ended: {error}")))
            }
            None => Ok(()),
        }
    }

    /// Sends another request on the same connection, after a response.
    pub(super) async fn write(
        &mut self,
        authority: &str,
        request: &Request,
        patience: Duration,
    ) -> Result<(), Lost> {
        let bytes = request.bytes(authority);
        timed(patience, self.stream.write_all(&bytes)).await
    }

    /// Reads the response.
    pub(super) async fn answer(&mut self, patience: Duration) -> Sent {
        self.release().await?;
        let read = async {
            let mut is_end = false;
            loop {
                if let Some(parsed) = parse(&self.buffer, is_end) {
                    return Ok(parsed.map(|(answer, used)| {
                        self.buffer.drain(..used);
                        answer
                    }));
                }
                is_end = match self.stream.read_buf(&mut self.buffer).await {
                    // Many services close a TLS connection without `close_notify`.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => true,
                    read => read? == 0,
                };
                if self.buffer.len() > ANSWER_BYTES_MAX {
                    return Ok(Err(Lost(format!(
                        "the response is larger than {ANSWER_BYTES_MAX} bytes"
                    ))));
                }
            }
        };
        timed(patience, read).await?
    }
}

/// Sends one request on a new connection.
pub(super) async fn send(
    place: &Endpoint,
    authority: &str,
    request: &Request,
    patience: Duration,
) -> Sent {
    let mut line = PartialRequest::prepare(place, authority, request, patience).await?;
    line.answer(patience).await
}

async fn timed<T>(
    patience: Duration,
    work: impl Future<Output = std::io::Result<T>>,
) -> Result<T, Lost> {
    match timeout(patience, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Lost(format!("the connection failed: {error}"))),
        Err(_) => Err(Lost(format!("no response within {patience:?}"))),
    }
}

/// Parses the response in `bytes`; returns it with its length, or `None` if it is incomplete.
fn parse(bytes: &[u8], is_end: bool) -> Option<Result<(ReceivedResponse, usize), Lost>> {
    let mut rest = bytes;
    loop {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let length = match head.parse(rest) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if !is_end => return None,
            Ok(httparse::Status::Partial) if bytes.is_empty() => {
                return Some(Err(Lost(
                    "the connection was closed without a response".into(),
                )));
            }
            Ok(httparse::Status::Partial) => {
                return Some(Err(Lost(
                    "the connection was closed in the middle of the response".into(),
                )));
            }
            Err(error) => {
                return Some(Err(Lost(format!(
                    "the response is not valid HTTP: {error}"
                ))));
            }
        };
        rest = &rest[length..];
        let status = head.code.unwrap_or_default();
        if (100..200).contains(&status) {
            continue;
        }
        let text = |field: &httparse::Header<'_>| {
            let value = String::from_utf8_lossy(field.value).into_owned();
            (field.name.to_owned(), value)
        };
        let mut answer = ReceivedResponse {
            status,
            headers: head.headers.iter().map(text).collect(),
            body: Bytes::new(),
        };
        let before = bytes.len() - rest.len();
        return Some(body(&answer, rest, is_end)?.map(|(body, used)| {
            answer.body = body.into();
            (answer, before + used)
        }));
    }
}

/// Reads the body at the start of `rest`; returns it with its length.
fn body(
    answer: &ReceivedResponse,
    rest: &[u8],
    is_end: bool,
) -> Option<Result<(Vec<u8>, usize), Lost>> {
    let cut = || is_end.then(|| Err(Lost("the response body was truncated".into())));
    if matches!(answer.status, 204 | 304) {
        return Some(Ok((Vec::new(), 0)));
    }
    let is_chunked = answer
        .all("transfer-encoding")
        .any(|coding| coding.to_ascii_lowercase().contains("chunked"));
    if is_chunked {
        return unchunked(rest).map(Ok).or_else(cut);
    }
    let length = answer.header("content-length");
    match length.and_then(|length| length.trim().parse::<usize>().ok()) {
        Some(length) if rest.len() >= length => Some(Ok((rest[..length].to_vec(), length))),
        Some(_) => cut(),
        None => is_end.then(|| Ok((rest.to_vec(), rest.len()))),
    }
}

/// Decodes a chunked body; returns it with its encoded length, or `None` if it is incomplete.
fn unchunked(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, whole) = (Vec::new(), rest.len());
    loop {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            // Trailers are ignored; they end with an empty line.
            let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
            let trailed = rest.windows(4).position(|four| four == b"\r\n\r\n");
            let used = if end == 0 { 2 } else { trailed? + 4 };
            return Some((body, whole - rest.len() + used));
        }
        body.extend(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_however_they_are_framed() {
        for (text, is_end, body) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
                false,
                Some("ok"),
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
                false,
                None,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nall of it", true, Some("all of it")),
            ("HTTP/1.1 200 OK\r\n\r\nall", false, None),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
                false,
                Some(""),
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=1\r\nok\r\n1\r\n!\r\n0\r\n\r\n",
                false,
                Some("ok!"),
            ),
        ] {
            let parsed = parse(text.as_bytes(), is_end).map(|sent| sent.unwrap().0.body);
            assert_eq!(parsed.as_deref(), body.map(str::as_bytes), "{text}");
        }
        for text in [
            "",
            "HTTP/1.1 2",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
        ] {
            assert!(parse(text.as_bytes(), true).unwrap().is_err(), "{text}");
        }
    }
}
