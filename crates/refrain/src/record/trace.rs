//! The trace of a record: where its operation came from, and what happened to it. Operators read it;
//! no decision depends on it.
//!
//! A trace is encoded, so that every store keeps the same bytes and can append to them. Numbers are big-endian:
//!
//! - origin: length (2); if it is not 0: key digest (8), then operation, target, key and host,
//!   each with its length (2), and empty if it is not kept; then scope digest (8).
//!   Earlier releases wrote neither host nor scope digest. Encrypted texts follow, see `trace/encrypted.rs`
//! - events, each: kind (1), length of the rest (1), time (8), then by kind:
//!   - 1, an attempt starts: epoch (4), counter (8), nonce (4), number (2), trace id of the caller (16), node
//!   - 2, the outcome is unknown: reason (1)
//!   - 3, completed
//!   - 4, the attempt provably had no effect
//!   - 5, an attempt starts: as 1, without a trace id

use std::fmt;

use bytes::Bytes;

use super::{Fence, Grant, Reason};
use crate::{
    clock::Timestamp,
    key::{KEY_BYTES_MAX, Key, Scope, Secret, hex_format},
    varint::Reader,
};

mod encrypted;

const ATTEMPT: u8 = 1;
const UNKNOWN: u8 = 2;
const COMPLETED: u8 = 3;
const NO_EFFECT: u8 = 4;
const UNTRACED_ATTEMPT: u8 = 5;

/// Above this length, the events between the first and the new one are dropped.
const EVENTS_MAX: usize = 1_024;
/// Stands for no trace id.
const UNTRACED: [u8; 16] = [0; 16];
/// Longer texts are cut off.
const OPERATION_MAX: usize = 200;
const METHOD_MAX: usize = 30;
const TARGET_MAX: usize = 500;
/// The longest name in DNS, and a port.
const HOST_MAX: usize = 259;
/// The longest character in UTF-8: a text that was cut off is shorter than its maximum by less than this.
const CHAR_MAX: usize = 4;
const NODE_MAX: usize = 63;
/// The length of an attempt's event without trace id, node and its first two bytes.
const ATTEMPT_LEN: usize = 8 + 16 + 2;
const ATTEMPT_LEN_MAX: usize = 2 + ATTEMPT_LEN + 16 + NODE_MAX;

/// Keyed digest (SipHash-2-4) of a key alone, without its scope: operators find records by their key with it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct KeyDigest(pub [u8; 8]);

hex_format!(KeyDigest);

impl KeyDigest {
    /// Digests a key.
    #[must_use]
    pub fn derive(secret: &Secret, key: &Key) -> Self {
        Self(secret.hash_of_key(key).to_be_bytes())
    }
}

/// Keyed digest (SipHash-2-4) of a scope alone: operators select records by their scope with it.
/// The scope itself is not kept, because it may name a person.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ScopeDigest(pub [u8; 8]);

hex_format!(ScopeDigest);

impl ScopeDigest {
    /// Digests a scope.
    #[must_use]
    pub fn derive(secret: &Secret, scope: &Scope) -> Self {
        Self(secret.hash_of_scope(scope).to_be_bytes())
    }
}

/// The facts about a request that are stored with its record.
#[derive(Debug, Clone, Copy, Default)]
pub struct OriginFields<'a> {
    /// The name of the operation, such as `POST /v1/payments`, or the consumer.
    pub operation: &'a str,
    /// The method of the request, which precedes its target; may be empty.
    pub method: &'a str,
    /// What the request is for: its path, or its path and query.
    pub target: &'a str,
    /// The digest of the key.
    pub key_digest: KeyDigest,
    /// The key, if it may be kept readable; otherwise empty.
    pub key: &'a str,
    /// The host that the request was for, if a probe needs it; otherwise empty.
    pub host: &'a str,
    /// The digest of the scope.
    pub scope_digest: ScopeDigest,
    /// The name of the process that asks.
    pub node: &'a str,
    /// The trace id of the caller, or zeros.
    pub trace_id: [u8; 16],
}

/// Where a claim comes from, encoded as stores keep it.
#[derive(Clone, PartialEq, Eq)]
pub struct Origin {
    bytes: Bytes,
    /// The length of the head.
    head: u16,
}

