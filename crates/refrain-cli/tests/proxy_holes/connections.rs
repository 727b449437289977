//! Bugs of other implementations in sharing connections: responses to the wrong client, and hidden retries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain_testkit::disk::Dice;
use tokio::{
    io::AsyncReadExt as _,
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Stand,
    proxy::Setup,
    upstream::{Act, Arrived, echo},
    wire::{Wire, ask, post, request, response},
};

/// One thread has one connection pool, so requests share connections.
const ONE_THREAD: &str = "[proxy]\nthreads = 1\n";

/// Responds with the target, in two pieces and with pauses, even if the client has disconnected.
fn in_pieces(arrived: &Arrived) -> Vec<Act> {
    let mut dice = Dice::new(arrived.number as u64);
    let answer = response(200, "", arrived.request.target());
    let (front, rest) = answer.split_at(answer.len() - 3);
    let mut pause = || Act::Sleep(Duration::from_millis(dice.below(12)));
    vec![
        pause(),
        Act::Say(front.to_vec()),
        pause(),
        Act::Say(rest.to_vec()),
    ]
}

/// A client that sends its own targets and disconnects from about every other request.
async fn capricious(address: std::net::SocketAddr, name: usize) {
    let mut dice = Dice::new(name as u64);
    let mut wire = None;
    for at in 0..40 {
        let target = format!("/client-{name}/{at}");
        let bytes = match dice.happens(50) {
            true => request("GET", &target, "", b""),
            false => post(&target, &target, b"{}"),
        };
        if wire.is_none() {
            wire = Some(Wire::open(address).await.unwrap());
        }
        let patience = match dice.happens(50) {
            true => Duration::from_millis(dice.below(20)),
            false => Duration::from_secs(20),
        };
        let open = wire.as_mut().unwrap();
        match timeout(patience, open.ask(&bytes)).await {
            Ok(answer) => {
                let answer = answer.unwrap();
                assert_eq!((answer.status(), answer.text()), (200, target));
            }
            Err(_) => wire.take().unwrap().reset(),
        }
    }
}

/// Bug: a cancelled request leaves its response in a pooled connection, and the next client gets it.
#[tokio::test]
async fn response_of_a_cancelled_request_reaches_no_other_client() {
    let stand = Stand::new(ONE_THREAD, in_pieces).await;
    let mut clients = JoinSet::new();
    for name in 0..12 {
        clients.spawn(capricious(stand.proxy.address, name));
    }
    clients.join_all().await;
    let arrived = stand.upstream.arrived();
    let connections = arrived.iter().map(|it| it.connection).max().unwrap();
    assert!(connections < arrived.len(), "connections are not shared");
}

