//! The process that made a call has died. Another process opens its journal and resumes the call under the same key;
//! under a new key, the call could execute twice.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use refrain::ErrorKind;

use crate::{
    server::{Server, Step, answer, bytes},
    stage::{Stage, TestClient, body, key, open, post, told},
};

/// Leaves a call open, like a process that dies after sending.
async fn leave_open(client: &TestClient, server: &Server, name: &str, headers: &[(&str, &str)]) {
    let mut request = post(server.url("/pay"), name);
    for (name, value) in headers {
        let name = HeaderName::try_from(*name).unwrap();
        request
            .headers_mut()
            .insert(name, HeaderValue::try_from(*value).unwrap());
    }
    let once = refrain::client::Retry {
        attempts_max: 1,
        ..crate::stage::retry()
    };
    let client = client.clone().with_retry(once);
    let ending = client.call(key(name)).send(request).await.unwrap();
    assert_eq!(told(&ending), "unknown: AttemptsUsedUp");
}

#[tokio::test]
async fn every_open_call_is_sent_again_under_its_key() {
    let names: Vec<String> = (0..40).map(|number| format!("order-{number}")).collect();
    let (stage, server) = (Stage::new(), Server::start(vec![Step::Close; 40]).await);
    let client = stage.client();
    for name in &names {
        leave_open(&client, &server, name, &[("x-shop", "7")]).await;
    }
    drop(client);
    let client = stage.client().with_resumed_at_once_max(3);
    let calls = client.open_calls().await.unwrap();
    assert_eq!(calls.len(), 40);
    assert_eq!(calls[0].key, key("order-0"), "the oldest first");
    assert_eq!(calls[0].request.uri(), server.url("/pay").as_str());
    assert!(calls[0].left > Duration::from_secs(10) && calls[0].deadline > calls[0].created);
    let mut resumed = client.resume().await.unwrap().all().await;
    resumed.sort_by_key(|it| it.key.clone());
    let mut sorted = names.clone();
    sorted.sort();
    for (resumed, name) in resumed.iter().zip(&sorted) {
        assert_eq!(resumed.key.as_str(), name);
        assert_eq!(told(resumed.ending.as_ref().unwrap()), "answered 200");
    }
    assert_eq!((resumed.len(), open(&client).await), (40, 0));
    // The same requests: bodies, addresses and headers.
    let seen = server.seen();
    assert_eq!(seen.len(), 80);
    for seen in seen {
        assert_eq!(
            (seen.key(), seen.line.as_str()),
            (seen.body.as_str(), "POST /pay HTTP/1.1")
        );
        assert_eq!(seen.header("x-shop"), Some("7"));
    }
    assert!(client.resume().await.unwrap().all().await.is_empty());
}

#[tokio::test]
async fn no_more_go_at_once_than_are_allowed() {
    let mut script = vec![Step::Close; 6];
    script.extend(vec![Step::Gated(bytes(200, "", "")); 6]);
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let client = stage.client().with_resumed_at_once_max(2);
    for number in 0..6 {
        leave_open(&client, &server, &format!("order-{number}"), &[]).await;
    }
    let mut resume = client.resume().await.unwrap();
    for ended in 0..6 {
        let going = (6 - ended).min(2);
        server.has_seen(6 + ended + going).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(server.seen().len(), 6 + ended + going);
        server.gate.add_permits(1);
        resume
            .next()
            .await
            .unwrap()
            .ending
            .unwrap()
            .into_answer()
            .unwrap();
    }
    assert!(resume.next().await.is_none());
}

#[tokio::test]
async fn credentials_are_not_kept_and_have_to_be_given_anew() {
    let (stage, server) = (
        Stage::new(),
        Server::start([Step::Close, answer(201, "", "one")]).await,
    );
    let client = stage.client();
    let secrets = [
        ("authorization", "Bearer s3cret"),
        ("cookie", "s3cret=1"),
        ("x-shop", "7"),
    ];
    leave_open(&client, &server, "order-7", &secrets).await;
    drop(client);
    let file = std::fs::read(&stage.path).unwrap();
    let has = |text: &[u8]| file.windows(text.len()).any(|it| it == text);
    assert!(!has(b"s3cret") && has(b"x-shop"));

    let client = stage.client();
    // Without its credential the request might count as another caller's, and execute again.
    let refused = client.resume().await.unwrap().all().await.remove(0);
    let error = refused.ending.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("resume_with"), "{error}");
    assert_eq!((server.seen().len(), open(&client).await), (1, 1));

    let renew = |_: &refrain::Key, request: &mut http::Request<bytes::Bytes>| {
        let headers = request.headers_mut();
        headers.insert("authorization", HeaderValue::from_static("Bearer new"));
        headers.insert("cookie", HeaderValue::from_static("new=1"));
    };
    let resumed = client
        .resume_with(renew)
        .await
        .unwrap()
        .all()
        .await
        .remove(0);
    assert_eq!(body(&resumed.ending.unwrap()), "one");
    let seen = server.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer new"));
    assert_eq!(seen.header("x-shop"), Some("7"));
}

