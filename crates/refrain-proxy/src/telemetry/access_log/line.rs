//! One line of the access log.

use std::{cell::RefCell, io::Write as _, time::Duration};

use refrain::{
    clock::{self, Timestamp},
    http::DecidedRequest,
};

use crate::telemetry::RequestOutcome;

/// Bytes of `2024-02-29T12:34:56`.
const SECONDS_LEN: usize = 19;

/// What the access log says about a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::telemetry) struct AccessLine<'a> {
    pub(in crate::telemetry) record: Option<&'a str>,
    pub(in crate::telemetry) operation: Option<&'a str>,
    /// `None` if the head of the request is malformed.
    pub(in crate::telemetry) method: Option<&'a str>,
    pub(in crate::telemetry) outcome: &'static str,
    /// The problem code of a request that Refrain refused.
    pub(in crate::telemetry) code: Option<&'static str>,
    pub(in crate::telemetry) status: Option<u16>,
    pub(in crate::telemetry) upstream: Option<Duration>,
    pub(in crate::telemetry) total: Duration,
    pub(in crate::telemetry) trace_id: Option<[u8; 16]>,
}

impl<'a> AccessLine<'a> {
    /// The line of a request that the layer saw.
    pub(in crate::telemetry) fn of(request: &'a DecidedRequest<'a>) -> Self {
        let outcome = RequestOutcome::of(request);
        Self {
            record: request.record(),
            operation: request.operation.map(|it| it.name.as_str()),
            method: Some(request.method.as_str()),
            outcome: outcome.label(),
            code: (outcome == RequestOutcome::Refused).then(|| request.decision.label()),
            status: request.response.map(|(status, _)| status.as_u16()),
            upstream: request.served,
            total: request.took,
            trace_id: request.trace_id(),
        }
    }
}

/// Buffer of a thread, so that a line allocates nothing.
#[derive(Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// The second since 1970 that `text` shows.
    second: u64,
    text: String,
}

thread_local! {
    static BUFFER: RefCell<LineBuffer> = RefCell::default();
}

/// Passes the encoded line to `push`.
pub(super) fn encoded(line: &AccessLine<'_>, push: impl FnOnce(&[u8])) {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.bytes.clear();
        // Writing to memory does not fail.
        let _ = buffer.encode(line, clock::wall_time());
        push(&buffer.bytes);
    });
}

impl LineBuffer {
    fn encode(&mut self, line: &AccessLine<'_>, now: Duration) -> std::io::Result<()> {
        self.set_second(now.as_secs());
        let out = &mut self.bytes;
        write!(
            out,
            "{{\"time\":\"{}.{:06}Z\"",
            self.text,
            now.subsec_micros()
        )?;
        if let Some(record) = line.record {
            out.extend_from_slice(b",\"record\":");
            put_text(out, record);
        }
        if let Some(operation) = line.operation {
            out.extend_from_slice(b",\"operation\":");
            put_text(out, operation);
        }
        if let Some(method) = line.method {
            out.extend_from_slice(b",\"method\":");
            put_text(out, method);
        }
        write!(out, ",\"outcome\":\"{}\"", line.outcome)?;
        if let Some(code) = line.code {
            write!(out, ",\"code\":\"{code}\"")?;
        }
        if let Some(status) = line.status {
            write!(out, ",\"status\":{status}")?;
        }
        if let Some(upstream) = line.upstream {
            write!(out, ",\"upstream_us\":{}", upstream.as_micros())?;
        }
        write!(out, ",\"total_us\":{}", line.total.as_micros())?;
        if let Some(trace_id) = line.trace_id {
            write!(
                out,
                ",\"trace_id\":\"{:032x}\"",
                u128::from_be_bytes(trace_id)
            )?;
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    fn set_second(&mut self, second: u64) {
        if self.second != second || self.text.is_empty() {
            self.second = second;
            self.text = Timestamp(second.saturating_mul(1_000)).rfc3339();
            self.text.truncate(SECONDS_LEN);
        }
    }
}

/// Appends a JSON string.
fn put_text(out: &mut Vec<u8>, text: &str) {
    // Writing a string to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    //! A line that is not JSON stops every program that reads the log.

    use super::*;

    const LINE: AccessLine<'_> = AccessLine {
        record: Some("6f1a"),
        operation: Some("pay \"now\"\n\u{1}"),
        method: Some("POST"),
        outcome: "refused",
        code: Some("in-flight"),
        status: Some(409),
        upstream: Some(Duration::from_micros(1_500)),
        total: Duration::from_millis(2),
        trace_id: Some([0x0a; 16]),
    };

    fn encoded(line: &AccessLine<'_>, now: Duration) -> serde_json::Value {
        let mut buffer = LineBuffer::default();
        buffer.encode(line, now).unwrap();
        let text = String::from_utf8(buffer.bytes).unwrap();
        assert_eq!(text.find('\n'), Some(text.len() - 1), "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_line_is_json_whatever_the_names_contain() {
        let expected = serde_json::json!({
            "time": "2024-02-29T12:34:56.000007Z",
            "record": "6f1a",
            "operation": "pay \"now\"\n\u{1}",
            "method": "POST",
            "outcome": "refused",
            "code": "in-flight",
            "status": 409,
            "upstream_us": 1500,
            "total_us": 2000,
            "trace_id": "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a",
        });
        let now = Duration::from_secs(1_709_210_096) + Duration::from_micros(7);
        assert_eq!(encoded(&LINE, now), expected);
    }

    #[test]
    fn members_that_do_not_apply_are_absent() {
        let line = AccessLine {
            record: None,
            operation: None,
            method: None,
            code: None,
            status: None,
            upstream: None,
            trace_id: None,
            ..LINE
        };
        let shown = encoded(&line, Duration::ZERO);
        let names: Vec<_> = shown.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn the_time_of_each_line_is_its_own() {
        let mut buffer = LineBuffer::default();
        let mut shown = Vec::new();
        for micros in [999_999, 1_000_000, 59_999_999, 60_000_001] {
            buffer.bytes.clear();
            buffer.encode(&LINE, Duration::from_micros(micros)).unwrap();
            shown.push(String::from_utf8_lossy(&buffer.bytes)[9..36].to_owned());
        }
        let expected = [
            "1970-01-01T00:00:00.999999Z",
            "1970-01-01T00:00:01.000000Z",
            "1970-01-01T00:00:59.999999Z",
            "1970-01-01T00:01:00.000001Z",
        ];
        assert_eq!(shown, expected);
    }
}
