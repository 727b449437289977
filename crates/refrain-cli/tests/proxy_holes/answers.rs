//! Bugs of other implementations in storing and replaying responses.

use std::time::Duration;

use crate::{
    Stand,
    upstream::{Act, Arrived, echo},
    wire::{post, request, response},
};

/// Bug: bodies are converted to text and are corrupted, even for the first client.
#[tokio::test]
async fn binary_bodies_pass_unchanged_in_both_directions() {
    let bytes: Vec<u8> = (0..=255_u8).cycle().take(70_000).collect();
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let answered = reversed.clone();
    let stand = Stand::new("", move |_| vec![Act::Say(response(200, "", &answered))]).await;
    for is_replay in [false, true] {
        let answer = stand.ask(&post("/images", "bin", &bytes)).await;
        assert_eq!(answer.is_replay(), is_replay);
        assert_eq!(answer.body, reversed);
    }
    assert_eq!(stand.upstream.arrived()[0].request.body, bytes);
    assert_eq!(stand.upstream.count(), 1);
}

/// Bug: cookies are replayed, and the `Location` of the created resource is lost.
#[tokio::test]
async fn cookies_are_not_replayed_and_the_location_is() {
    let headers = "set-cookie: session=1\r\nset-cookie: other=2\r\nwww-authenticate: Basic\r\n\
                   date: Sun, 06 Nov 1994 08:49:37 GMT\r\nx-ratelimit-remaining: 5\r\n\
                   traceparent: 00-1-1-01\r\nlocation: /orders/7\r\netag: \"7\"\r\n\
                   content-type: text/html; charset=latin1\r\ncontent-language: de\r\n";
    let stand = Stand::new("", |_| vec![Act::Say(response(201, headers, "made"))]).await;
    let first = stand.post("h", "{}").await;
    let replay = stand.post("h", "{}").await;
    assert!(replay.is_replay());
    assert_eq!(replay.header("cache-control"), Some("no-store"));
    for name in ["location", "etag", "content-type", "content-language"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(replay.header(name), first.header(name), "{name}");
    }
    let never = [
        "set-cookie",
        "www-authenticate",
        "x-ratelimit-remaining",
        "traceparent",
    ];
    for name in never {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(replay.header(name), None, "{name}");
    }
    assert_ne!(replay.header("date"), first.header("date"));
}

