//! The place of a request in a distributed trace: W3C Trace Context.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header with the place of a request in a trace.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header with what tracing systems add to it.
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Length of a `traceparent` of version 0.
const VERSION_0_LEN: usize = 55;

/// The span of a request, as its server records it.
///
/// A server that records spans inserts this into the extensions of a request before the layer sees it, and sets the
/// header `traceparent` of the same span. [`DecidedRequest::trace`](super::DecidedRequest) has it, and the
/// request that a proxy forwards carries it, with the [`RecordId`](crate::RecordId) and the [`Fence`](crate::Fence)
/// of the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span of this request.
    pub span_id: [u8; 8],
    /// The span of the caller; `None` if the trace begins here.
    pub parent_id: Option<[u8; 8]>,
    /// Whether the spans of the trace are recorded.
    pub is_sampled: bool,
}

impl TraceContext {
    /// The span of the caller, from the `traceparent` of a request, as if it were the span of the request;
    /// `None` if the header is missing, repeated or invalid.
    #[must_use]
    pub fn of_caller(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?;
        match values.next() {
            Some(_) => None,
            None => Self::read(value),
        }
    }

    /// The span in a `traceparent`; `None` if it is invalid.
    pub(super) fn read(traceparent: &HeaderValue) -> Option<Self> {
        parse(traceparent.to_str().ok()?)
    }

    /// Sets the header `traceparent` to this span. `tracestate` is kept only if the trace began before this request,
    /// because it belongs to the trace.
    pub fn set_header(&self, headers: &mut HeaderMap) {
        if let Some(value) = self.traceparent() {
            headers.insert(TRACEPARENT, value);
        }
        if self.parent_id.is_none() {
            headers.remove(TRACESTATE);
        }
    }

    fn traceparent(&self) -> Option<HeaderValue> {
        let trace_id = u128::from_be_bytes(self.trace_id);
        let span_id = u64::from_be_bytes(self.span_id);
        let flags = u8::from(self.is_sampled);
        HeaderValue::try_from(format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}")).ok()
    }
}

fn parse(value: &str) -> Option<TraceContext> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let field = |start: usize, len: usize| {
        let text = value.get(start..start + len)?;
        text.bytes().all(is_hex).then_some(text)
    };
    let (version, flags) = (field(0, 2)?, field(53, 2)?);
    let dashes = [2, 35, 52].map(|at| value.as_bytes().get(at) == Some(&b'-'));
    // Later versions may append further fields.
    let is_long = value.len() > VERSION_0_LEN;
    let ends = !is_long || version != "00" && value.as_bytes()[VERSION_0_LEN] == b'-';
    let trace_id = u128::from_str_radix(field(3, 32)?, 16).ok()?;
    let span_id = u64::from_str_radix(field(36, 16)?, 16).ok()?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let is_valid = dashes == [true; 3] && ends && version != "ff" && trace_id > 0 && span_id > 0;
    is_valid.then(|| TraceContext {
        trace_id: trace_id.to_be_bytes(),
        span_id: span_id.to_be_bytes(),
        parent_id: None,
        is_sampled: flags & 1 == 1,
    })
}

#[cfg(test)]
mod tests {
    //! A malformed context that is passed on breaks the traces of every service behind this one.

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(values: &[&str]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        TraceContext::of_caller(&headers)
    }

    #[test]
    fn valid_contexts_are_read_and_written() {
        let context = of(&[VALID]).unwrap();
        assert!(context.is_sampled);
        let mut headers = HeaderMap::new();
        headers.insert(TRACESTATE, HeaderValue::from_static("a=1"));
        context.set_header(&mut headers);
        assert_eq!(headers[TRACEPARENT], VALID);
        assert!(
            !headers.contains_key(TRACESTATE),
            "it belongs to another trace"
        );
        assert!(!of(&[&VALID.replace("-01", "-00")]).unwrap().is_sampled);
        assert!(of(&[&VALID.replace("-01", "-03")]).unwrap().is_sampled);
        let later = VALID.replace("00-", "cc-") + "-what-comes-later";
        assert_eq!(of(&[&later]), Some(context));
    }

    #[test]
    fn invalid_contexts_begin_a_new_trace() {
        let long = format!("{VALID}-x");
        for values in [
            &[][..],
            &[VALID, VALID],
            &[""],
            &["00"],
            &[&VALID.to_uppercase()],
            &[&VALID.replace("00-", "ff-")],
            &[&long],
            &[&VALID.replace("00-", "cc-").replace("-01", "-01x")],
            &[&VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32))],
            &[&VALID.replace("b7ad6b7169203331", &"0".repeat(16))],
            &[&VALID.replace('-', "_")],
        ] {
            assert_eq!(of(values), None, "{values:?}");
        }
    }
}