#[tokio::test]
async fn which_headers_are_not_kept_can_be_said() {
    let (stage, server) = (Stage::new(), Server::start([Step::Close]).await);
    let client = stage
        .client()
        .with_headers_not_kept([HeaderName::from_static("x-api-key")]);
    leave_open(
        &client,
        &server,
        "order-7",
        &[("x-api-key", "s3cret"), ("cookie", "plain=1")],
    )
    .await;
    drop(client);
    let file = std::fs::read(&stage.path).unwrap();
    let has = |text: &[u8]| file.windows(text.len()).any(|it| it == text);
    assert!(!has(b"s3cret") && has(b"plain=1"));
}

#[tokio::test]
async fn renewing_may_not_make_another_request_of_it() {
    let (stage, server) = (Stage::new(), Server::start([Step::Close]).await);
    let client = stage.client();
    leave_open(&client, &server, "order-7", &[]).await;
    let resume = client.resume_with(|_, request| *request.body_mut() = "99".into());
    let resumed = resume.await.unwrap().all().await.remove(0);
    assert_eq!(resumed.ending.unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!((server.seen().len(), open(&client).await), (1, 1));
}

#[tokio::test]
async fn a_refused_credential_does_not_end_a_call_that_may_have_run() {
    let (stage, server) = (
        Stage::new(),
        Server::start([Step::Close, answer(401, "", "")]).await,
    );
    let client = stage.client();
    leave_open(&client, &server, "order-7", &[]).await;
    let resumed = client.resume().await.unwrap().all().await.remove(0);
    assert_eq!(told(&resumed.ending.unwrap()), "unknown: Refused");
    assert_eq!(open(&client).await, 1);
}

#[tokio::test]
async fn call_resolved_by_an_operator_is_forgotten() {
    let (stage, server) = (Stage::new(), Server::start([Step::Close]).await);
    let client = stage.client();
    leave_open(&client, &server, "order-7", &[]).await;
    assert!(
        client
            .forget(&key("order-7"), "booked by hand")
            .await
            .unwrap()
    );
    assert!(
        !client
            .forget(&key("order-7"), "booked by hand")
            .await
            .unwrap()
    );
    assert!(client.resume().await.unwrap().all().await.is_empty());
    drop(client);
    let client = stage.client();
    assert_eq!((open(&client).await, server.seen().len()), (0, 1));
    // The key is free for another request.
    let ending = client
        .call(key("order-7"))
        .send(post(server.url("/pay"), "99"));
    assert_eq!(told(&ending.await.unwrap()), "answered 200");
}

#[tokio::test]
async fn a_call_in_flight_is_not_sent_a_second_time_by_resuming() {
    let gated = Step::Gated(bytes(201, "", "one"));
    let (stage, server) = (Stage::new(), Server::start([gated]).await);
    let client = stage.client();
    let going = {
        let (client, request) = (client.clone(), post(server.url("/pay"), "20"));
        tokio::spawn(async move { client.call(key("order-7")).send(request).await })
    };
    server.has_seen(1).await;
    assert!(client.resume().await.unwrap().all().await.is_empty());
    server.gate.add_permits(1);
    assert_eq!(body(&going.await.unwrap().unwrap()), "one");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn call_with_unknown_outcome_stays_open() {
    let asked = crate::server::problem(409, "outcome-unknown", "ask", "");
    let script = [
        asked.clone(),
        asked,
        answer(201, "idempotent-replayed: true\r\n", "one"),
    ];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let client = stage.client();
    let call = client
        .call(key("order-7"))
        .send(post(server.url("/pay"), "20"));
    assert_eq!(told(&call.await.unwrap()), "unknown: Asked");
    drop(client);
    let client = stage.client();
    for expected in ["unknown: Asked", "answered 201"] {
        let resumed = client.resume().await.unwrap().all().await.remove(0);
        assert_eq!(told(&resumed.ending.unwrap()), expected);
    }
    assert_eq!(open(&client).await, 0);
}