/// Same bug, caused by the service: it sends more than one response.
#[tokio::test]
async fn unsolicited_upstream_bytes_reach_no_client() {
    let stand = Stand::new(ONE_THREAD, |arrived| {
        let own = response(200, "", arrived.request.target());
        let stale = response(200, "", "stale");
        match arrived.number % 3 {
            0 => vec![Act::Say(own)],
            1 => vec![Act::Say([own, stale].concat())],
            _ => vec![Act::Say(own), Act::Say(stale)],
        }
    })
    .await;
    let mut wire = stand.open().await;
    for at in 0..60 {
        let target = format!("/thing-{at}");
        let bytes = match at % 2 {
            0 => request("GET", &target, "", b""),
            _ => post(&target, &target, b"{}"),
        };
        let answer = wire.ask(&bytes).await.unwrap();
        assert_eq!((answer.status(), answer.text()), (200, target));
        // Bytes that arrive later than this cannot be distinguished from a response.
        if at % 3 == 1 {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Bug: a replay is sent before the request's body is read, and the body is then parsed as a request.
#[tokio::test]
async fn a_body_is_never_taken_for_the_next_request() {
    let settings = "[policy]\nrequest_bytes_max = \"2KiB\"\n\
                    [[operation]]\nmatch = \"POST /strict\"\nrequired = true\n";
    let stand = Stand::new(settings, echo).await;
    let smuggled = "POST /smuggled HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n";
    let large = smuggled.repeat(60);
    let keyed = |target: &str, key: &str, body: &str| post(target, key, body.as_bytes());
    let in_chunks = |key: &str, body: &str| {
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: {key}\r\n\
             transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        head.into_bytes()
    };
    assert_eq!(stand.post("kept", smuggled).await.status(), 201);
    assert_eq!(stand.upstream.count(), 1);
    let cases = [
        ("replay", keyed("/orders", "kept", smuggled), "201"),
        ("chunked replay", in_chunks("kept", smuggled), "201"),
        (
            "another body",
            keyed("/orders", "kept", &smuggled.repeat(2)),
            "422 key-reused",
        ),
        (
            "bad key",
            keyed("/orders", "no key", smuggled),
            "400 key-invalid",
        ),
        (
            "no key",
            request("POST", "/strict", "", smuggled.as_bytes()),
            "400 key-missing",
        ),
        (
            "too large",
            keyed("/orders", "large", &large),
            "413 request-too-large",
        ),
        (
            "too large, chunked",
            in_chunks("large", &large),
            "413 request-too-large",
        ),
    ];
    for (at, (what, bytes, verdict)) in cases.into_iter().enumerate() {
        let mut wire = stand.open().await;
        let after = format!("/after-{at}");
        // Alternately together, and with the body a little later than its head.
        let (head, rest) =
            bytes.split_at(bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4);
        wire.send(head).await.unwrap();
        if at % 2 == 1 {
            sleep(Duration::from_millis(30)).await;
        }
        let _ = wire
            .send(&[rest, &post(&after, &after, b"{}")].concat())
            .await;
        let answer = wire.response().await.unwrap();
        assert_eq!(answer.verdict(), verdict, "{what}");
        // The proxy may close instead; otherwise the response belongs to the next request.
        if let Ok(next) = wire.response().await {
            let text = next.text();
            assert!(text.starts_with(&format!("{after} by")), "{what}: {text}");
        }
    }
    for arrived in stand.upstream.arrived() {
        let target = arrived.request.target();
        assert!(
            target == "/orders" || target.starts_with("/after-"),
            "{target}"
        );
    }
}

/// Bug: the HTTP client library retries by itself when a connection was closed before the response.
#[tokio::test]
async fn a_request_on_a_connection_that_then_closes_goes_out_once() {
    // No pause of this test is long enough to close an idle connection.
    let stand = Stand::new(
        &format!("{ONE_THREAD}upstream_idle = \"1h\"\n"),
        |arrived| match arrived.number % 2 {
            1 => echo(arrived),
            _ => vec![Act::Close],
        },
    )
    .await;
    let guarded = |key: &str| post("/orders", key, b"{}");
    let bytes = |what: &str, key: &str| match what {
        "guarded" => guarded(key),
        "unkeyed" => request("POST", "/orders", "", b"{}"),
        _ => request("GET", "/orders", "", b""),
    };
    let cases = [
        ("guarded", "502 outcome-unknown"),
        ("unkeyed", "502 upstream-failed"),
        ("unguarded", "502 upstream-failed"),
    ];
    let mut count = 0;
    for (what, verdict) in cases {
        assert_eq!(
            stand.ask(&bytes(what, "opens")).await.status(),
            201,
            "{what}"
        );
        sleep(Duration::from_millis(50)).await;
        let answer = stand.ask(&bytes(what, "closes")).await;
        assert_eq!(answer.verdict(), verdict, "{what}");
        count += 2;
        assert_eq!(stand.upstream.count(), count, "{what}");
        let arrived = stand.upstream.arrived();
        let [.., first, second] = &arrived[..] else {
            panic!("{what}: {arrived:?}");
        };
        assert_eq!(first.connection, second.connection, "{what}: not reused");
    }
    let later = stand.ask(&guarded("closes")).await;
    assert_eq!(later.verdict(), "409 outcome-unknown");
    assert_eq!(stand.upstream.count(), count);
}

/// Same bug, where the upstream read only a part of the request.
#[tokio::test]
async fn a_request_that_was_read_in_part_goes_out_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setup = Setup::new(listener.local_addr().unwrap(), ONE_THREAD);
    let touched = Arc::new(AtomicUsize::new(0));
    let counting = touched.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if let Ok(1..) = stream.read(&mut [0; 10]).await {
                counting.fetch_add(1, Relaxed);
            }
        }
    });
    let proxy = setup.start();
    let body = vec![b'x'; 1 << 20];
    let answer = ask(proxy.address, &post("/orders", "part", &body)).await;
    assert_eq!(answer.verdict(), "502 outcome-unknown");
    let later = ask(proxy.address, &post("/orders", "part", &body)).await;
    assert_eq!(later.verdict(), "409 outcome-unknown");
    assert_eq!(touched.load(Relaxed), 1);
}

/// Same bug, other side: a connection known to be dead is not used, so no request has to be sent again.
#[tokio::test]
async fn dead_idle_upstream_connection_fails_no_request() {
    let stand = Stand::new(ONE_THREAD, |arrived| {
        [echo(arrived), vec![Act::Close]].concat()
    })
    .await;
    for at in 0..50 {
        let answer = stand.post(&format!("idle-{at}"), "{}").await;
        assert_eq!(answer.status(), 201, "{at}: {}", answer.text());
        sleep(Duration::from_millis(at % 4)).await;
    }
    assert_eq!(stand.upstream.count(), 50);
}

/// A response before the whole request was read is final, and the rest of the request is discarded.
#[tokio::test]
async fn an_answer_before_the_whole_request_was_read_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setup = Setup::new(listener.local_addr().unwrap(), ONE_THREAD);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut wire = Wire::new(stream);
                let head = wire.head().await.unwrap();
                let refusal = response(413, "connection: close\r\n", head.target());
                wire.send(&refusal).await.unwrap();
                // The rest is neither read nor rejected for a while.
                sleep(Duration::from_millis(300)).await;
            });
        }
    });
    let proxy = setup.start();
    let body = vec![b'x'; 8_000_000];
    for (at, is_replay) in [(0, false), (0, true), (1, false)] {
        let target = format!("/large-{at}");
        let answer = ask(proxy.address, &post(&target, &target, &body)).await;
        assert_eq!(answer.verdict(), "413", "{target}: {}", setup.log());
        assert_eq!((answer.text(), answer.is_replay()), (target, is_replay));
    }
}
