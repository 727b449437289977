//! Crashed or paused nodes on a shared store must neither execute a request twice nor disagree about its outcome.
//!
//! Three proxies on one store, in front of a service that executes first and then loses or delays its response.
//! Proxies are killed with SIGKILL and paused for longer than their lease; in some campaigns the store's server is
//! killed, too. Clients send each key to any of the proxies until its outcome is final.
//! Only the service writes to the ledger. At the end every node returns the same bytes for every key.
//! `REFRAIN_NODE_FAULTS` sets the number of faults in a campaign; the seed is printed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{env, sync::Arc, time::Duration};

use refrain::Guarantee;
use refrain_testkit::disk::Dice;
use tokio::{
    task::{block_in_place, spawn_blocking},
    time::{sleep, timeout},
};

#[path = "nodes_support/fleet.rs"]
mod fleet;
#[path = "kills_support/load.rs"]
mod load;
#[path = "kills_support/proxy.rs"]
mod proxy;
#[path = "nodes_support/server.rs"]
mod server;
#[path = "kills_support/upstream.rs"]
mod upstream;
#[path = "kills_support/wire.rs"]
mod wire;
#[path = "kills_support/world.rs"]
mod world;

use fleet::Fleet;
use load::{SLOWEST, ask_everybody_again, start_clients, start_service};
use server::{Kind, Server};
use upstream::Upstream;
use world::{Ends, World, check_at_the_end, check_so_far, takeovers};

const NODES: u64 = 3;
const FAULTS: u64 = 9;
/// A campaign with fewer successes proves too little.
const SUCCESSES_MIN: usize = 40;
/// The same for unknown outcomes under at-most-once, and for takeovers under at-least-once.
const TROUBLES_MIN: usize = 5;
/// Longer than a busy machine stalls a node that has no fault.
const LEASE: Duration = Duration::from_secs(3);
const PAST_LEASE: Duration = Duration::from_millis(3_500);
/// Longer than it takes until every client knows the outcome of its last key.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A proxy is killed and restarted.
    Kill,
    /// A proxy is paused past its lease and continued, while another one is killed.
    Pause,
    /// The store's server is killed and restarted.
    KillServer,
}

/// One campaign.
struct Campaign {
    world: Arc<World>,
    fleet: Fleet,
    server: Server,
    dice: Dice,
}

impl Campaign {
    async fn suffer(&mut self, fault: Fault) {
        sleep(Duration::from_millis(50 + self.dice.below(200))).await;
        let node = self.dice.below(NODES) as usize;
        match fault {
            Fault::Kill => self.kill(node),
            Fault::Pause => {
                self.world.begin_life();
                self.fleet.proxy(node).pause();
                self.world.begin_life();
                let others = 1 + self.dice.below(NODES - 1) as usize;
                sleep(Duration::from_millis(self.dice.below(300))).await;
                self.kill((node + others) % self.fleet.len());
                sleep(PAST_LEASE).await;
                self.fleet.proxy(node).resume();
            }
            Fault::KillServer => {
                block_in_place(|| self.server.kill());
                self.world.begin_life();
                sleep(Duration::from_millis(self.dice.below(300))).await;
                block_in_place(|| self.server.restart());
            }
        }
        let checked = self.world.clone();
        spawn_blocking(move || check_so_far(&checked))
            .await
            .unwrap();
    }

    fn kill(&mut self, node: usize) {
        // Before and after the kill: a request that it cuts off and the doubt that follows are in different lives, even
        // if this thread is stalled in between.
        self.world.begin_life();
        self.fleet.kill(node);
        self.world.begin_life();
        block_in_place(|| self.fleet.restart(node));
    }

    /// Restarts every node, so that it knows only the store, and checks that responses are the same as before.
    async fn ask_every_node(&mut self) {
        for node in 0..self.fleet.len() {
            self.kill(node);
            ask_everybody_again(&self.world, self.fleet.address(node)).await;
        }
    }
}

