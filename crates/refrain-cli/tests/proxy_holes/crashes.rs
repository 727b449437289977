//! Bugs of other implementations when the proxy, its client or its upstream dies in the middle.

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::Notify, time::sleep};

use crate::{
    Stand,
    proxy::Setup,
    slow_echo,
    upstream::{Act, Upstream, echo},
    wire::{Wire, ask, post},
};

/// Bug: one timeout for "in flight" and "response kept", so that a crash locks the key for a day.
#[tokio::test]
async fn after_a_crash_the_next_answer_comes_at_once_and_is_not_in_flight() {
    let cases = [
        ("at-most-once", "409 outcome-unknown", 1),
        ("at-least-once", "201", 2),
    ];
    for (guarantee, verdict, count) in cases {
        let settings = format!(
            "[policy]\nguarantee = \"{guarantee}\"\nlease = \"10m\"\nwait = \"20s\"\nretention = \"24h\"\n"
        );
        let mut stand = Stand::new(&settings, |arrived| match arrived.number {
            1 => vec![Act::Wait(Arc::new(Notify::new()))],
            _ => echo(arrived),
        })
        .await;
        let mut first = stand.open().await;
        first.send(&post("/orders", "crash", b"{}")).await.unwrap();
        stand.upstream.reached(1).await;
        stand.kill_and_start();
        let asked = tokio::time::Instant::now();
        let answer = stand.post("crash", "{}").await;
        assert_eq!(answer.verdict(), verdict, "{guarantee}");
        // Faster than a duplicate that waits for a request in flight.
        assert!(asked.elapsed() < Duration::from_secs(20), "{guarantee}");
        assert_eq!(answer.header("retry-after"), None, "{guarantee}");
        assert_eq!(stand.upstream.count(), count, "{guarantee}");
    }
}

/// Same bug: a response that was sent before the crash is replayed after it.
#[tokio::test]
async fn a_replay_survives_the_crash() {
    let mut stand = Stand::new("", echo).await;
    let first = stand.post("kept", "{}").await;
    stand.kill_and_start();
    let replay = stand.post("kept", "{}").await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, first.body);
    assert_eq!(stand.upstream.count(), 1);
}

/// Bug: a client that disconnects cancels the operation, or the recording of its outcome.
#[tokio::test]
async fn a_client_that_hangs_up_cancels_neither_the_operation_nor_its_recording() {
    let stand = Stand::new("", |arrived| slow_echo(arrived, 300)).await;
    for key in ["reset", "closed"] {
        let before = stand.upstream.count();
        let mut wire = stand.open().await;
        wire.send(&post("/orders", key, b"{}")).await.unwrap();
        stand.upstream.reached(before + 1).await;
        match key {
            "reset" => wire.reset(),
            _ => drop(wire),
        }
        sleep(Duration::from_millis(600)).await;
        let answer = stand.post(key, "{}").await;
        assert!(answer.is_replay(), "{key}: {}", answer.verdict());
        assert_eq!(stand.upstream.count(), before + 1, "{key}");
    }
}

/// Same bug, with a client that disconnects right after sending its request: it runs once or not at all.
#[tokio::test]
async fn a_client_that_hangs_up_at_any_moment_gets_one_effect_when_it_comes_back() {
    let stand = Stand::new("", |arrived| slow_echo(arrived, 3)).await;
    for moment in 0..60_u64 {
        let key = format!("moment-{moment}");
        let mut wire = stand.open().await;
        wire.send(&post("/orders", &key, b"{}")).await.unwrap();
        sleep(Duration::from_micros(moment * 150)).await;
        wire.reset();
        let answer = stand.post(&key, "{}").await;
        assert_eq!(answer.status(), 201, "{key}: {}", answer.text());
    }
    let arrived = stand.upstream.arrived();
    let mut keys: Vec<_> = arrived.iter().map(|it| it.request.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), arrived.len()), (60, 60));
}

/// Same bug before execution: an incomplete request does not claim its key.
#[tokio::test]
async fn a_client_that_breaks_off_in_its_body_has_run_nothing() {
    let stand = Stand::new("", echo).await;
    let whole = post("/orders", "half", b"{\"amount\": 20}");
    let mut wire = stand.open().await;
    wire.send(&whole[..whole.len() - 5]).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    wire.reset();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(stand.upstream.count(), 0);
    let answer = stand.ask(&whole).await;
    assert_eq!((answer.status(), answer.is_replay()), (201, false));
}

/// Bug: an upstream error leaves the claim behind.
#[tokio::test]
async fn an_upstream_that_cannot_be_reached_leaves_the_key_free() {
    let port = refrain_testkit::servers::free_port().unwrap();
    let address = ([127, 0, 0, 1], port).into();
    let setup = Setup::new(address, "");
    let proxy = setup.start();
    let request = post("/orders", "early", b"{}");
    for _ in 0..3 {
        let answer = ask(proxy.address, &request).await;
        assert_eq!(answer.verdict(), "502 upstream-unreachable");
    }
    let listener = TcpListener::bind(address).await.unwrap();
    let upstream = Upstream::serve(listener, |arrived| {
        let acts = echo(&arrived);
        async move { acts }
    });
    let answer = ask(proxy.address, &request).await;
    assert_eq!((answer.status(), answer.is_replay()), (201, false));
    assert_eq!(upstream.count(), 1);
}

/// Same bug, where the request was sent: no duplicate waits for a claim without a holder.
#[tokio::test]
async fn an_upstream_that_breaks_off_leaves_doubt_at_once_and_no_claim() {
    let cut = b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\nhalf".to_vec();
    let chunk = b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n".to_vec();
    let nonsense = b"what is that?\r\n\r\n".to_vec();
    let cases = [vec![], cut, chunk, nonsense];
    let said = cases.clone();
    let stand = Stand::new("[policy]\nwait = \"20s\"\n", move |arrived| {
        vec![Act::Say(said[arrived.number - 1].clone()), Act::Close]
    })
    .await;
    for (at, said) in cases.iter().enumerate() {
        let said = String::from_utf8_lossy(said);
        let key = format!("cut-{at}");
        let first = stand.post(&key, "{}").await;
        assert_eq!(first.verdict(), "502 outcome-unknown", "{said}");
        let asked = tokio::time::Instant::now();
        let second = stand.post(&key, "{}").await;
        assert_eq!(second.verdict(), "409 outcome-unknown", "{said}");
        assert!(asked.elapsed() < Duration::from_secs(20), "{said}");
        assert_eq!(stand.upstream.count(), at + 1, "{said}");
    }
}

/// Same bug, with a client that is still connected when the proxy is stopped: it gets its response.
#[tokio::test]
async fn a_proxy_that_is_told_to_stop_ends_what_it_began() {
    let mut stand = Stand::new("", |arrived| slow_echo(arrived, 500)).await;
    let mut wire: Wire = stand.open().await;
    wire.send(&post("/orders", "drain", b"{}")).await.unwrap();
    stand.upstream.reached(1).await;
    rustix::process::kill_process(stand.proxy.pid(), rustix::process::Signal::TERM).unwrap();
    let first = wire.response().await.unwrap();
    assert_eq!(first.status(), 201);
    assert!(stand.proxy.wait().success());
    stand.proxy = stand.setup.start();
    assert_eq!(stand.post("drain", "{}").await.body, first.body);
    assert_eq!(stand.upstream.count(), 1);
}
