//! A proxy that is killed at a random moment must not lose or repeat an effect: the service's ledger has to balance.
//!
//! The service executes first and then fails: it loses responses, truncates them, is slow or busy.
//! Clients retry each key until its outcome is final. Only the service writes to the ledger.
//! `REFRAIN_KILLS` sets the number of kills, over all proxies; the seed is printed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{env, sync::Arc, time::Duration};

use refrain_testkit::{disk::Dice, servers::free_port};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

#[path = "kills_support/load.rs"]
mod load;
#[path = "kills_support/proxy.rs"]
mod proxy;
#[path = "kills_support/upstream.rs"]
mod upstream;
#[path = "kills_support/wire.rs"]
mod wire;
#[path = "kills_support/world.rs"]
mod world;

use load::{SLOWEST, ask_everybody_again, start_clients, start_service};
use proxy::{Proxy, Setup};
use world::{Ends, World, check_at_the_end, check_so_far};

/// Number of kills, over all proxies.
const KILLS: u64 = 320;
/// Proxies that are killed in parallel, each with its own store, service and clients:
/// most of the time of a kill is waiting, for the moment and for the start.
const PROXIES: u64 = 4;
/// Minimum number of keys that succeed.
const SUCCEEDED_MIN: usize = 400;
/// Minimum number of unknown outcomes, and of replays.
const RARE_MIN: usize = 40;

async fn start(setup: &Arc<Setup>) -> Proxy {
    let setup = setup.clone();
    spawn_blocking(move || setup.start()).await.unwrap()
}

/// Kills the proxy at a random moment, checks, and restarts it; sometimes it is killed while it starts.
async fn kill_and_start(
    setup: &Arc<Setup>,
    mut proxy: Proxy,
    world: &Arc<World>,
    dice: &mut Dice,
) -> Proxy {
    sleep(Duration::from_millis(20 + dice.below(200))).await;
    proxy.kill();
    world.begin_life();
    let checked = world.clone();
    spawn_blocking(move || check_so_far(&checked))
        .await
        .unwrap();
    if dice.happens(15) {
        let (setup, after) = (setup.clone(), Duration::from_millis(dice.below(40)));
        let killing = spawn_blocking(move || setup.start_and_kill(after));
        killing.await.unwrap();
        world.begin_life();
    }
    start(setup).await
}

/// One proxy with its service and clients, killed `kills` times; returns the totals.
async fn campaign(seed: u64, kills: u64) -> Ends {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let setup = Arc::new(Setup::on(
        &listen,
        listener.local_addr().unwrap(),
        "[policy]\nwait = \"2s\"\n",
    ));
    let world = World::of_one_proxy(&setup.file(""), seed);
    let upstream = start_service(&world, listener);
    let mut proxy = start(&setup).await;
    let mut dice = Dice::new(seed);
    let clients = start_clients(&world, &[proxy.address], &mut dice);
    let mut number = 0;
    // How much happens between two kills depends on the machine: a slow one gets more kills, with progress between.
    while number < kills || number < 20 * kills && !is_enough(&world) {
        if number >= kills {
            world.progress().await;
        }
        proxy = kill_and_start(&setup, proxy, &world, &mut dice).await;
        number += 1;
    }
    world.end();
    clients.join_all().await;
    sleep(SLOWEST).await;
    let ends = check_at_the_end(&world, &upstream);
    proxy.kill();
    let count = upstream.count();
    // A new process knows only what is on disk.
    let proxy = start(&setup).await;
    ask_everybody_again(&world, proxy.address).await;
    assert_eq!(upstream.count(), count, "a request ran again at the end");
    assert!(!setup.log().contains("panicked"), "{}", setup.log());
    ends
}

/// Whether enough has happened for a campaign to prove something.
fn is_enough(world: &World) -> bool {
    let doubted = world.known().values().filter(|it| it.was_doubted).count();
    let proxies = PROXIES as usize;
    world.successes() > SUCCEEDED_MIN / proxies
        && doubted > RARE_MIN / proxies
        && world.replays() as usize > RARE_MIN / proxies
}

#[tokio::test]
async fn a_proxy_that_is_killed_again_and_again_runs_nothing_twice_and_swallows_nothing() {
    let kills: u64 = env::var("REFRAIN_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let since = tokio::time::Instant::now();
    let mut campaigns = JoinSet::new();
    for number in 0..PROXIES {
        campaigns.spawn(campaign(seed + number, kills.div_ceil(PROXIES)));
    }
    let mut all = Ends::default();
    for ends in campaigns.join_all().await {
        all += &ends;
    }
    let took = since.elapsed();
    println!("at least {kills} kills of {PROXIES} proxies side by side in {took:.0?}: {all}");
    assert_eq!(all.duplicates, 0, "{all}");
    let is_enough =
        all.succeeded > SUCCEEDED_MIN && all.in_doubt > RARE_MIN && all.replays > RARE_MIN as u64;
    assert!(is_enough, "too little: {all}");
}