impl Default for Origin {
    /// An origin of which nothing is known.
    fn default() -> Self {
        const UNKNOWN_ORIGIN: &[u8] = &{ [0, 0, UNTRACED_ATTEMPT, ATTEMPT_LEN as u8] };
        Self {
            bytes: Bytes::from_static(UNKNOWN_ORIGIN),
            head: 4,
        }
    }
}

impl fmt::Debug for Origin {
    /// Shows only the length: keys must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({} bytes)", self.bytes.len())
    }
}

impl Origin {
    /// Encodes the facts about a request. Texts that are too long are cut off.
    #[must_use]
    pub fn new(fields: &OriginFields<'_>) -> Self {
        let method = match fields.method {
            "" => ["", ""],
            method => [cut(method, METHOD_MAX), " "],
        };
        // A host that was cut off would be another host.
        let host = match fields.host.len() {
            0..=HOST_MAX => fields.host,
            _ => "",
        };
        let texts: [&[&str]; 4] = [
            &[cut(fields.operation, OPERATION_MAX)],
            &[method[0], method[1], cut(fields.target, TARGET_MAX)],
            &[cut(fields.key, KEY_BYTES_MAX)],
            &[host],
        ];
        let node = cut(fields.node, NODE_MAX);
        let text_len = |parts: &[&str]| parts.iter().map(|part| part.len()).sum::<usize>();
        let origin_len = 8 + texts.iter().map(|text| 2 + text_len(text)).sum::<usize>() + 8;
        let mut bytes = Vec::with_capacity(2 + origin_len + 2 + 16 + node.len());
        bytes.extend((origin_len as u16).to_be_bytes());
        bytes.extend(fields.key_digest.0);
        for text in texts {
            bytes.extend((text_len(text) as u16).to_be_bytes());
            let parts = text.iter();
            parts.for_each(|part| bytes.extend_from_slice(part.as_bytes()));
        }
        bytes.extend(fields.scope_digest.0);
        let (kind, trace_id) = match fields.trace_id {
            UNTRACED => (UNTRACED_ATTEMPT, &[][..]),
            _ => (ATTEMPT, &fields.trace_id[..]),
        };
        let len = ATTEMPT_LEN + trace_id.len() + node.len();
        bytes.extend([kind, len as u8]);
        let head = bytes.len() as u16;
        bytes.extend_from_slice(trace_id);
        bytes.extend_from_slice(node.as_bytes());
        Self {
            bytes: bytes.into(),
            head,
        }
    }

    /// The names of operation and target; empty if they are not known.
    pub(crate) fn names(&self) -> (&str, &str) {
        let mut reader = Reader(&self.bytes);
        let read = |reader: &mut Reader<'_>| reader.bytes(2 + 8).map(drop);
        let names = read(&mut reader).and_then(|()| Some((text(&mut reader)?, text(&mut reader)?)));
        names.unwrap_or_default()
    }

    pub(crate) fn from_parts(head: &[u8], tail: &[u8]) -> Option<Self> {
        let (bytes, head) = ([head, tail].concat().into(), head.len().try_into().ok()?);
        Some(Self { bytes, head })
    }

    /// The first bytes of the trace of a new record, up to the time of the first attempt.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.bytes[..self.head.into()]
    }

    /// The last bytes of the event of an attempt, after its number.
    #[must_use]
    pub fn tail(&self) -> &[u8] {
        &self.bytes[self.head.into()..]
    }
}

/// The longest prefix of at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Where the operation of a record came from, and what happened to it, encoded.
/// Empty for records of releases that kept no traces.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Trace(Bytes);

impl fmt::Debug for Trace {
    /// Shows only the length: keys must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} bytes)", self.0.len())
    }
}

impl From<Bytes> for Trace {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl Trace {
    /// The bytes to store.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// With the start of an attempt. The first attempt gives a record its origin.
    pub(super) fn with_attempt(&self, origin: &Origin, grant: Grant, now: Timestamp) -> Self {
        let (head, tail) = (origin.head(), origin.tail());
        let start = match self.0.is_empty() {
            true => head,
            false => &head[head.len() - 2..],
        };
        let kept = self.kept(ATTEMPT_LEN_MAX);
        let mut bytes = Vec::with_capacity(kept.len() + start.len() + ATTEMPT_LEN + tail.len());
        bytes.extend_from_slice(kept);
        bytes.extend_from_slice(start);
        bytes.extend(now.0.to_be_bytes());
        bytes.extend(grant.fence.epoch.to_be_bytes());
        bytes.extend(grant.fence.counter.to_be_bytes());
        bytes.extend(grant.fence.nonce.to_be_bytes());
        bytes.extend(grant.attempt.to_be_bytes());
        bytes.extend_from_slice(tail);
        Self(bytes.into())
    }