/// Runs a campaign with these faults in turn, and checks the invariants of every campaign.
async fn check(kind: Kind, guarantee: Guarantee, faults: &[Fault]) -> Ends {
    let count = env::var("REFRAIN_NODE_FAULTS").map_or(FAULTS, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let server = spawn_blocking(move || Server::start(kind)).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let world = World::of_many(folder.path(), seed, guarantee);
    let upstream = start_service(&world, listener);
    let policy = policy(guarantee);
    let fleet = block_in_place(|| Fleet::start(NODES, &server, address, &policy));
    let mut campaign = Campaign {
        world: world.clone(),
        fleet,
        server,
        dice: Dice::new(seed),
    };
    let addresses = campaign.fleet.addresses();
    let clients = start_clients(&world, &addresses, &mut campaign.dice);
    let mut number = 0;
    // How much happens between two faults depends on the machine: a slow one gets more faults, with progress between.
    while number < count || number < 20 * count && !is_enough(&world, &upstream) {
        if number >= count {
            world.progress().await;
        }
        campaign
            .suffer(faults[number as usize % faults.len()])
            .await;
        number += 1;
    }
    world.end();
    let told = timeout(PATIENCE, clients.join_all()).await;
    assert!(told.is_ok(), "some clients never got a final outcome");
    sleep(SLOWEST).await;
    campaign.ask_every_node().await;
    let ends = check_at_the_end(&world, &upstream);
    println!("{kind:?}, {guarantee:?}, {faults:?}: {ends}");
    let log = campaign.fleet.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(
        ends.succeeded > SUCCESSES_MIN && ends.replays > 100,
        "too little: {ends}"
    );
    ends
}

/// Whether enough has happened for the campaign to prove something.
fn is_enough(world: &World, upstream: &Upstream) -> bool {
    let succeeded = world.successes();
    let known = world.known();
    let troubles = match world.guarantee {
        Guarantee::AtLeastOnce => takeovers(upstream) as usize,
        _ => known.values().filter(|it| it.was_doubted).count(),
    };
    succeeded > SUCCESSES_MIN && troubles > TROUBLES_MIN
}

fn policy(guarantee: Guarantee) -> String {
    let name = match guarantee {
        Guarantee::AtLeastOnce => "at-least-once",
        _ => "at-most-once",
    };
    format!(
        "[policy]\nwait = \"2s\"\nlease = \"{}s\"\nguarantee = \"{name}\"\nattempts_max = 1000\n",
        LEASE.as_secs()
    )
}

/// Checks the result of at-most-once: unknown outcomes, and no duplicate.
fn check_at_most_once(ends: &Ends) {
    assert_eq!((ends.duplicates, ends.takeovers), (0, 0), "{ends}");
    assert!(ends.in_doubt > TROUBLES_MIN, "too little: {ends}");
}

/// Checks the result of at-least-once: no unknown outcome, and only duplicates that were announced.
fn check_at_least_once(ends: &Ends) {
    assert_eq!(ends.succeeded, ends.keys, "{ends}");
    assert!(ends.duplicates <= ends.takeovers as usize, "{ends}");
    assert!(ends.takeovers as usize > TROUBLES_MIN, "too little: {ends}");
}

const NODES_FAIL: [Fault; 3] = [Fault::Kill, Fault::Pause, Fault::Kill];
const ALL_FAIL: [Fault; 3] = [Fault::KillServer, Fault::Kill, Fault::KillServer];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_on_postgres_that_die_and_stand_still_run_nothing_twice() {
    check_at_most_once(&check(Kind::Postgres, Guarantee::AtMostOnce, &NODES_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_on_postgres_that_may_run_twice_say_so_and_end_everything() {
    check_at_least_once(&check(Kind::Postgres, Guarantee::AtLeastOnce, &NODES_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_killed_in_mid_load_loses_nothing_that_was_told() {
    check_at_most_once(&check(Kind::Postgres, Guarantee::AtMostOnce, &ALL_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_on_redis_that_die_and_stand_still_run_nothing_twice() {
    check_at_most_once(&check(Kind::Redis, Guarantee::AtMostOnce, &NODES_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_on_redis_that_may_run_twice_say_so_and_end_everything() {
    check_at_least_once(&check(Kind::Redis, Guarantee::AtLeastOnce, &NODES_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_in_mid_load_loses_nothing_that_was_told() {
    check_at_most_once(&check(Kind::Redis, Guarantee::AtMostOnce, &ALL_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_a_redis_in_front_that_die_and_stand_still_run_nothing_twice() {
    check_at_most_once(&check(Kind::Tiered, Guarantee::AtMostOnce, &NODES_FAIL).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_killed_together_with_the_redis_in_front_loses_nothing_that_was_told() {
    check_at_most_once(&check(Kind::Tiered, Guarantee::AtMostOnce, &ALL_FAIL).await);
}
