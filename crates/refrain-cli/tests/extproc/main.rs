//! Envoy asks `refrain extproc` about each request over gRPC. If the two disagreed about where an exchange stands, a
//! payment would be executed twice, or a failure of Envoy would be replayed as the answer of the payment service.

#![cfg(feature = "extproc")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod envoy;
mod mesh;
#[path = "../support/mod.rs"]
mod support;

use envoy_types::pb::envoy::{
    extensions::filters::http::ext_proc::v3::processing_mode::{BodySendMode, HeaderSendMode},
    service::ext_proc::v3::{ProcessingRequest, ProtocolConfiguration},
};
use mesh::{
    Exchange, continued, immediate, is_left_alone, problem, request, request_body, request_to,
    response, response_body, set,
};
use support::{Proxy, Starting};

/// Guards one operation.
const PAYMENTS: &str = "[[operation]]\nmatch = \"POST /v1/payments\"\nrequired = true\n";

fn start(settings: &str) -> Proxy {
    starting().arg("--store", "memory:").file(settings).start()
}

fn starting() -> Starting {
    let mut starting = Starting::new();
    starting.args[0] = "extproc".into();
    starting
}

/// Executes the operation once, with this response.
async fn execute(server: &Proxy, key: &str, status: &str, headers: &[(&str, &str)], body: &str) {
    let (mut exchange, reply) = Exchange::post(server, key, "{}").await;
    assert_eq!(
        set(&continued(&reply), "refrain-attempt").as_deref(),
        Some("1")
    );
    continued(&exchange.respond(status, headers, body).await);
    assert_eq!(exchange.end().await, None);
}

#[tokio::test]
async fn a_duplicate_gets_the_stored_response_byte_for_byte() {
    let server = start(PAYMENTS);
    let headers = [
        ("content-type", "application/json"),
        ("link", "<a>"),
        ("link", "<b>"),
        ("set-cookie", "s=1"),
    ];
    let body = "{\"id\": 7,\r\n \"\u{e4}\": 1.10}";
    execute(&server, "k1", "201", &headers, body).await;
    let (exchange, reply) = Exchange::post(&server, "k1", "{}").await;
    let replay = immediate(reply);
    assert_eq!(replay.status.unwrap().code, 201);
    assert_eq!(replay.body, body.as_bytes());
    let changes = replay.headers.unwrap();
    assert_eq!(
        set(&changes, "content-type").as_deref(),
        Some("application/json")
    );
    assert_eq!(
        set(&changes, "idempotent-replayed").as_deref(),
        Some("true")
    );
    assert_eq!(set(&changes, "set-cookie"), None);
    let links = changes
        .set_headers
        .iter()
        .filter(|it| it.header.as_ref().unwrap().key == "link");
    assert_eq!(links.count(), 2);
    assert_eq!(exchange.end().await, None);
}