    pub(super) fn with_unknown(&self, reason: Reason, now: Timestamp) -> Self {
        self.with_event(UNKNOWN, &[reason as u8], now)
    }

    pub(super) fn with_completion(&self, now: Timestamp) -> Self {
        self.with_event(COMPLETED, &[], now)
    }

    pub(super) fn with_no_effect(&self, now: Timestamp) -> Self {
        self.with_event(NO_EFFECT, &[], now)
    }

    fn with_event(&self, kind: u8, detail: &[u8], now: Timestamp) -> Self {
        if self.0.is_empty() {
            return self.clone();
        }
        let kept = self.kept(10 + detail.len());
        let mut bytes = Vec::with_capacity(kept.len() + 10 + detail.len());
        bytes.extend_from_slice(kept);
        bytes.extend([kind, (8 + detail.len()) as u8]);
        bytes.extend(now.0.to_be_bytes());
        bytes.extend_from_slice(detail);
        Self(bytes.into())
    }

    /// The bytes that stay if `added` more are appended.
    fn kept(&self, added: usize) -> &[u8] {
        let Some(origin_len) = self.origin_len() else {
            return &self.0;
        };
        if self.0.len() + added <= origin_len + EVENTS_MAX {
            return &self.0;
        }
        let first = self.0.get(origin_len + 1).copied().unwrap_or_default();
        let kept = origin_len + 2 + usize::from(first);
        self.0.get(..kept).unwrap_or(&self.0)
    }

    fn origin_len(&self) -> Option<usize> {
        let len = self.0.first_chunk().copied().map(u16::from_be_bytes)?;
        Some(2 + usize::from(len))
    }

    /// The digest of the key, if it is known.
    #[must_use]
    pub fn key_digest(&self) -> Option<KeyDigest> {
        let has_origin = self.origin_len()? > 2;
        let digest = self.0.get(2..10).filter(|_| has_origin)?;
        Some(KeyDigest(digest.try_into().ok()?))
    }

    /// Decodes the trace; `None` if it is empty or damaged.
    #[must_use]
    pub fn read(&self) -> Option<History> {
        let mut reader = Reader(&self.0);
        let mut history = History::default();
        let origin_len = number::<2>(&mut reader)?;
        let mut origin = Reader(reader.bytes(origin_len as usize)?);
        if origin_len > 0 {
            history.key_digest = Some(KeyDigest(origin.array()?));
            history.operation = text(&mut origin)?.to_owned();
            history.target = text(&mut origin)?.to_owned();
            let key = text(&mut origin)?;
            history.key = (!key.is_empty()).then(|| key.to_owned());
            let host = text(&mut origin).filter(|host| !host.is_empty());
            history.host = host.map(ToOwned::to_owned);
            history.scope_digest = origin.array().map(ScopeDigest);
        }
        while !reader.0.is_empty() {
            let kind = number::<1>(&mut reader)?;
            let len = number::<1>(&mut reader)?;
            let mut event = Reader(reader.bytes(len as usize)?);
            let at = Timestamp(number::<8>(&mut event)?);
            let end = match kind as u8 {
                kind @ (ATTEMPT | UNTRACED_ATTEMPT) => {
                    let is_traced = kind == ATTEMPT;
                    let attempt = Attempt::read(at, is_traced, &mut event)?;
                    history.attempts.push(attempt);
                    continue;
                }
                UNKNOWN => End::Unknown(Reason::from_code(number::<1>(&mut event)? as u8)?),
                COMPLETED => End::Completed,
                NO_EFFECT => End::NoEffect,
                _ => return None,
            };
            if let Some(attempt) = history.attempts.last_mut() {
                attempt.ends.push((at, end));
            }
        }
        (!history.attempts.is_empty()).then_some(history)
    }
}

/// A decoded trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The name of the operation, such as `POST /v1/payments`, or the consumer. Empty if it is not known.
    pub operation: String,
    /// What the first request was for: its method and path, with its query if that is kept.
    pub target: String,
    /// The digest of the key, if it is known.
    pub key_digest: Option<KeyDigest>,
    /// The key, if it was kept readable.
    pub key: Option<String>,
    /// The host that the first request was for, if it was kept.
    pub host: Option<String>,
    /// The digest of the scope, if it is known.
    pub scope_digest: Option<ScopeDigest>,
    /// The attempts. After many, those after the first are missing.
    pub attempts: Vec<Attempt>,
}

