//! Encodes an `ExportTraceServiceRequest` of OTLP 1.x as protobuf.
//!
//! Field numbers are those of `opentelemetry/proto/trace/v1/trace.proto` and the files that it imports.

use std::time::Duration;

use refrain::http::TraceContext;

use super::span::{Span, SpanKind};

/// Types of values on the wire.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// `SPAN_KIND_SERVER` and `SPAN_KIND_CLIENT`.
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// Flags of a sampled span that has a remote parent.
const REMOTE_PARENT: u32 = 0x300;
const SAMPLED: u32 = 1;

/// A protobuf message, or a part of one.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.tag(field, VARINT);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        self.tag(field, FIXED64);
        self.0.extend(value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, value: u32) {
        self.tag(field, FIXED32);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A message within this one, whose length is inserted once it is known.
    fn message(&mut self, field: u64, build: impl FnOnce(&mut Self)) {
        self.tag(field, BYTES);
        let start = self.0.len();
        build(self);
        let mut len = Self::default();
        len.varint((self.0.len() - start) as u64);
        self.0.splice(start..start, len.0);
    }

    /// A `KeyValue` with a string.
    fn text_attribute(&mut self, field: u64, key: &str, value: &str) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.bytes(1, value.as_bytes()));
        });
    }

    /// A `KeyValue` with a number.
    fn number_attribute(&mut self, field: u64, key: &str, value: u64) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.number(3, value));
        });
    }
}

/// Encodes exports with the attributes of this process.
pub(super) struct Encoder {
    /// The encoded `Resource`.
    resource: Vec<u8>,
    /// Host and port of the upstream.
    upstream: (String, Option<u16>),
}

impl Encoder {
    pub(super) fn new(resource: &[(String, String)], upstream: &str) -> Self {
        let mut encoded = Message::default();
        for (key, value) in resource {
            encoded.text_attribute(1, key, value);
        }
        let (host, port) = match upstream.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            None => (upstream, None),
        };
        Self {
            resource: encoded.0,
            upstream: (host.into(), port),
        }
    }

    /// Encodes one export.
    pub(super) fn encode(&self, spans: &[Span]) -> Vec<u8> {
        let mut request = Message::default();
        request.message(1, |resource_spans| {
            resource_spans.bytes(1, &self.resource);
            resource_spans.message(2, |scope_spans| {
                scope_spans.message(1, |scope| {
                    scope.bytes(1, b"refrain");
                    scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
                });
                for span in spans {
                    scope_spans.message(2, |out| self.span(span, out));
                }
            });
        });
        request.0
    }

    fn span(&self, span: &Span, out: &mut Message) {
        let TraceContext {
            trace_id,
            span_id,
            parent_id,
            ..
        } = &span.context;
        out.bytes(1, trace_id);
        out.bytes(2, span_id);
        if let Some(parent_id) = parent_id {
            out.bytes(4, parent_id);
        }
        let name = span.operation.as_deref().unwrap_or(span.method.as_str());
        out.bytes(5, name.as_bytes());
        let (kind, remote) = match span.kind {
            SpanKind::Server => (SERVER, REMOTE_PARENT),
            SpanKind::Client => (CLIENT, 0),
        };
        out.number(6, kind);
        out.fixed64(7, nanos(span.start));
        out.fixed64(8, nanos(span.end));
        self.attributes(span, out);
        if let Some(link) = &span.link {
            out.message(13, |out| {
                out.bytes(1, &link.trace_id);
                out.bytes(2, &link.span_id);
            });
        }
        if is_error(span) {
            out.message(15, |status| status.number(3, ERROR));
        }
        let remote = if parent_id.is_some() { remote } else { 0 };
        out.fixed32(16, SAMPLED | remote);
    }

    fn attributes(&self, span: &Span, out: &mut Message) {
        const FIELD: u64 = 9;
        out.text_attribute(FIELD, "http.request.method", span.method.as_str());
        if let Some(status) = span.status {
            let status = status.as_u16().into();
            out.number_attribute(FIELD, "http.response.status_code", status);
        }
        let record = span.record.map(|record| record.to_string());
        let texts = [
            ("refrain.operation", span.operation.as_deref()),
            ("refrain.outcome", span.outcome.map(|it| it.label())),
            ("refrain.code", span.code),
            ("refrain.record", record.as_deref()),
            ("error.type", span.error),
        ];
        for (key, value) in texts {
            if let Some(value) = value {
                out.text_attribute(FIELD, key, value);
            }
        }
        if span.kind == SpanKind::Client {
            let (host, port) = &self.upstream;
            out.text_attribute(FIELD, "server.address", host);
            if let Some(port) = port {
                out.number_attribute(FIELD, "server.port", (*port).into());
            }
        }
    }
}

/// Whether the span failed: a client's error is an error of the client's span only.
fn is_error(span: &Span) -> bool {
    let status = span.status.map(|status| status.as_u16());
    let least = match span.kind {
        SpanKind::Server => 500,
        SpanKind::Client => 400,
    };
    span.error.is_some() || status.is_some_and(|status| status >= least)
}

fn nanos(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}