#[tokio::test]
async fn the_first_response_continues_with_its_record_and_without_refrain_outcome() {
    let server = start(PAYMENTS);
    let (mut exchange, _) = Exchange::post(&server, "k1", "{}").await;
    let changes = continued(
        &exchange
            .respond("503", &[("refrain-outcome", "release")], "busy")
            .await,
    );
    assert_eq!(changes.remove_headers, ["refrain-outcome"]);
    assert!(set(&changes, "refrain-record").is_some());
    // Released, so it executes again.
    execute(&server, "k1", "201", &[], "paid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_for_the_first_request() {
    let server = start(PAYMENTS);
    let (mut first, _) = Exchange::post(&server, "k1", "{}").await;
    let mut second = Exchange::open(&server).await;
    second
        .send(request(&[("idempotency-key", "k1")], false))
        .await;
    second.next().await;
    second.send(request_body("{}")).await;
    support::until("the duplicate waits", || {
        server.metric("refrain_waiting_duplicates") == 1.0
    });
    continued(&first.respond("201", &[], "paid").await);
    assert_eq!(immediate(second.next().await).body, b"paid");
}

#[tokio::test]
async fn problems_are_immediate_responses() {
    let server = start(PAYMENTS);
    execute(&server, "k1", "201", &[], "paid").await;
    let (_, reply) = Exchange::post(&server, "k1", "{\"amount\":2}").await;
    assert_eq!(problem(reply), (422, "key-reused".into()));
    for (headers, expected) in [
        (&[][..], (400, "key-missing")),
        (
            &[("idempotency-key", "a"), ("idempotency-key", "b")],
            (400, "key-invalid"),
        ),
        // Larger than it may be, so the body is not asked for.
        (
            &[("idempotency-key", "a"), ("content-length", "99999999")],
            (413, "request-too-large"),
        ),
    ] {
        let mut exchange = Exchange::open(&server).await;
        exchange.send(request(headers, false)).await;
        let (status, code) = problem(exchange.next().await);
        assert_eq!((status, code.as_str()), expected);
    }
}

/// Envoy passes its own responses through its filters, too.
#[tokio::test]
async fn a_failure_of_envoy_is_no_outcome() {
    const NO_CONNECTION: u32 = 0x20;
    const CONNECTION_BROKE: u32 = 0x40;
    let server = start(PAYMENTS);
    let failed = async |key: &str, details: &str, flags| {
        let (mut exchange, reply) = Exchange::post(&server, key, "{}").await;
        continued(&reply);
        exchange
            .send(response("503", &[], false, details, flags))
            .await;
        let asked = exchange.next().await;
        continued(&asked);
        exchange.send(response_body("upstream connect error")).await;
        problem(exchange.next().await)
    };
    let unreachable = failed(
        "k1",
        "upstream_reset_before_response_started{connection_failure}",
        NO_CONNECTION,
    );
    assert_eq!(unreachable.await, (502, "upstream-unreachable".into()));
    execute(&server, "k1", "201", &[], "paid").await;
    let broken = failed(
        "k2",
        "upstream_reset_before_response_started{connection_termination}",
        CONNECTION_BROKE,
    );
    assert_eq!(broken.await, (502, "outcome-unknown".into()));
    let (_, reply) = Exchange::post(&server, "k2", "{}").await;
    assert_eq!(problem(reply), (409, "outcome-unknown".into()));
}

#[tokio::test]
async fn a_stream_that_is_cut_leaves_an_unknown_outcome() {
    let server = start(PAYMENTS);
    for (key, parts) in [("k1", 0), ("k2", 1)] {
        let (mut exchange, reply) = Exchange::post(&server, key, "{}").await;
        continued(&reply);
        if parts > 0 {
            exchange
                .send(response("201", &[], false, "via_upstream", 0))
                .await;
            exchange.next().await;
        }
        drop(exchange);
        let (_, reply) = Exchange::post(&server, key, "{}").await;
        assert_eq!(problem(reply), (409, "outcome-unknown".into()), "{key}");
    }
}

#[tokio::test]
async fn a_client_that_goes_before_the_claim_leaves_the_key_free() {
    let server = start(PAYMENTS);
    let mut exchange = Exchange::open(&server).await;
    exchange
        .send(request(&[("idempotency-key", "k1")], false))
        .await;
    exchange.next().await;
    drop(exchange);
    execute(&server, "k1", "201", &[], "paid").await;
}

#[tokio::test]
async fn an_operation_that_takes_too_long_is_answered_while_envoy_waits() {
    let server = start(&format!("{PAYMENTS}timeout = \"50ms\"\n"));
    let (mut exchange, reply) = Exchange::post(&server, "k1", "{}").await;
    continued(&reply);
    assert_eq!(
        problem(exchange.next().await),
        (504, "outcome-unknown".into())
    );
    assert_eq!(exchange.end().await, None);
}

#[tokio::test]
async fn a_response_over_the_cap_is_passed_on_and_not_replayed() {
    let server = start(&format!("{PAYMENTS}outcome_bytes_max = \"1KiB\"\n"));
    execute(&server, "k1", "201", &[], &"x".repeat(5 << 20)).await;
    let (_, reply) = Exchange::post(&server, "k1", "{}").await;
    assert_eq!(problem(reply), (409, "body-not-kept".into()));
}

#[tokio::test]
async fn unguarded_requests_pass_without_their_bodies() {
    let server = start(PAYMENTS);
    let mut exchange = Exchange::open(&server).await;
    let headers = [
        ("refrain-fence", "1.1.1"),
        ("refrain_attempt", "9"),
        ("accept", "*/*"),
    ];
    exchange
        .send(request_to("GET", "/v1/payments", &headers, false))
        .await;
    let reply = exchange.next().await;
    let mut removed = continued(&reply).remove_headers;
    removed.sort();
    assert_eq!(removed, ["refrain-fence", "refrain_attempt"]);
    assert!(is_left_alone(&reply.mode_override.unwrap()));
    // In order: Envoy continues by itself.
    assert_eq!(exchange.end().await, None);
}

/// Its status is counted, and its `Refrain-Outcome` removed, so the response headers are needed.
#[tokio::test]
async fn a_request_without_a_key_passes_where_none_is_required() {
    let server = start("[[operation]]\nmatch = \"POST /v1/payments\"\n");
    let mut exchange = Exchange::open(&server).await;
    exchange.send(request(&[], false)).await;
    let mode = exchange.next().await.mode_override.unwrap();
    assert_eq!(mode.request_body_mode(), BodySendMode::None);
    assert_eq!(mode.response_header_mode(), HeaderSendMode::Send);
    let headers = [("refrain-outcome", "keep")];
    exchange
        .send(response("503", &headers, false, "via_upstream", 0))
        .await;
    let reply = exchange.next().await;
    assert_eq!(continued(&reply).remove_headers, ["refrain-outcome"]);
    assert_eq!(exchange.end().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observed_operation_changes_nothing() {
    let server = start(&format!("{PAYMENTS}mode = \"observe\"\n"));
    for observed in ["would-execute", "would-replay"] {
        let (mut exchange, reply) = Exchange::post(&server, "k1", "{}").await;
        continued(&reply);
        continued(&exchange.respond("201", &[], "paid").await);
        assert_eq!(exchange.end().await, None);
        let metric = format!(
            "refrain_observed_requests_total{{operation=\"POST /v1/payments\",result=\"{observed}\"}}"
        );
        support::until("it was observed", || server.metric(&metric) == 1.0);
    }
}

/// A stream that ends in order lets Envoy continue, so a request that cannot be guarded must end otherwise.
#[tokio::test]
async fn a_filter_that_cannot_guard_is_refused() {
    let server = start(PAYMENTS);
    let whole = request(&[("idempotency-key", "k1")], true);
    let without_bodies = ProcessingRequest {
        protocol_config: Some(ProtocolConfiguration::default()),
        ..whole.clone()
    };
    let observing = ProcessingRequest {
        observability_mode: true,
        ..whole.clone()
    };
    for message in [without_bodies, observing, request_body("{}")] {
        let exchange = Exchange::open(&server).await;
        exchange.send(message).await;
        assert_eq!(exchange.end().await, Some(tonic::Code::FailedPrecondition));
    }
    let exchange = Exchange::open(&server).await;
    exchange.send(whole.clone()).await;
    exchange.send(whole).await;
    assert_eq!(
        unordered(exchange).await,
        Some(tonic::Code::FailedPrecondition)
    );
    // The upstream responds although the body was not passed on: the override of the mode was ignored.
    let exchange = Exchange::open(&server).await;
    let headers = [("idempotency-key", "k1")];
    exchange.send(request(&headers, false)).await;
    exchange
        .send(response("201", &[], true, "via_upstream", 0))
        .await;
    assert_eq!(
        unordered(exchange).await,
        Some(tonic::Code::FailedPrecondition)
    );
}

/// Such as for a body over Envoy's own limit.
#[tokio::test]
async fn a_request_that_envoy_gives_up_leaves_the_key_free() {
    let server = start(PAYMENTS);
    let mut exchange = Exchange::open(&server).await;
    let headers = [("idempotency-key", "k1")];
    exchange.send(request(&headers, false)).await;
    exchange.next().await;
    let too_large = response("413", &[], false, "request_payload_too_large", 0);
    exchange.send(too_large).await;
    continued(&exchange.next().await);
    assert_eq!(exchange.end().await, None);
    execute(&server, "k1", "201", &[], "paid").await;
}

/// The end of a stream after at most one reply.
async fn unordered(mut exchange: Exchange) -> Option<tonic::Code> {
    exchange.next().await;
    exchange.end().await
}

#[tokio::test]
async fn outcomes_and_doubts_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file:{}", folder.path().join("records").display());
    let start = || starting().arg("--store", &store).file(PAYMENTS).start();
    let first = start();
    execute(&first, "k1", "201", &[], "paid").await;
    let (_running, reply) = Exchange::post(&first, "k2", "{}").await;
    continued(&reply);
    // By SIGKILL.
    drop(first);
    let second = start();
    let (_, reply) = Exchange::post(&second, "k1", "{}").await;
    assert_eq!(immediate(reply).body, b"paid");
    let (_, reply) = Exchange::post(&second, "k2", "{}").await;
    assert_eq!(problem(reply), (409, "outcome-unknown".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_finishes_what_runs() {
    let server = start(PAYMENTS);
    let (mut exchange, _) = Exchange::post(&server, "k1", "{}").await;
    server.terminate();
    support::until("it drains", || server.ask_admin("/readyz").status == 503);
    continued(&exchange.respond("201", &[], "paid").await);
    assert_eq!(exchange.end().await, None);
    assert_eq!(server.ended().code(), Some(0));
}

#[tokio::test]
async fn each_decision_is_counted() {
    let server = start(PAYMENTS);
    execute(&server, "k1", "201", &[], "paid").await;
    Exchange::post(&server, "k1", "{}").await;
    for (outcome, count) in [("fresh-kept", 1.0), ("replayed", 1.0), ("hung-up", 0.0)] {
        let metric = format!(
            "refrain_requests_total{{operation=\"POST /v1/payments\",outcome=\"{outcome}\"}}"
        );
        assert_eq!(
            server.metric(&metric),
            count,
            "{outcome}: {}",
            server.ask_admin("/metrics").text()
        );
    }
}