impl History {
    /// The method and the path of the first request; `None` if they are not known completely.
    #[must_use]
    pub fn request(&self) -> Option<(&str, &str)> {
        let (method, target) = self.target.split_once(' ')?;
        let is_cut = target.len() > TARGET_MAX - CHAR_MAX;
        match target.split_once('?') {
            Some((path, _)) => Some((method, path)),
            None => (!is_cut).then_some((method, target)),
        }
    }

    /// When the record was first claimed.
    #[must_use]
    pub fn first_seen(&self) -> Option<Timestamp> {
        self.attempts.first().map(|attempt| attempt.at)
    }

    /// When the record last changed, apart from renewals and the passage of time.
    #[must_use]
    pub fn last_change(&self) -> Option<Timestamp> {
        let last = self.attempts.last()?;
        Some(last.ends.last().map_or(last.at, |(at, _)| *at))
    }
}

/// One attempt to execute an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When the claim was granted.
    pub at: Timestamp,
    /// The fence of the claim.
    pub fence: Fence,
    /// The number of the attempt: 1 for the first.
    pub number: u16,
    /// The trace id of the caller, if it sent one.
    pub trace_id: Option<[u8; 16]>,
    /// The name of the process that held the claim. Empty if it is not known.
    pub node: String,
    /// How the attempt ended: nothing if it has not ended, more than one entry if the outcome was unknown at first.
    pub ends: Vec<(Timestamp, End)>,
}

impl Attempt {
    fn read(at: Timestamp, is_traced: bool, event: &mut Reader<'_>) -> Option<Self> {
        let fence = Fence {
            epoch: number::<4>(event)? as u32,
            counter: number::<8>(event)?,
            nonce: number::<4>(event)? as u32,
        };
        let attempt = number::<2>(event)? as u16;
        let trace_id = match is_traced {
            true => Some(event.array::<16>()?),
            false => None,
        };
        let node = std::str::from_utf8(event.0).ok()?.to_owned();
        Some(Self {
            at,
            fence,
            number: attempt,
            trace_id,
            node,
            ends: Vec::new(),
        })
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The operation completed.
    Completed,
    /// The outcome is unknown.
    Unknown(Reason),
    /// The attempt provably had no effect.
    NoEffect,
}

/// Reads a big-endian number.
fn number<const N: usize>(reader: &mut Reader<'_>) -> Option<u64> {
    let bytes = reader.array::<N>()?;
    Some(
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    )
}

fn text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let len = number::<2>(reader)?;
    std::str::from_utf8(reader.bytes(len as usize)?).ok()
}

#[cfg(test)]
mod tests {
    //! At three in the morning an operator has to find out which payment is in doubt.

    use super::*;

    fn grant(attempt: u16) -> Grant {
        let fence = Fence {
            epoch: 2,
            counter: 40 + u64::from(attempt),
            nonce: 7,
        };
        Grant { fence, attempt }
    }

    fn origin() -> Origin {
        Origin::new(&OriginFields {
            operation: "payments",
            method: "POST",
            target: "/v1/payments",
            key_digest: KeyDigest([3; 8]),
            key: "order-7",
            host: "pay.example",
            scope_digest: ScopeDigest([5; 8]),
            node: "node-1",
            trace_id: [9; 16],
        })
    }

    /// Earlier releases wrote an origin of key digest, operation, target and key.
    #[test]
    fn origin_of_an_earlier_release_is_read() {
        let texts = ["payments", "POST /v1/payments", ""];
        let mut origin = vec![3; 8];
        for text in texts {
            origin.extend((text.len() as u16).to_be_bytes());
            origin.extend(text.as_bytes());
        }
        let mut bytes = (origin.len() as u16).to_be_bytes().to_vec();
        bytes.extend(origin);
        let attempt = Trace::default().with_attempt(&Origin::default(), grant(1), Timestamp(10));
        bytes.extend(&attempt.0[2..]);
        let history = Trace::from(Bytes::from(bytes)).read().unwrap();
        assert_eq!(history.operation, "payments");
        assert_eq!((history.host, history.scope_digest), (None, None));
        assert_eq!(history.attempts.len(), 1);
    }

