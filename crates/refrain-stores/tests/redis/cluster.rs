//! A cluster of three nodes: records are spread over slots, slots move while in use, and the guarantees hold.

use refrain::{ErrorKind, RecordId, Store, Verdict, store::Query};
use refrain_stores::redis::Redis;
use refrain_testkit::{
    servers::{PrivateRedis, free_port},
    wait,
};

use crate::{
    lost::check_refused,
    support::{ask, claim, complete, granted, id, replayed, verdict, verdicts, words},
};

const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

struct Three {
    nodes: Vec<PrivateRedis>,
}

impl Three {
    fn start() -> Self {
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for (from, to) in SLOTS {
            let bus = free_port().unwrap();
            let settings = [
                ("cluster-enabled", "yes"),
                ("cluster-port", &bus.to_string()),
            ];
            let node = PrivateRedis::start_with(&settings).unwrap();
            let _: redis::Value = ask(
                &node.url(),
                &words(&format!("CLUSTER ADDSLOTSRANGE {from} {to}")),
            );
            nodes.push(node);
            buses.push(bus);
        }
        for (node, bus) in nodes.iter().zip(&buses).skip(1) {
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port());
            let _: redis::Value = ask(&nodes[0].url(), &words(&meet));
        }
        let three = Self { nodes };
        three.wait(|info| info.contains("cluster_state:ok") && info.contains("known_nodes:3"));
        three
    }

    fn wait(&self, is_ready: impl Fn(&str) -> bool) {
        for node in &self.nodes {
            wait::until_blocking("the cluster is ready", || {
                let info: String = ask(&node.url(), &words("CLUSTER INFO"));
                is_ready(&info)
            });
        }
    }

    fn address(&self) -> String {
        let hosts: Vec<_> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Deletes all keys of all nodes.
    fn flush(&self) {
        for node in &self.nodes {
            node.flush().unwrap();
        }
    }

    fn name(&self, node: usize) -> String {
        ask(&self.nodes[node].url(), &words("CLUSTER MYID"))
    }

    /// Slot of a record, and the node that holds it by the ranges above.
    fn slot(&self, id: RecordId) -> (u16, usize) {
        let slot: u16 = ask(
            &self.nodes[0].url(),
            &words(&format!("CLUSTER KEYSLOT {{{id}}}")),
        );
        let at = SLOTS
            .iter()
            .position(|(from, to)| (*from..=*to).contains(&slot));
        (slot, at.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_cluster_are_kept_listed_and_counted() {
    let three = Three::start();
    let store = Redis::open(&three.address()).await.unwrap();
    assert!(!store.guarantees().lossy_failover, "{:?}", store.losses());
    for number in 0..60 {
        complete(&store, number, &format!("done {number}")).await;
    }
    let again = Redis::open(&three.address()).await.unwrap();
    for number in 0..60 {
        assert_eq!(replayed(&again, number).await, format!("done {number}"));
    }
    let claims: Vec<_> = (100..160).map(claim).collect();
    for verdict in verdicts(&store, &claims).await {
        assert!(matches!(verdict.unwrap(), Verdict::Granted(_)));
    }
    let census = store.census().await.unwrap();
    assert_eq!((census.completed, census.in_flight), (60, 60));
    let mut listed = Vec::new();
    let mut query = Query {
        limit: 25,
        ..Query::default()
    };
    loop {
        let page = store.list(&query).await.unwrap();
        listed.extend(page.readings.iter().map(|reading| reading.id));
        match page.next {
            None => break,
            next => query.after = next,
        }
    }
    let want: Vec<_> = (0..60).chain(100..160).map(id).collect();
    assert_eq!(listed, want);
}

/// A moving slot: first it is migrating, and both nodes may have its keys; then it is on the new node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_found_while_its_slot_moves_and_after() {
    let three = Three::start();
    let store = Redis::open(&three.address()).await.unwrap();
    complete(&store, 1, "before").await;
    let (slot, from) = three.slot(id(1));
    let to = (from + 1) % 3;
    let set = |node: usize, what: String| {
        let command = format!("CLUSTER SETSLOT {slot} {what}");
        let _: redis::Value = ask(&three.nodes[node].url(), &words(&command));
    };
    set(to, format!("IMPORTING {}", three.name(from)));
    set(from, format!("MIGRATING {}", three.name(to)));
    // The record is still on the old node; new keys of the slot go to the new one.
    assert_eq!(replayed(&store, 1).await, "before");
    let keys: Vec<String> = ask(
        &three.nodes[from].url(),
        &words(&format!("CLUSTER GETKEYSINSLOT {slot} 100")),
    );
    let migrate = format!(
        "MIGRATE 127.0.0.1 {} {} 0 5000 KEYS {} {}",
        three.nodes[to].port(),
        "\"\"",
        keys[0],
        keys.get(1).map_or("", |key| key)
    );
    let _: redis::Value = ask(&three.nodes[from].url(), &words_with_empty(&migrate));
    assert_eq!(replayed(&store, 1).await, "before");
    for node in [to, from, (from + 2) % 3] {
        set(node, format!("NODE {}", three.name(to)));
    }
    assert_eq!(replayed(&store, 1).await, "before");
    assert_eq!(store.census().await.unwrap().completed, 1);
}

/// As [`words`], with `""` for an empty argument.
fn words_with_empty(line: &str) -> redis::Cmd {
    let mut words = line.split_whitespace();
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(if word == "\"\"" { "" } else { word });
    }
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_gone_costs_its_own_records_and_no_others() {
    let mut three = Three::start();
    // Keeps the other nodes available.
    for node in &three.nodes {
        let _: redis::Value = ask(
            &node.url(),
            &words("CONFIG SET cluster-require-full-coverage no"),
        );
    }
    let store = Redis::open(&three.address()).await.unwrap();
    let at = |number| three.slot(id(number)).1;
    let gone: Vec<_> = (0..40).filter(|number| at(*number) == 1).collect();
    let left: Vec<_> = (0..40).filter(|number| at(*number) != 1).collect();
    for number in 0..40 {
        complete(&store, number, "done").await;
    }
    three.nodes[1].kill().unwrap();
    for number in &left {
        assert_eq!(replayed(&store, *number).await, "done");
    }
    // Reported while the node is down.
    let error = verdict(&store, &claim(gone[0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    three.nodes[1].restart().unwrap();
    wait::until("the node is back", async || {
        verdict(&store, &claim(gone[0])).await.is_ok()
    })
    .await;
    for number in &gone {
        assert_eq!(replayed(&store, *number).await, "done");
    }
    granted(&store, &claim(1_000)).await;
}

/// Reads what `/readyz` reads: a record that is always absent.
async fn check_not_ready(store: &Redis, what: &str) {
    let error = store.read(RecordId::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_cluster_is_not_ready_and_refuses_a_node_that_expects_records() {
    let three = Three::start();
    let expecting = format!("{}/?expect_records=true", three.address());
    let running = Redis::open(&three.address()).await.unwrap();
    complete(&running, 1, "done").await;
    assert_eq!(running.read(RecordId::default()).await.unwrap(), None);
    drop(Redis::open(&expecting).await.unwrap());
    three.flush();
    check_refused(&expecting, "expect_records=true").await;
    check_not_ready(&running, "has lost").await;
    check_not_ready(&running, "has lost").await;
    // The note of the running node.
    check_refused(&three.address(), "detected the loss").await;
    let accepting = format!("{}/?accept_lost_records=true", three.address());
    let reopened = Redis::open(&accepting).await.unwrap();
    complete(&reopened, 1, "again").await;
    check_not_ready(&running, "a different store than before").await;
}

/// The limits that docs/redis.md states: neither a claim nor a node that starts notices the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_and_new_nodes_take_a_flushed_cluster_for_a_new_one() {
    let three = Three::start();
    let running = Redis::open(&three.address()).await.unwrap();
    complete(&running, 1, "done").await;
    three.flush();
    granted(&running, &claim(1)).await;
    // The claim left a record without a mark, which a node that starts finds.
    check_refused(
        &three.address(),
        &format!("record {} is still there", id(1)),
    )
    .await;
    three.flush();
    drop(Redis::open(&three.address()).await.unwrap());
    check_not_ready(&running, "a different store than before").await;
}
