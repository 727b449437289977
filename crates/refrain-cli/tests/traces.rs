//! A trace that ends at the proxy, or a replay that shows no way to the execution, leaves an operator where he began;
//! and a collector that is down must not take the payments with it.

#![cfg(feature = "otel")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{net::SocketAddr, path::Path};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;
use support::{
    AfterResponse, Client, HttpResponse, Parked, Proxy, Starting, Upstream, answer, call, get,
    post, request, until,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn starting(upstream: SocketAddr, collector: SocketAddr) -> Starting {
    Starting::new()
        .arg("--upstream", format!("http://{upstream}"))
        .variable("REFRAIN_OTLP_ENDPOINT", format!("http://{collector}"))
}

fn traced(upstream: SocketAddr, collector: SocketAddr) -> Proxy {
    starting(upstream, collector)
        .arg("--store", "memory:")
        .start()
}

/// A collector that accepts every export.
fn collector() -> Upstream {
    Upstream::start(|_, stream| answer(stream, "200 OK", &[], b""))
}

/// The spans that the collector has received, decoded by the types of OpenTelemetry.
fn spans(collector: &Upstream) -> Vec<Span> {
    let exports = collector.seen().into_iter().map(|seen| {
        assert_eq!(seen.start(), "POST /v1/traces");
        assert_eq!(seen.header("content-type"), Some("application/x-protobuf"));
        ExportTraceServiceRequest::decode(&*seen.body).unwrap()
    });
    let resources = exports.flat_map(|export| export.resource_spans);
    let scopes = resources.flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

/// The spans, once there are `count`.
fn wait_for(collector: &Upstream, count: usize) -> Vec<Span> {
    until(&format!("{count} spans"), || {
        spans(collector).len() >= count
    });
    spans(collector)
}

fn of_kind(spans: &[Span], kind: SpanKind) -> Vec<&Span> {
    spans.iter().filter(|span| span.kind() == kind).collect()
}

fn text<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let pair = attributes.iter().find(|pair| pair.key == name)?;
    match pair.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn number(attributes: &[KeyValue], name: &str) -> Option<i64> {
    let pair = attributes.iter().find(|pair| pair.key == name)?;
    match pair.value.as_ref()?.value.as_ref()? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends `POST /orders` with this trace context.
fn order(proxy: &Proxy, key: &str, context: &[(&str, &str)]) -> HttpResponse {
    let headers = [&[("idempotency-key", key)], context].concat();
    call(
        proxy.address,
        request("POST /orders", &headers, b"secret-body"),
    )
}

#[test]
fn upstream_continues_the_trace_of_the_caller() {
    let (upstream, collector) = (Upstream::echo(), collector());
    let proxy = starting(upstream.address, collector.address)
        .arg("--store", "memory:")
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b")
        .variable("OTEL_SERVICE_NAME", "shop-proxy")
        .start();
    let context = format!("00-{TRACE}-{CALLER}-01");
    let told = order(
        &proxy,
        "secret-key",
        &[("traceparent", &context), ("tracestate", "v=1")],
    );
    assert_eq!(told.status, 200);
    let spans = wait_for(&collector, 2);
    let (servers, clients) = (
        of_kind(&spans, SpanKind::Server),
        of_kind(&spans, SpanKind::Client),
    );
    let ([server], [client]) = (&servers[..], &clients[..]) else {
        panic!("{spans:?}");
    };
    for span in &spans {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert!(
            span.start_time_unix_nano <= span.end_time_unix_nano,
            "{span:?}"
        );
        assert_eq!(text(&span.attributes, "http.request.method"), Some("POST"));
        assert_eq!(
            number(&span.attributes, "http.response.status_code"),
            Some(200)
        );
        assert_eq!(
            text(&span.attributes, "refrain.record"),
            told.header("refrain-record")
        );
        assert!(span.status.is_none(), "{span:?}");
    }
    assert!(server.start_time_unix_nano <= client.start_time_unix_nano);
    assert_eq!(hex(&server.parent_span_id), CALLER);
    assert_eq!(client.parent_span_id, server.span_id);
    assert_eq!(
        text(&server.attributes, "refrain.outcome"),
        Some("executed")
    );
    assert_eq!((&*server.name, &*client.name), ("POST *", "POST"));
    assert_eq!(
        text(&client.attributes, "server.address"),
        Some("127.0.0.1")
    );
    let forwarded = &upstream.seen()[0];
    let expected = format!("00-{TRACE}-{}-01", hex(&client.span_id));
    assert_eq!(forwarded.header("traceparent"), Some(&*expected));
    assert_eq!(forwarded.header("tracestate"), Some("v=1"));
    let export = &collector.seen()[0];
    assert_eq!(export.header("x-tenant"), Some("a b"));
    let decoded = ExportTraceServiceRequest::decode(&*export.body).unwrap();
    let resource = decoded.resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(
        text(&resource.attributes, "service.name"),
        Some("shop-proxy")
    );
    let bytes = String::from_utf8_lossy(&export.body);
    assert!(
        !bytes.contains("secret") && !bytes.contains("/orders"),
        "{bytes}"
    );
}

/// Starts a proxy whose records are in this folder.
fn durable(upstream: &Upstream, collector: &Upstream, folder: &Path) -> Proxy {
    starting(upstream.address, collector.address)
        .arg(
            "--store",
            format!("file:{}", folder.join("records").display()),
        )
        .start()
}

#[test]
fn replay_links_to_the_execution_after_a_restart() {
    let (upstream, collector) = (Upstream::echo(), collector());
    let folder = tempfile::tempdir().unwrap();
    let proxy = durable(&upstream, &collector, folder.path());
    // The client sends no context: the trace begins at the proxy.
    assert_eq!(order(&proxy, "k", &[]).status, 200);
    let first = wait_for(&collector, 2);
    let execution = of_kind(&first, SpanKind::Client)[0].clone();
    proxy.terminate();
    assert!(proxy.ended().success());
    let proxy = durable(&upstream, &collector, folder.path());
    let context = format!("00-{TRACE}-{CALLER}-01");
    assert!(order(&proxy, "k", &[("traceparent", &context)]).is_replay());
    let spans = wait_for(&collector, 3);
    let replay = spans
        .iter()
        .find(|span| hex(&span.trace_id) == TRACE)
        .unwrap();
    assert_eq!(
        text(&replay.attributes, "refrain.outcome"),
        Some("replayed")
    );
    let [link] = &replay.links[..] else {
        panic!("{replay:?}");
    };
    assert_eq!(
        (&link.trace_id, &link.span_id),
        (&execution.trace_id, &execution.span_id)
    );
    assert!(execution.links.is_empty() && upstream.count() == 1);
}

#[test]
fn unsampled_requests_have_no_spans_and_keep_the_decision() {
    let (upstream, collector) = (Upstream::echo(), collector());
    let proxy = starting(upstream.address, collector.address)
        .arg("--store", "memory:")
        .file("[proxy]\notlp_sample_ratio = 0.0\n")
        .start();
    let unsampled = format!("00-{TRACE}-{CALLER}-00");
    order(&proxy, "a", &[("traceparent", &unsampled)]);
    order(
        &proxy,
        "b",
        &[("traceparent", "malformed"), ("tracestate", "v=1")],
    );
    order(&proxy, "c", &[]);
    let seen = upstream.seen();
    assert_eq!(seen[0].header("traceparent"), Some(&*unsampled));
    for seen in &seen[1..] {
        let begun = seen.header("traceparent").unwrap();
        assert!(
            begun.len() == 55 && begun.ends_with("-00") && !begun.contains(TRACE),
            "{begun}"
        );
        assert_eq!(seen.header("tracestate"), None);
    }
    let sampled = format!("00-{TRACE}-{CALLER}-01");
    order(&proxy, "d", &[("traceparent", &sampled)]);
    assert_eq!(wait_for(&collector, 2).len(), 2);
}

#[test]
fn failed_calls_are_spans_with_errors() {
    let (upstream, collector) = (Upstream::start(|_, _| AfterResponse::Close), collector());
    let proxy = traced(upstream.address, collector.address);
    assert_eq!(call(proxy.address, post("k", "x")).status, 502);
    assert_eq!(call(proxy.address, post("k", "x")).status, 409);
    let spans = wait_for(&collector, 3);
    let client = of_kind(&spans, SpanKind::Client)[0];
    assert_eq!(text(&client.attributes, "error.type"), Some("reset"));
    assert_eq!(client.status.as_ref().unwrap().code, 2);
    let servers = of_kind(&spans, SpanKind::Server);
    let duplicate = servers
        .iter()
        .find(|span| span.parent_span_id.is_empty() && span.links.len() == 1);
    assert_eq!(duplicate.unwrap().links[0].span_id, client.span_id);
    let outcomes = servers
        .iter()
        .map(|span| text(&span.attributes, "refrain.outcome"));
    assert!(outcomes.eq([Some("unknown"); 2]), "{servers:?}");
}

/// Sends more requests than their spans fit into the queue.
fn overflow(proxy: &Proxy) {
    let mut client = Client::connect(proxy.address);
    for _ in 0..5_000 {
        assert_eq!(client.send(get("/")).answer().status, 200);
    }
}

#[test]
fn collector_that_is_down_costs_requests_nothing() {
    let (upstream, parked) = (Upstream::echo(), Parked::new());
    let proxy = traced(upstream.address, parked.address());
    overflow(&proxy);
    let high = proxy.memory_high();
    assert!(proxy.metric("refrain_spans_dropped_total") > 0.0);
    overflow(&proxy);
    let grown = proxy.memory_high() - high;
    assert!(grown < 8 << 10, "{grown} KiB more");
    until("the failure is logged", || {
        proxy.errors().contains("cannot export traces")
    });
    let collector = Upstream::on(parked.listen(), |_, stream| {
        answer(stream, "200 OK", &[], b"")
    });
    wait_for(&collector, 1);
    assert_eq!(proxy.errors().matches("cannot export traces").count(), 1);
    until("the recovery is logged", || {
        proxy.errors().contains("exported again")
    });
    until("exported spans are counted", || {
        proxy.metric("refrain_spans_exported_total") > 0.0
    });
}

#[test]
fn collector_that_never_responds_or_rejects_costs_requests_nothing() {
    let upstream = Upstream::echo();
    let silent = Upstream::start(|_, _| {
        std::thread::sleep(support::PATIENCE);
        AfterResponse::Close
    });
    let proxy = traced(upstream.address, silent.address);
    overflow(&proxy);
    assert!(proxy.metric("refrain_spans_dropped_total") > 0.0);
    proxy.terminate();
    assert!(proxy.ended().success());
    let wrong = Upstream::start(|_, stream| answer(stream, "404 Not Found", &[], b""));
    let proxy = traced(upstream.address, wrong.address);
    assert_eq!(call(proxy.address, get("/")).status, 200);
    until("rejected spans are dropped", || {
        proxy.metric("refrain_spans_dropped_total") == 2.0
    });
    assert!(proxy.errors().contains("404"), "{}", proxy.errors());
}

#[test]
fn spans_are_exported_before_the_proxy_ends() {
    let (upstream, collector) = (Upstream::echo(), collector());
    let proxy = traced(upstream.address, collector.address);
    let mut client = Client::connect(proxy.address);
    for _ in 0..700 {
        assert_eq!(client.send(get("/")).answer().status, 200);
    }
    proxy.terminate();
    assert!(proxy.ended().success());
    assert_eq!(spans(&collector).len(), 1_400);
}

#[test]
fn unusable_settings_are_errors_with_their_fix() {
    let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    for (variables, words) in [
        (
            &[("REFRAIN_OTLP_ENDPOINT", "collector:4317")][..],
            &["otlp_endpoint", "http://127.0.0.1:4318"][..],
        ),
        (
            &[("REFRAIN_OTLP_ENDPOINT", "http://me:word@c")],
            &["OTEL_EXPORTER_OTLP_HEADERS"],
        ),
        (
            &[general, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            &["`grpc`", "4318"],
        ),
        (
            &[general, ("OTEL_EXPORTER_OTLP_HEADERS", "word")],
            &["OTEL_EXPORTER_OTLP_HEADERS", "KEY=VALUE"],
        ),
    ] {
        let mut starting = Starting::new()
            .arg("--upstream", "http://127.0.0.1:9")
            .arg("--store", "memory:");
        for (name, value) in variables {
            starting = starting.variable(name, value);
        }
        let (code, said) = starting.refused();
        assert_eq!(code, Some(64), "{said}");
        for word in words {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    }
}