fn chunked(status: u16, pieces: &[&str]) -> Vec<Act> {
    let head = format!("HTTP/1.1 {status} As-It-Is\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut acts = vec![Act::Say(head.into_bytes())];
    for piece in pieces {
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        acts.push(Act::Sleep(Duration::from_millis(20)));
        acts.push(Act::Say(chunk.into_bytes()));
    }
    acts.push(Act::Say(b"0\r\n\r\n".to_vec()));
    acts
}

/// Bug: every replay is a 200, and its body has only the bytes of the first read.
#[tokio::test]
async fn a_replay_has_the_status_and_every_piece_of_the_body() {
    let statuses = [200, 201, 202, 204, 207, 301, 303, 404, 409, 500, 599];
    let stand = Stand::new("", move |arrived| match statuses[arrived.number - 1] {
        204 => vec![Act::Say(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())],
        status => chunked(status, &["one ", "two ", "three ", "four"]),
    })
    .await;
    for (at, status) in statuses.into_iter().enumerate() {
        let first = stand.post(&format!("s-{status}"), "{}").await;
        let replay = stand.post(&format!("s-{status}"), "{}").await;
        let whole = if status == 204 {
            ""
        } else {
            "one two three four"
        };
        assert_eq!((first.status(), &*first.text()), (status, whole));
        assert_eq!((replay.status(), &*replay.text()), (status, whole));
        assert!(replay.is_replay() && !first.is_replay(), "{status}");
        assert_eq!(stand.upstream.count(), at + 1);
    }
}

/// Bug: a response that is too large or streamed is not stored, so a retry runs again.
#[tokio::test]
async fn an_answer_over_the_cap_reaches_the_first_caller_and_is_not_run_again() {
    let large = "x".repeat(50_000);
    let whole = large.clone();
    let stand = Stand::new(
        "[policy]\noutcome_bytes_max = \"4KiB\"\n",
        move |arrived| match arrived.number {
            1 => vec![Act::Say(response(201, "location: /orders/7\r\n", &large))],
            _ => chunked(201, &[&large[..10], &large[10..]]),
        },
    )
    .await;
    for (at, location) in [Some("/orders/7"), None].into_iter().enumerate() {
        let key = format!("large-{at}");
        let first = stand.post(&key, "{}").await;
        assert_eq!(first.status(), 201);
        assert_eq!(first.text(), whole);
        for _ in 0..2 {
            let later = stand.post(&key, "{}").await;
            assert_eq!(later.verdict(), "409 body-not-kept");
            assert_eq!(later.header("location"), location);
            assert!(
                later.text().contains("\"original_status\":201"),
                "{}",
                later.text()
            );
        }
        assert_eq!(stand.upstream.count(), at + 1);
    }
}

/// Responds with the status in the path; `/500/release` declares that the key is released.
fn as_told(arrived: &Arrived) -> Vec<Act> {
    let mut parts = arrived.request.target().split('/').skip(1);
    let status = parts.next().unwrap().parse().unwrap();
    let header = parts.next().map(|it| format!("refrain-outcome: {it}\r\n"));
    let body = format!("by request {}", arrived.number);
    vec![Act::Say(response(
        status,
        &header.unwrap_or_default(),
        body,
    ))]
}

/// Bug: errors are kept for ever, or block the corrected retry, and the policy cannot change it.
#[tokio::test]
async fn whether_an_error_is_kept_or_frees_the_key_can_be_chosen() {
    let at_most_once: &[(&str, bool)] = &[
        ("/500", true),
        ("/404", true),
        ("/422", true),
        ("/401", false),
        ("/429", false),
        ("/500/release", false),
        ("/429/keep", true),
        ("/201/release", false),
    ];
    let at_least_once: &[(&str, bool)] = &[
        ("/200", true),
        ("/303", true),
        ("/500", false),
        ("/404", false),
        ("/500/keep", true),
    ];
    let chosen: &[(&str, bool)] = &[
        ("/500", false),
        ("/503", false),
        ("/422", false),
        ("/429", true),
    ];
    let cases = [
        ("", at_most_once),
        ("[policy]\nguarantee = \"at-least-once\"\n", at_least_once),
        ("[policy]\nrelease = [\"5xx\", 422]\nkeep = [429]\n", chosen),
    ];
    for (settings, cases) in cases {
        let stand = Stand::new(settings, as_told).await;
        for (target, is_kept) in cases {
            let what = format!("{settings}{target}");
            let before = stand.upstream.count();
            let request = post(target, &format!("k{before}"), b"{}");
            let first = stand.ask(&request).await;
            let second = stand.ask(&request).await;
            assert_eq!(first.header("refrain-outcome"), None, "{what}");
            assert_eq!(first.status(), second.status(), "{what}");
            assert_eq!(second.is_replay(), *is_kept, "{what}");
            let dispatches = stand.upstream.count() - before;
            assert_eq!(dispatches, if *is_kept { 1 } else { 2 }, "{what}");
        }
    }
}

/// Same bug: the corrected request can be sent with the key of the rejected one.
#[tokio::test]
async fn a_refused_request_can_be_corrected_under_the_same_key() {
    let stand = Stand::new("[policy]\nrelease = [400]\n", |arrived| {
        match arrived.request.body == b"{\"amount\": 20}" {
            true => echo(arrived),
            false => vec![Act::Say(response(400, "", "no amount"))],
        }
    })
    .await;
    assert_eq!(stand.post("typo", "{\"amuont\": 20}").await.status(), 400);
    assert_eq!(stand.post("typo", "{\"amount\": 20}").await.status(), 201);
    assert!(stand.post("typo", "{\"amount\": 20}").await.is_replay());
}

/// The upstream gets the key unchanged and the proxy's attempt number, not the one that the client sent.
#[tokio::test]
async fn the_service_sees_the_key_and_which_attempt_it_is() {
    let stand = Stand::new("", echo).await;
    let header = "idempotency-key: \"quoted\"\r\nrefrain-attempt: 99\r\n";
    let answer = stand.ask(&request("POST", "/orders", header, b"{}")).await;
    assert_eq!(answer.status(), 201);
    let arrived = &stand.upstream.arrived()[0].request;
    assert_eq!(arrived.key(), "\"quoted\"");
    assert_eq!(arrived.header("refrain-attempt"), Some("1"));
    assert_eq!(
        arrived
            .headers
            .iter()
            .filter(|(name, _)| name == "refrain-attempt")
            .count(),
        1
    );
}
