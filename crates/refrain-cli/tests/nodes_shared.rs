//! Nodes on one store depend on each other: a waiting duplicate must be woken by another node, a wrong clock must not
//! end a lease, and without the store no request may run or lose its outcome.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    task::{JoinHandle, block_in_place},
    time::{Instant, sleep},
};

#[path = "nodes_support/clock.rs"]
mod clock;
#[path = "nodes_support/fleet.rs"]
mod fleet;
#[path = "kills_support/proxy.rs"]
mod proxy;
#[path = "nodes_support/server.rs"]
mod server;
#[path = "kills_support/upstream.rs"]
mod upstream;
#[path = "kills_support/wire.rs"]
mod wire;

use clock::{ahead, with_clock_off};
use fleet::{Fleet, lasting_address};
use proxy::Setup;
use server::{Kind, Server};
use upstream::{Act, Arrived, Upstream, echo};
use wire::{Message, Wire, ask, post};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: i64 = 60 * 60;

/// Two nodes, their store and their upstream.
struct Stage {
    server: Server,
    fleet: Fleet,
    upstream: Upstream,
}

impl Stage {
    /// Starts the nodes; the clock of the second one is wrong by `off` seconds.
    fn new(kind: Kind, upstream: Upstream, policy: &str, off: i64) -> Self {
        block_in_place(|| {
            let server = Server::start(kind);
            let mut fleet = Fleet::start(1, &server, upstream.address, policy);
            let listen = lasting_address();
            let other = Setup::stored(&listen, &server.url(), upstream.address, policy);
            fleet.join(match off {
                0 => other,
                _ => with_clock_off(other, off),
            });
            Self {
                server,
                fleet,
                upstream,
            }
        })
    }

    async fn ask(&self, node: usize, key: &str) -> Message {
        ask(self.fleet.address(node), &request(key)).await
    }

    /// Sends a request; returns the response and its time, or `None` if the node died.
    fn start_asking(&self, node: usize, key: &str) -> JoinHandle<Option<(Message, Instant)>> {
        let (address, request) = (self.fleet.address(node), request(key));
        tokio::spawn(async move {
            let mut wire = Wire::open(address).await.ok()?;
            let answer = wire.ask(&request).await.ok()?;
            Some((answer, tokio::time::Instant::now()))
        })
    }

