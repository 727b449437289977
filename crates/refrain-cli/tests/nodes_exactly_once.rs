//! Exactly-once must hold when proxies die: a payment that is committed twice, or never, is a bug.
//!
//! Three proxies on one PostgreSQL, alone or with a Redis in front, and a service that commits payment and receipt in
//! one transaction. Proxies are killed with SIGKILL and paused for longer than their lease; the service loses
//! responses before and after its commit. Clients send each key to any of the proxies until it succeeds.
//! In the end each key has one payment, and every restarted node returns the same bytes for it.
//! `REFRAIN_NODE_FAULTS` sets the number of faults; the seed is printed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::{BTreeSet, HashMap},
    env,
    net::SocketAddr,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain_testkit::{disk::Dice, wait};
use tokio::{
    task::{JoinSet, block_in_place},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::{Client, NoTls};

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

use fleet::Fleet;
use server::{Kind, Server};
use upstream::{Act, Arrived, Upstream};
use wire::{Wire, post, response};

const NODES: u64 = 3;
const FAULTS: u64 = 6;
/// Minimum number of keys that are paid in each test.
const KEYS_MIN: usize = 25;
const CLIENTS: u64 = 8;
const PAST_LEASE: Duration = Duration::from_millis(1_300);

/// State shared by the clients and the test.
#[derive(Default)]
struct World {
    keys: AtomicU64,
    is_over: AtomicBool,
    /// Response bodies that clients received, by key.
    told: Mutex<HashMap<String, Vec<u8>>>,
    replays: AtomicU64,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Creates the tables of the service; that of receipts with the SQL that operators use.
async fn make_tables(url: &str) {
    let made = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .args(["migrate", "--receipts", "--store", url])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let table = "CREATE TABLE payments (key text NOT NULL)";
    connect(url).await.batch_execute(table).await.unwrap();
}

/// Commits payment and receipt in one transaction; loses its response before or after the commit, or not at all.
async fn pay(url: Arc<str>, seed: u64, arrived: Arrived) -> Vec<Act> {
    let (request, number) = (&arrived.request, arrived.number);
    let mut dice = Dice::new(seed ^ ((number as u64) << 16));
    let trouble = dice.below(100);
    if trouble < 10 {
        return vec![Act::Close];
    }
    let body = format!("{{\"payment\":{number},\"key\":\"{}\"}}", request.key());
    let pause_max = if dice.happens(10) { 200 } else { 10 };
    let mut client = connect(&url).await;
    let transaction = client.transaction().await.unwrap();
    let insert = "INSERT INTO payments VALUES ($1)";
    transaction
        .execute(insert, &[&request.key()])
        .await
        .unwrap();
    sleep(Duration::from_millis(dice.below(pause_max))).await;
    let (record, fence) = (
        request.header("refrain-record"),
        request.header("refrain-fence"),
    );
    let insert =
        "INSERT INTO refrain_receipts (record, fence, status, body) VALUES ($1, $2, 201, $3)";
    let noted = transaction
        .execute(insert, &[&record.unwrap(), &fence.unwrap(), &body])
        .await;
    if noted.is_err() {
        // Another attempt has paid: this transaction is rolled back.
        return vec![Act::Say(response(500, "", "paid before"))];
    }
    transaction.commit().await.unwrap();
    let pause = Act::Sleep(Duration::from_millis(dice.below(pause_max)));
    match trouble {
        10..25 => vec![pause, Act::Close],
        _ => {
            let kind = "content-type: application/json\r\n";
            vec![pause, Act::Say(response(201, kind, body))]
        }
    }
}

/// Sends the key to any node until it succeeds.
async fn persist(world: &World, proxies: &[SocketAddr], key: &str, dice: &mut Dice) {
    let request = post("/v1/payments", key, b"{\"amount\": 20}");
    let since = Instant::now();
    loop {
        let node = proxies[dice.below(proxies.len() as u64) as usize];
        let asked = async { Wire::open(node).await.ok()?.ask(&request).await.ok() };
        let answer = timeout(Duration::from_secs(5), asked).await;
        let Ok(Some(answer)) = answer else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        if answer.status() == 201 {
            world.replays.fetch_add(answer.is_replay().into(), Relaxed);
            let mut told = world.told.lock().unwrap();
            let first = told.entry(key.to_owned()).or_insert(answer.body.clone());
            assert_eq!(
                *first, answer.body,
                "{key}: two different responses with one key"
            );
            return;
        }
        assert!(
            since.elapsed() < wait::PATIENCE,
            "{key} never ends: {} {}",
            answer.verdict(),
            answer.text()
        );
        sleep(Duration::from_millis(20 + dice.below(30))).await;
    }
}

async fn client(world: Arc<World>, proxies: Vec<SocketAddr>, seed: u64) {
    let mut dice = Dice::new(seed);
    while !world.is_over.load(Relaxed) {
        let key = format!("payment-{}", world.keys.fetch_add(1, Relaxed));
        let mut others = Dice::new(dice.throw());
        let twice = dice.happens(33);
        let other = async {
            if twice {
                persist(&world, &proxies, &key, &mut others).await;
            }
        };
        tokio::join!(persist(&world, &proxies, &key, &mut dice), other);
    }
}

/// Kills a node, or pauses one past its lease while another one is killed.
async fn suffer(fleet: &mut Fleet, number: u64, dice: &mut Dice) {
    sleep(Duration::from_millis(50 + dice.below(200))).await;
    let node = dice.below(NODES) as usize;
    let other = (node + 1 + dice.below(NODES - 1) as usize) % fleet.len();
    if number % 3 != 1 {
        fleet.kill(node);
        return block_in_place(|| fleet.restart(node));
    }
    fleet.proxy(node).pause();
    sleep(Duration::from_millis(dice.below(300))).await;
    fleet.kill(other);
    block_in_place(|| fleet.restart(other));
    sleep(PAST_LEASE).await;
    fleet.proxy(node).resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_receipts_that_die_and_stand_still_pay_every_key_once() {
    run(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_receipts_and_a_redis_in_front_pay_every_key_once() {
    run(Kind::Tiered).await;
}

async fn run(kind: Kind) {
    let faults: u64 = env::var("REFRAIN_NODE_FAULTS").map_or(FAULTS, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("{kind:?}, seed {seed}");
    let server = block_in_place(|| Server::start(kind));
    let url: Arc<str> = server.postgres_url().unwrap().into();
    make_tables(&url).await;
    let paid_at = url.clone();
    let upstream = Upstream::start_with(move |arrived| pay(paid_at.clone(), seed, arrived)).await;
    let policy = format!(
        "[policy]\nwait = \"2s\"\nlease = \"1s\"\nattempts_max = 1000\n\
         [[operation]]\nmatch = \"POST /v1/payments\"\nguarantee = \"exactly-once\"\nreceipts = \"{url}\"\ntimeout = \"2s\"\n"
    );
    let mut fleet = block_in_place(|| Fleet::start(NODES, &server, upstream.address, &policy));
    let mut dice = Dice::new(seed);
    let world = Arc::<World>::default();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(world.clone(), fleet.addresses(), dice.throw()));
    }
    for number in 0..faults {
        suffer(&mut fleet, number, &mut dice).await;
    }
    let told = || world.told.lock().unwrap().len();
    wait::until_counted("enough is paid", told, KEYS_MIN).await;
    world.is_over.store(true, Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    check(&world, &url, &mut fleet, &mut dice).await;
    let log = fleet.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// Checks that each key has one payment, and that every restarted node returns the same responses as before.
async fn check(world: &World, url: &str, fleet: &mut Fleet, dice: &mut Dice) {
    let told = world.told.lock().unwrap().clone();
    for node in 0..fleet.len() {
        fleet.kill(node);
        block_in_place(|| fleet.restart(node));
        let address = [fleet.address(node)];
        for key in told.keys() {
            persist(world, &address, key, dice).await;
        }
    }
    let rows = connect(url).await;
    let rows = rows.query("SELECT key, count(*) FROM payments GROUP BY key", &[]);
    let paid: HashMap<String, i64> = rows
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    println!(
        "{} keys: {} paid, {} told; {} replays",
        world.keys.load(Relaxed),
        paid.len(),
        told.len(),
        world.replays.load(Relaxed),
    );
    let more_than_once: Vec<_> = paid.iter().filter(|(_, times)| **times != 1).collect();
    assert_eq!(more_than_once, [], "paid more than once");
    let keys = |of: Vec<&String>| of.into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(
        keys(paid.keys().collect()),
        keys(told.keys().collect()),
        "the ledger and the clients' responses differ"
    );
}
