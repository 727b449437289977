//! Finds the interim responses (1xx) in the bytes of an upstream, before hyper, which skips them.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Number of bytes that tell an interim response: `HTTP/1.1 1`.
const PREFIX_LEN: usize = 10;
/// Maximum size of an interim head, and of what arrives before its end. A longer one is not passed on.
const BYTES_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 100;
/// Maximum number of interim responses before a response: reading more would keep the thread from everything else.
const RESPONSES_MAX: u32 = 1_000;

/// The bytes of a response up to its final head.
#[derive(Debug, Default)]
pub(crate) struct InterimScan {
    buffer: Vec<u8>,
    /// Number of interim responses before the current response.
    count: u32,
}

impl InterimScan {
    /// Looks at the next bytes, and passes the complete interim responses to `found`. Returns whether more may follow.
    ///
    /// # Errors
    /// If there are too many of them.
    pub(crate) fn scan(
        &mut self,
        bytes: &[u8],
        mut found: impl FnMut(StatusCode, HeaderMap),
    ) -> Result<bool, &'static str> {
        // Nearly all responses have none.
        if self.buffer.is_empty() && is_final(bytes) {
            self.count = 0;
            return Ok(false);
        }
        self.buffer.extend_from_slice(bytes);
        while !is_final(&self.buffer) {
            let Some(len) = head_len(&self.buffer) else {
                if self.buffer.len() < BYTES_MAX {
                    return Ok(true);
                }
                break;
            };
            match parsed(&self.buffer[..len]) {
                // The proxy itself sends the 100 that a client waits for.
                Some((StatusCode::CONTINUE, _)) => {}
                // The connection changes its protocol: what follows is no response.
                None | Some((StatusCode::SWITCHING_PROTOCOLS, _)) => break,
                Some((status, fields)) => found(status, fields),
            }
            self.buffer.drain(..len);
            self.count += 1;
            if self.count > RESPONSES_MAX {
                return Err("the upstream sent too many interim responses");
            }
        }
        *self = Self::default();
        Ok(false)
    }
}

/// Whether the status is no interim one. The begin of a head alone does not tell.
fn is_final(bytes: &[u8]) -> bool {
    bytes.len() >= PREFIX_LEN && bytes[PREFIX_LEN - 1] != b'1'
}

fn head_len(bytes: &[u8]) -> Option<usize> {
    let end = b"\r\n\r\n";
    let at = bytes.windows(end.len()).position(|window| window == end)?;
    Some(at + end.len())
}

fn parsed(head: &[u8]) -> Option<(StatusCode, HeaderMap)> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    response.parse(head).ok()?;
    let status = StatusCode::from_u16(response.code?).ok()?;
    let mut headers = HeaderMap::new();
    for field in &*response.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    status.is_informational().then_some((status, headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statuses with their `Link`, for bytes that arrive in pieces of this size.
    fn found(text: &str, piece: usize) -> Vec<String> {
        let mut scan = InterimScan::default();
        let mut all = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            let is_open = scan.scan(bytes, |status, fields| {
                let link = fields.get("link").map_or("", |it| it.to_str().unwrap());
                all.push(format!("{} {link}", status.as_u16()));
            });
            if !is_open.unwrap() {
                break;
            }
        }
        all
    }

    #[test]
    fn finds_interim_responses_however_they_are_split() {
        const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        const FINAL: &str = "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n";
        for (text, expected) in [
            (FINAL.to_owned(), &[][..]),
            (format!("{HINT}{FINAL}"), &["103 </a>"]),
            (
                format!("{HINT}HTTP/1.1 102 \r\n\r\n{FINAL}"),
                &["103 </a>", "102 "],
            ),
            (
                format!("HTTP/1.1 100 Continue\r\n\r\n{HINT}{FINAL}"),
                &["103 </a>"],
            ),
            (format!("HTTP/1.1 101 Switch\r\n\r\n{HINT}"), &[]),
            (format!("HTTP/1.1 1x3 Odd\r\n\r\n{HINT}"), &[]),
        ] {
            for piece in [1, 7, text.len()] {
                assert_eq!(found(&text, piece), expected, "{text:?} by {piece}");
            }
        }
    }

    #[test]
    fn gives_up_on_an_endless_head_and_on_endless_responses() {
        let mut scan = InterimScan::default();
        assert_eq!(
            scan.scan(b"HTTP/1.1 103 Early Hints\r\n", |_, _| {}),
            Ok(true)
        );
        let line = [b'x'; 1 << 10];
        let pieces = (0..100)
            .take_while(|_| scan.scan(&line, |_, _| {}) == Ok(true))
            .count();
        assert!(pieces < 70, "{pieces} KiB");
        assert_eq!(scan.buffer.capacity(), 0);
        let hint = b"HTTP/1.1 103 Early Hints\r\n\r\n";
        let many = (0..10_000).take_while(|_| scan.scan(hint, |_, _| {}) == Ok(true));
        assert_eq!(many.count(), RESPONSES_MAX as usize);
    }
}
