//! Interim responses (1xx) on their way to a client over HTTP/1.1.
//!
//! hyper's server has no way to send them, so the stream below it writes them before the head of the response.
//! They belong to the request in progress alone: one that arrives after its response has begun is dropped.

use std::{
    io::Write as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::{BufMut as _, BytesMut};
use http::{HeaderMap, HeaderName, StatusCode, header};

use crate::{headers, watch::Client};

/// Maximum size of interim responses that wait for a client, in bytes; further ones are dropped.
const WAITING_BYTES_MAX: usize = 64 << 10;

/// The interim responses of one connection that were not written yet.
#[derive(Debug, Default)]
pub(crate) struct Interim {
    /// Odd while a request waits for its response; each request has another number. Only the task of the connection changes it.
    turn: AtomicU64,
    /// Whether any bytes wait.
    is_waiting: AtomicBool,
    waiting: Mutex<BytesMut>,
}

impl Interim {
    /// A request begins to wait for its response.
    pub(crate) fn begin(&self) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn + 1 + turn % 2, Relaxed);
    }

    /// The response of the request in progress begins.
    pub(crate) fn end(&self) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn + turn % 2, Relaxed);
    }

    /// The bytes that wait; they are written before anything else.
    pub(super) fn waiting(&self) -> Option<MutexGuard<'_, BytesMut>> {
        let is_waiting = self.is_waiting.load(Relaxed);
        is_waiting.then(|| self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that all bytes were written.
    pub(super) fn note_written(&self) {
        self.is_waiting.store(false, Relaxed);
    }
}

/// Sends interim responses to one request.
#[derive(Debug, Clone)]
pub(crate) struct InterimSender {
    client: Arc<Client>,
    turn: u64,
}

impl InterimSender {
    /// Sends to the request in progress; `None` if there is none that can receive them.
    pub(crate) fn new(client: &Arc<Client>) -> Option<Self> {
        let turn = client.interim.turn.load(Relaxed);
        (turn % 2 == 1).then(|| Self {
            client: client.clone(),
            turn,
        })
    }

    /// Sends one interim response, unless the response itself has begun.
    pub(crate) fn send(&self, status: StatusCode, mut fields: HeaderMap) {
        let interim = &self.client.interim;
        let waiting = interim.waiting.lock();
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        if interim.turn.load(Relaxed) != self.turn || waiting.len() > WAITING_BYTES_MAX {
            return;
        }
        headers::to_client(&mut fields);
        remove_own(&mut fields);
        write_head(&mut waiting, status, &fields);
        interim.is_waiting.store(true, Relaxed);
        self.client.wake();
    }
}

/// Removes the fields that only a response may have, or that never reach clients.
fn remove_own(fields: &mut HeaderMap) {
    fields.remove(header::CONTENT_LENGTH);
    let is_own = |name: &&HeaderName| name.as_str().starts_with("refrain-");
    let own: Vec<_> = fields.keys().filter(is_own).cloned().collect();
    own.iter().for_each(|name| drop(fields.remove(name)));
}

fn write_head(out: &mut BytesMut, status: StatusCode, fields: &HeaderMap) {
    let (code, reason) = (status.as_u16(), status.canonical_reason());
    // A write to memory does not fail.
    let _ = write!(
        out.writer(),
        "HTTP/1.1 {code} {}\r\n",
        reason.unwrap_or_default()
    );
    for (name, value) in fields {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}
