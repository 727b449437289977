//! A client behind the proxy lost a response. It must learn the outcome of its request without sending it again, and
//! only about its own.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use serde_json::Value;
use support::{Client, HttpResponse, Proxy, Upstream, answer, call, request};

const ANNA: (&str, &str) = ("authorization", "Bearer anna");
const BERT: (&str, &str) = ("authorization", "Bearer bert");

fn look_up(proxy: &Proxy, key: &str, caller: (&str, &str)) -> HttpResponse {
    let start = format!("GET /.well-known/idempotency/{key}");
    call(proxy.address, request(&start, &[caller], b""))
}

#[test]
fn a_key_is_looked_up_by_its_own_client_alone() {
    let upstream = Upstream::start(|_, stream| answer(stream, "201 Created", &[], b"made"));
    let proxy = Proxy::start(upstream.address, "[policy]\nlookup = true");
    let order = [ANNA, ("idempotency-key", "order/7")];
    let first = call(proxy.address, request("POST /orders", &order, b"x"));
    assert_eq!(first.status, 201);
    let seen = look_up(&proxy, "order%2F7", ANNA);
    let json: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(seen.status, 200);
    assert_eq!(
        (&json["state"], &json["status"]),
        (&"completed".into(), &201.into())
    );
    assert_eq!(json["record"], first.header("refrain-record").unwrap());
    assert_eq!(seen.header("cache-control"), Some("no-store"));
    let [other, absent] =
        [("order%2F7", BERT), ("none", BERT)].map(|(key, caller)| look_up(&proxy, key, caller));
    assert_eq!((other.status, absent.status), (404, 404));
    assert_eq!(other.body, absent.body);
    // HEAD, on a connection that goes on.
    let mut client = Client::connect(proxy.address);
    let start = "HEAD /.well-known/idempotency/order%2F7";
    client.send(request(start, &[ANNA], b""));
    let head = client.head().unwrap();
    let len = seen.body.len().to_string();
    let told = (head.status, head.header("content-length"));
    assert_eq!(told, (200, Some(len.as_str())));
    client.send(request("POST /orders", &order, b"x"));
    assert!(client.answer().is_replay());
    assert_eq!(upstream.count(), 1);
    assert_eq!(proxy.metric("refrain_claims_granted_total"), 1.0);
    // The list of recent requests shows that keys were looked up, and not which.
    let recent = proxy.ask_admin("/api/requests");
    let json: Value = serde_json::from_slice(&recent.body).unwrap();
    let mut shown = json["requests"].as_array().unwrap().iter();
    let looked_up = shown.find(|it| it["path"] == "/.well-known/idempotency/");
    assert_eq!(looked_up.unwrap()["outcome"], "looked-up");
    let text = json.to_string();
    assert!(!text.contains("2F7") && !text.contains("order/7"), "{text}");
}

#[test]
fn without_the_setting_the_upstream_answers() {
    let upstream = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b"its own"));
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(look_up(&proxy, "k", ANNA).text(), "its own");
    assert_eq!(upstream.count(), 1);
}