    #[test]
    fn trace_tells_origin_attempts_and_ends() {
        let trace = Trace::default()
            .with_attempt(&origin(), grant(1), Timestamp(10))
            .with_unknown(Reason::Timeout, Timestamp(20))
            .with_attempt(&Origin::default(), grant(2), Timestamp(30))
            .with_completion(Timestamp(40));
        let history = trace.read().unwrap();
        assert_eq!(history.operation, "payments");
        assert_eq!(history.target, "POST /v1/payments");
        assert_eq!(history.key.as_deref(), Some("order-7"));
        assert_eq!(history.host.as_deref(), Some("pay.example"));
        assert_eq!(history.scope_digest, Some(ScopeDigest([5; 8])));
        assert_eq!(history.key_digest, Some(KeyDigest([3; 8])));
        assert_eq!(trace.key_digest(), history.key_digest);
        let seen = (history.first_seen(), history.last_change());
        assert_eq!(seen, (Some(Timestamp(10)), Some(Timestamp(40))));
        let [first, second] = &history.attempts[..] else {
            panic!("{history:?}");
        };
        let unknown = End::Unknown(Reason::Timeout);
        assert_eq!(first.ends, [(Timestamp(20), unknown)]);
        assert_eq!((first.number, first.fence), (1, grant(1).fence));
        assert_eq!((&*first.node, first.trace_id), ("node-1", Some([9; 16])));
        assert_eq!(second.ends, [(Timestamp(40), End::Completed)]);
        assert_eq!((&*second.node, second.trace_id), ("", None));
    }

    #[test]
    fn long_trace_keeps_its_first_and_its_last_event() {
        let mut trace = Trace::default();
        for number in 1..=1_000 {
            let now = Timestamp(number.into());
            trace = trace.with_attempt(&origin(), grant(number), now);
            assert!(trace.as_bytes().len() < 2 * EVENTS_MAX);
        }
        let history = trace.read().unwrap();
        let numbers: Vec<_> = history.attempts.iter().map(|it| it.number).collect();
        assert_eq!((numbers[0], numbers.last()), (1, Some(&1_000)));
        assert!(numbers.len() > 2, "{numbers:?}");
    }

    #[test]
    fn texts_of_any_length_fit() {
        let long = "ü".repeat(70_000);
        let fields = OriginFields {
            operation: &long,
            target: &long,
            key: &long,
            node: &long,
            ..OriginFields::default()
        };
        let trace = Trace::default().with_attempt(&Origin::new(&fields), grant(1), Timestamp(1));
        let history = trace.read().unwrap();
        assert_eq!(history.target, "ü".repeat(TARGET_MAX / 2));
        assert_eq!(history.attempts[0].node, "ü".repeat(NODE_MAX / 2));
        assert_eq!(history.key, Some("ü".repeat(KEY_BYTES_MAX / 2)));
    }

    /// A probe of another path than that of the request would find nothing, as if the request had had no effect.
    #[test]
    fn a_target_that_was_cut_off_is_no_request() {
        let request = |target: &str| {
            let fields = OriginFields {
                method: "POST",
                target,
                ..OriginFields::default()
            };
            let trace =
                Trace::default().with_attempt(&Origin::new(&fields), grant(1), Timestamp(1));
            let history = trace.read().unwrap();
            let request = history.request();
            request.map(|(method, path)| (method.to_owned(), path.to_owned()))
        };
        let known = |path: &str| Some(("POST".to_owned(), path.to_owned()));
        assert_eq!(request("/v1/orders/7"), known("/v1/orders/7"));
        assert_eq!(request("/v1/orders?of=7"), known("/v1/orders"));
        let long = format!("/v1/orders?of={}", "7".repeat(TARGET_MAX));
        assert_eq!(request(&long), known("/v1/orders"));
        for len in [TARGET_MAX - CHAR_MAX, TARGET_MAX - 1, TARGET_MAX * 2] {
            assert_eq!(request(&format!("/{}", "é".repeat(len / 2))), None, "{len}");
        }
    }

    #[test]
    fn damaged_traces_are_no_traces() {
        let trace = Trace::default().with_attempt(&origin(), grant(1), Timestamp(10));
        for len in 0..trace.0.len() {
            assert_eq!(Trace(trace.0.slice(..len)).read(), None, "{len}");
        }
        assert_eq!(Trace::default().read(), None);
        assert_eq!(
            Trace::default().with_completion(Timestamp(1)),
            Trace::default()
        );
    }
}