    /// Retries until the outcome is final.
    async fn ask_until_told(&self, node: usize, key: &str) -> Message {
        let since = tokio::time::Instant::now();
        loop {
            let answer = self.ask(node, key).await;
            if answer.status() == 201 {
                return answer;
            }
            assert!(since.elapsed() < PATIENCE, "{key}: {}", answer.text());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn request(key: &str) -> Vec<u8> {
    post("/v1/payments", key, b"{\"amount\": 20}")
}

async fn answer_of(asked: JoinHandle<Option<(Message, Instant)>>) -> (Message, Instant) {
    asked.await.unwrap().expect("an answer")
}

/// Delays the response by the milliseconds in the key: `slow-700-1` takes 700 ms at the first attempt.
fn slow(arrived: &Arrived) -> Vec<Act> {
    if arrived.request.header("refrain-attempt") != Some("1") {
        return echo(arrived);
    }
    let takes = arrived.request.key().split('-').nth(1);
    let takes = Duration::from_millis(takes.unwrap().parse().unwrap());
    [vec![Act::Sleep(takes)], echo(arrived)].concat()
}

/// Checks that a duplicate on the other node is woken, although the first request takes longer than a polling period.
async fn check_woken(kind: Kind) {
    let upstream = Upstream::start(slow).await;
    let stage = Stage::new(kind, upstream, "", 0);
    // The listener starts after the store is opened, and the machine may be busy: failed tries are repeated.
    let mut tries = 0..20;
    let mut told: Vec<Vec<Duration>> = Vec::new();
    while !told.iter().any(|took| is_woken(took)) {
        let try_number = tries.next();
        let try_number = try_number.unwrap_or_else(|| panic!("no duplicate was woken: {told:?}"));
        told.push(times_to_be_told(&stage, try_number).await);
    }
    assert_eq!(stage.upstream.count(), told.iter().flatten().count());
}

/// With polling once a second, only about one duplicate in seven would be this fast.
fn is_woken(took: &[Duration]) -> bool {
    const SOON: Duration = Duration::from_millis(150);
    took.iter().filter(|took| **took < SOON).count() >= 5
}

/// Delays between the response of the first request and that of its duplicate on the other node.
async fn times_to_be_told(stage: &Stage, try_number: u32) -> Vec<Duration> {
    let mut took = Vec::new();
    for millis in [350, 420, 490, 560, 630, 700, 770] {
        let key = format!("slow-{millis}-{try_number}");
        let before = stage.upstream.count();
        let first = stage.start_asking(0, &key);
        stage.upstream.reached(before + 1).await;
        let duplicate = stage.start_asking(1, &key);
        let ((first, answered), (duplicate, told)) =
            (answer_of(first).await, answer_of(duplicate).await);
        assert_eq!((first.status(), first.is_replay()), (201, false));
        assert!(duplicate.is_replay(), "{}", duplicate.text());
        assert_eq!(first.body, duplicate.body);
        took.push(told.saturating_duration_since(answered));
    }
    took
}

/// Checks that nothing is claimed while the store is down, and that outcomes of that time are stored when it is back.
async fn check_outage(kind: Kind) {
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let upstream = Upstream::start(move |arrived| match arrived.request.key() {
        "held" => [vec![Act::Wait(waiting.clone())], echo(arrived)].concat(),
        _ => echo(arrived),
    });
    let mut stage = Stage::new(kind, upstream.await, "[policy]\nlease = \"1s\"\n", 0);
    assert_eq!(stage.ask(0, "before").await.status(), 201);
    let held = stage.start_asking(0, "held");
    stage.upstream.reached(2).await;
    block_in_place(|| stage.server.kill());
    for node in [0, 1, 0, 1] {
        let refused = stage.ask(node, "never-sent").await;
        assert_eq!(refused.verdict(), "503 store-unavailable");
        assert!(refused.header("retry-after").is_some());
    }
    go_on.notify_one();
    let (told, _) = answer_of(held).await;
    assert_eq!(told.verdict(), "503 outcome-unknown");
    // Longer than the lease, so that it expires and the outcome is stored late.
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(
        stage.upstream.count(),
        2,
        "a request was sent without a claim"
    );
    block_in_place(|| stage.server.restart());
    for node in [1, 0] {
        let replay = stage.ask_until_told(node, "held").await;
        assert!(replay.is_replay());
        assert_eq!(replay.text(), "/v1/payments by request 2");
        assert!(stage.ask_until_told(node, "before").await.is_replay());
    }
    assert_eq!(stage.upstream.count(), 2);
    let fresh = stage.ask_until_told(1, "never-sent").await;
    assert!(!fresh.is_replay());
}

/// Checks that with a clock that is an hour wrong, no lease expires too early or too late and outcomes are kept.
async fn check_clocks(kind: Kind, off: i64) {
    let upstream = Upstream::start(slow).await;
    let policy = "[policy]\nguarantee = \"at-least-once\"\nlease = \"12s\"\nwait = \"50s\"\nretention = \"30m\"\nremember = \"1m\"\n";
    let mut stage = Stage::new(kind, upstream, policy, off);
    for (node, other) in [(0, 1), (1, 0)] {
        let key = format!("slow-15000-{node}");
        let before = stage.upstream.count();
        let first = stage.start_asking(node, &key);
        stage.upstream.reached(before + 1).await;
        let duplicate = stage.ask(other, &key).await;
        let (first, _) = answer_of(first).await;
        assert!(duplicate.is_replay() && !first.is_replay());
        assert_eq!(first.body, duplicate.body);
        assert!(stage.ask(node, &key).await.is_replay());
    }
    assert_eq!(stage.upstream.count(), 2, "a node took over too early");
    let (right, wrong) = (stage.ask(0, "slow-0").await, stage.ask(1, "slow-0").await);
    let measured = ahead(&wrong, &right);
    assert!(
        (measured - off).abs() < 60,
        "the clock is not wrong as expected: {measured}"
    );
    for (node, other) in [(0, 1), (1, 0)] {
        check_lapse(&mut stage, node, other).await;
    }
}

/// A node dies with a claim: the other one takes over at the end of the lease, neither earlier nor an hour later.
async fn check_lapse(stage: &mut Stage, node: usize, other: usize) {
    let key = format!("slow-15000-{node}-dies");
    let before = stage.upstream.count();
    let since = tokio::time::Instant::now();
    let lost = stage.start_asking(node, &key);
    stage.upstream.reached(before + 1).await;
    stage.fleet.kill(node);
    let answered = lost.await.unwrap();
    assert!(answered.is_none(), "the node responded before it died");
    let told = stage.ask_until_told(other, &key).await;
    assert!(
        !told.is_replay(),
        "the request completed before the node died"
    );
    let took = since.elapsed();
    assert!(took > Duration::from_secs(12), "too early: {took:?}");
    assert!(took < PATIENCE, "too late: {took:?}");
    let arrived = stage.upstream.arrived();
    let attempts: Vec<_> = arrived[before..]
        .iter()
        .map(|it| it.request.header("refrain-attempt"))
        .collect();
    assert_eq!(attempts[1..], [Some("2")], "{attempts:?}");
    block_in_place(|| stage.fleet.restart(node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_on_another_node_is_woken_on_postgres() {
    check_woken(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_nothing_runs_and_nothing_that_ran_is_forgotten() {
    check_outage(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_an_hour_apart_decide_nothing_on_postgres() {
    let kind = Kind::Postgres;
    tokio::join!(check_clocks(kind, HOUR), check_clocks(kind, -HOUR));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_on_another_node_is_woken_on_redis() {
    check_woken(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_nothing_runs_and_nothing_that_ran_is_forgotten() {
    check_outage(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_an_hour_apart_decide_nothing_on_redis() {
    let kind = Kind::Redis;
    tokio::join!(check_clocks(kind, HOUR), check_clocks(kind, -HOUR));
}
