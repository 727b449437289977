//! Hand-written HTTP/2 frames: a library would not send the invalid ones that these tests need.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY: u8 = 2;
/// Identifier of SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: [u8; 2] = [0, 4];
const FRAME_MAX: usize = 16 << 10;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// Connects and sends preface and settings, with a window of `window` bytes for each response.
pub(crate) fn connect(address: SocketAddr, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let room = [&[0, 4][..], &window.to_be_bytes()].concat();
    bytes.extend(frame(SETTINGS, 0, 0, &room));
    stream.write_all(&bytes).unwrap();
    stream
}

/// A block of fields. They are literal: neither indexed nor Huffman-coded, and not validated.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

/// A HEADERS frame with all fields.
pub(crate) fn head(stream: u32, fields: &[(&str, &str)], has_body: bool) -> Vec<u8> {
    let block = block(fields);
    let end = if has_body { 0 } else { END_STREAM };
    frame(HEADERS, END_HEADERS | end, stream, &block)
}

/// The last DATA frame of a body.
pub(crate) fn body(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, bytes)
}

pub(crate) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[0; 8])
}

/// Cancels a stream.
pub(crate) fn reset(stream: u32) -> Vec<u8> {
    const CANCEL: [u8; 4] = 8_u32.to_be_bytes();
    frame(RST_STREAM, 0, stream, &CANCEL)
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = len[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Sends one request; returns the status, or `None` if the stream is reset.
pub(crate) fn call(
    address: SocketAddr,
    fields: &[(&str, &str)],
    sent: Option<&str>,
) -> Option<u16> {
    let mut stream = connect(address, 65_535);
    let mut bytes = head(1, fields, sent.is_some());
    bytes.extend(sent.into_iter().flat_map(|sent| body(1, sent.as_bytes())));
    stream.write_all(&bytes).unwrap();
    answer(&mut stream)
}

/// The status of the next response; `None` if there is none.
pub(crate) fn answer(stream: &mut TcpStream) -> Option<u16> {
    loop {
        let frame = next(stream)?;
        match frame.kind {
            HEADERS => return Some(status(&frame.payload)),
            RST_STREAM | GOAWAY => return None,
            _ => {}
        }
    }
}

/// A received frame.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// The next frame; `None` at the end.
fn next(stream: &mut TcpStream) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; len as usize];
    stream.read_exact(&mut payload).ok()?;
    Some(Frame {
        kind: head[3],
        flags: head[4],
        stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        payload,
    })
}

/// Send windows of the connection and of the one stream.
struct Windows {
    connection: i64,
    body: i64,
    initial: i64,
}

impl Windows {
    fn take_in(&mut self, frame: &Frame) {
        let number = |bytes: &[u8]| i64::from(u32::from_be_bytes(bytes.try_into().unwrap()));
        match frame.kind {
            SETTINGS => {
                for setting in frame.payload.chunks(6) {
                    if setting[..2] == INITIAL_WINDOW {
                        let initial = number(&setting[2..]);
                        self.body += initial - self.initial;
                        self.initial = initial;
                    }
                }
            }
            WINDOW_UPDATE if frame.stream == 0 => self.connection += number(&frame.payload),
            WINDOW_UPDATE => self.body += number(&frame.payload),
            _ => {}
        }
    }
}

/// Sends a request with a body of `len` bytes to its end, even if the response arrives earlier.
///
/// Returns the status, or why the body could not be sent or no response arrived.
pub(crate) fn upload(
    address: SocketAddr,
    fields: &[(&str, &str)],
    len: usize,
) -> Result<u16, String> {
    let mut stream = connect(address, 65_535);
    stream.write_all(&head(1, fields, true)).unwrap();
    let (mut left, mut told) = (len, None);
    let mut windows = Windows {
        connection: 65_535,
        body: 65_535,
        initial: 65_535,
    };
    loop {
        let room = usize::try_from(windows.connection.min(windows.body)).unwrap_or(0);
        let piece = room.min(left).min(FRAME_MAX);
        if piece > 0 {
            left -= piece;
            windows.connection -= i64::try_from(piece).unwrap();
            windows.body -= i64::try_from(piece).unwrap();
            let flags = if left == 0 { END_STREAM } else { 0 };
            let sent = stream.write_all(&frame(DATA, flags, 1, &vec![b'x'; piece]));
            sent.map_err(|error| format!("closed with {left} bytes left: {error}"))?;
            continue;
        }
        if let Some(told) = told.filter(|_| left == 0) {
            return Ok(told);
        }
        let frame = next(&mut stream).ok_or("the connection ended")?;
        match frame.kind {
            HEADERS if frame.flags & END_HEADERS != 0 => {
                told = told.or(Some(status(&frame.payload)));
            }
            RST_STREAM => return Err(format!("reset with {left} bytes left: {:?}", frame.payload)),
            SETTINGS if frame.flags & ACK == 0 => {
                // The peer applies its settings only after this acknowledgement.
                let _ = stream.write_all(&self::frame(SETTINGS, ACK, 0, &[]));
                windows.take_in(&frame);
            }
            GOAWAY => return Err(format!("given up with {left} bytes left")),
            _ => windows.take_in(&frame),
        }
    }
}

/// Decodes the status, the first field of a response: an index of the static table, or a literal value.
fn status(block: &[u8]) -> u16 {
    const KNOWN: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match *block {
        [at @ 0x88..=0x8e, ..] => KNOWN[usize::from(at - 0x88)],
        [0x48 | 0x08 | 0x18, len, ref rest @ ..] => {
            let value = &rest[..usize::from(len & 0x7f)];
            let is_coded = len & 0x80 != 0;
            let digits = if is_coded {
                digits(value)
            } else {
                value.to_vec()
            };
            String::from_utf8(digits).unwrap().parse().unwrap()
        }
        _ => panic!("the response does not start with its status: {block:x?}"),
    }
}

/// Decodes Huffman-coded digits: 0 to 2 have five bits, the others six. The padding is ones.
fn digits(coded: &[u8]) -> Vec<u8> {
    let bit = |at: usize| coded[at / 8] >> (7 - at % 8) & 1;
    let bits = |from: usize, len: usize| (from..from + len).fold(0, |all, at| all << 1 | bit(at));
    let (mut at, mut digits) = (0, Vec::new());
    while at + 5 <= coded.len() * 8 {
        let (len, digit) = match bits(at, 5) {
            low @ 0..=2 => (5, low),
            0b1_1111 => break,
            _ => (6, bits(at, 6) - 0b01_1001 + 3),
        };
        at += len;
        digits.push(b'0' + digit);
    }
    digits
}
