//! Bugs of other implementations in the identity of callers and requests.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::{
    Stand, post_with,
    upstream::{Act, echo},
    wire::{ask, post, request, response},
};

const ALICE: &str = "authorization: Basic YWxpY2U6c2VjcmV0\r\n";
const BOB: &str = "authorization: Basic Ym9iOnNlY3JldA==\r\n";
/// Two tokens of one subject, as before and after a refresh, and one of another subject.
const TOKEN: &str = "authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJzaG9wIiwic3ViIjoiYWxpY2UiLCJpYXQiOjF9.c2lnbmF0dXJl1\r\n";
const REFRESHED: &str = "authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJzaG9wIiwic3ViIjoiYWxpY2UiLCJpYXQiOjJ9.c2lnbmF0dXJl2\r\n";
const BOBS_TOKEN: &str = "authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJzaG9wIiwic3ViIjoiYm9iIiwiaWF0IjoxfQ.c2lnbmF0dXJl3\r\n";

/// Bug: the key is not scoped, so another client gets the first one's body and cookies.
#[tokio::test]
async fn the_same_key_of_two_callers_is_two_keys() {
    let stand = Stand::new("", |arrived| {
        let caller = arrived.request.header("authorization").unwrap_or("nobody");
        let cookie = format!("set-cookie: session={}\r\n", arrived.number);
        vec![Act::Say(response(201, &cookie, format!("for {caller}")))]
    })
    .await;
    let callers = [ALICE, BOB, BOBS_TOKEN, "authorization: Custom 1\r\n", ""];
    for (at, caller) in callers.iter().enumerate() {
        let request = post_with("/orders", "same", caller, b"{}");
        let first = stand.ask(&request).await;
        assert_eq!(
            (first.status(), first.is_replay()),
            (201, false),
            "{caller}"
        );
        assert_eq!(
            first.header("set-cookie"),
            Some(&*format!("session={}", at + 1))
        );
        let name = caller.trim_start_matches("authorization: ").trim_end();
        let name = if name.is_empty() { "nobody" } else { name };
        assert_eq!(first.text(), format!("for {name}"));
        let replay = stand.ask(&request).await;
        assert!(replay.is_replay(), "{caller}");
        assert_eq!(replay.body, first.body, "{caller}");
    }
    assert_eq!(stand.upstream.count(), callers.len());
}

/// Bug: the credential is part of the lookup, so a retry with a refreshed token runs again.
#[tokio::test]
async fn a_refreshed_credential_does_not_run_it_again() {
    let cases = [
        ("same-credential", "409 credential-changed"),
        ("same-scope", "201"),
    ];
    for (replay_to, verdict) in cases {
        let settings = format!("[policy]\nreplay_to = \"{replay_to}\"\n");
        let stand = Stand::new(&settings, echo).await;
        let first = stand.ask(&post_with("/orders", "r", TOKEN, b"{}")).await;
        assert_eq!(first.status(), 201);
        let later = post_with("/orders", "r", REFRESHED, b"{}");
        let later = stand.ask(&later).await;
        assert_eq!(later.verdict(), verdict, "{replay_to}");
        assert_eq!(later.is_replay(), replay_to == "same-scope");
        assert_eq!(stand.upstream.count(), 1, "{replay_to}");
        // The original client still gets the replay.
        let again = stand.ask(&post_with("/orders", "r", TOKEN, b"{}")).await;
        assert_eq!((again.is_replay(), again.body), (true, first.body));
    }
}

/// Bug: method, path or query are not in the fingerprint, so another request gets this one's response.
#[tokio::test]
async fn the_same_key_for_another_method_path_or_query_is_refused() {
    let stand = Stand::new("", echo).await;
    let header = "idempotency-key: f\r\n";
    let first = request("POST", "/orders?amount=1", header, b"{}");
    assert_eq!(stand.ask(&first).await.status(), 201);
    let others = [
        ("POST", "/orders?amount=999"),
        ("POST", "/orders"),
        ("POST", "/orders?amount=1&amount=1"),
        ("POST", "/refunds?amount=1"),
        ("POST", "/orders/?amount=1"),
        ("PATCH", "/orders?amount=1"),
    ];
    for (method, target) in others {
        let other = stand.ask(&request(method, target, header, b"{}")).await;
        assert_eq!(other.verdict(), "422 key-reused", "{method} {target}");
    }
    assert!(stand.ask(&first).await.is_replay());
    assert_eq!(stand.upstream.count(), 1);
}

/// Bug: the fingerprint is not compared, or only after the first request has ended.
#[tokio::test]
async fn the_same_key_for_another_body_is_refused_at_once_and_later() {
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let stand = Stand::new("", move |arrived| {
        [vec![Act::Wait(waiting.clone())], echo(arrived)].concat()
    })
    .await;
    let address = stand.proxy.address;
    let first = tokio::spawn(async move { ask(address, &post("/orders", "b", b"[1]")).await });
    stand.upstream.reached(1).await;
    assert_eq!(stand.post("b", "[2]").await.verdict(), "422 key-reused");
    assert!(
        !first.is_finished(),
        "the rejection waited for the first request"
    );
    go_on.notify_one();
    first.await.unwrap();
    for body in ["[2]", "", "[1", "[1.0]", "[01]"] {
        let other = stand.post("b", body).await;
        assert_eq!(other.verdict(), "422 key-reused", "{body}");
    }
    assert!(stand.post("b", "[1]").await.is_replay());
    assert_eq!(stand.upstream.count(), 1);
}

/// Bug: fingerprints are unique across keys, so a client's order is rejected because it equals another client's.
#[tokio::test]
async fn equal_requests_under_different_keys_all_run() {
    let stand = Stand::new("", echo).await;
    for (number, (key, caller)) in [("a", ALICE), ("b", ALICE), ("c", BOB), ("a", BOB)]
        .into_iter()
        .enumerate()
    {
        let request = post_with("/orders", key, caller, b"{\"cart\": 7}");
        let answer = stand.ask(&request).await;
        assert_eq!(answer.text(), format!("/orders by request {}", number + 1));
        assert!(!answer.is_replay());
    }
}

/// Bug: the order of a body's members changes the fingerprint.
#[tokio::test]
async fn the_order_of_members_and_white_space_make_no_other_request() {
    let stand = Stand::new("", echo).await;
    let json = "content-type: application/json\r\n";
    let bodies = [
        r#"{"to": {"name": "Al", "id": 9007199254740993}, "amount": 20}"#,
        r#"{"amount":20,"to":{"id":9007199254740993,"name":"Al"}}"#,
        "{ \"amount\": 20,\n\t\"to\": {\"id\": 9007199254740993, \"name\": \"\\u0041l\"} }",
    ];
    for (at, body) in bodies.iter().enumerate() {
        let request = post_with("/orders", "m", json, body.as_bytes());
        let answer = stand.ask(&request).await;
        assert_eq!(
            (answer.status(), answer.is_replay()),
            (201, at > 0),
            "{body}"
        );
    }
    // Adjacent numbers are different requests, also where a float cannot represent the difference.
    let other = bodies[1].replace("0993", "0992");
    let other = post_with("/orders", "m", json, other.as_bytes());
    assert_eq!(stand.ask(&other).await.verdict(), "422 key-reused");
    assert_eq!(stand.upstream.count(), 1);
}
