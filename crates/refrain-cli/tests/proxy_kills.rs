//! The proxy is killed with -9 at any moment, again and again, and the ledger of what took effect still balances.
//!
//! The service behind it takes effect first and has its troubles afterwards: it loses answers, cuts them short, is slow or busy.
//! Clients send each key until they are told how it ended. Nothing is told to the ledger but by the service itself.
//! `REFRAIN_KILLS` says how often the proxy is killed; the seed is printed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::HashMap,
    env,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use refrain_testkit::disk::Dice;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

#[path = "kills_support/proxy.rs"]
mod proxy;
#[path = "kills_support/upstream.rs"]
mod upstream;
#[path = "kills_support/wire.rs"]
mod wire;
#[path = "kills_support/world.rs"]
mod world;

use proxy::{Proxy, Setup, lasting_port};
use upstream::{Act, Arrived, Upstream};
use wire::{Wire, post, response};
use world::{World, check_at_the_end, check_so_far};

const KILLS: u64 = 60;
const CLIENTS: usize = 16;
/// The longest that the service takes over one request, and then some.
const SLOWEST: Duration = Duration::from_millis(400);

/// The service: what goes wrong with a request depends on its key alone.
async fn serve(world: Arc<World>, is_first: bool, arrived: Arrived) -> Vec<Act> {
    let key = arrived.request.key().to_owned();
    let number: u64 = key.trim_start_matches("payment-").parse().unwrap();
    let mut dice = Dice::new(world.seed ^ (number << 20));
    world.tell(&key, format!("arrived as request {}", arrived.number));
    if dice.happens(20) && is_first {
        world.note(&key, |known| known.refused += 1);
        return vec![Act::Say(response(429, "", "busy"))];
    }
    let pause_max = if dice.happens(6) { 150 } else { 12 };
    sleep(Duration::from_millis(dice.below(pause_max))).await;
    let (book, charged) = (world.clone(), key.clone());
    // Before any answer: what took effect is on disk.
    spawn_blocking(move || {
        book.ledger.record(&charged, arrived.number).unwrap();
        book.file.sync_data().unwrap();
    })
    .await
    .unwrap();
    let pause = Act::Sleep(Duration::from_millis(dice.below(pause_max)));
    let filler = "x".repeat(dice.below(3_000) as usize);
    let body = format!("{key} by request {} {filler}", arrived.number);
    let answer = response(201, "content-type: text/plain\r\n", body);
    let middle = answer.len() - dice.below(60) as usize;
    let trouble = dice.below(100);
    world.note(&key, |known| known.is_troubled = trouble < 15);
    match trouble {
        0..10 => vec![pause, Act::Close],
        10..15 => vec![pause, Act::Say(answer[..middle - 1].to_vec()), Act::Close],
        15..30 => {
            let (front, rest) = answer.split_at(middle);
            vec![Act::Say(front.to_vec()), pause, Act::Say(rest.to_vec())]
        }
        _ => vec![pause, Act::Say(answer)],
    }
}

/// A client: one key after the other, some of them twice at the same time.
async fn client(world: Arc<World>, proxy: SocketAddr, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut wires = [None, None];
    while !world.is_over.load(Relaxed) {
        let key = format!("payment-{}", world.keys.fetch_add(1, Relaxed));
        let [one, other] = &mut wires;
        let mut own = Dice::new(dice.throw());
        if dice.happens(33) {
            let mut others = Dice::new(dice.throw());
            tokio::join!(
                persist(&world, proxy, one, &key, &mut own),
                persist(&world, proxy, other, &key, &mut others),
            );
        } else {
            persist(&world, proxy, one, &key, &mut own).await;
        }
    }
}

/// Sends the same request until there is nothing more to ask.
async fn persist(
    world: &World,
    proxy: SocketAddr,
    wire: &mut Option<Wire>,
    key: &str,
    dice: &mut Dice,
) {
    let request = post("/v1/payments", key, b"{\"amount\": 20}");
    loop {
        if wire.is_none() {
            *wire = Wire::open(proxy).await.ok();
        }
        let Some(open) = wire else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Some hang up in the middle.
        let patience = match dice.happens(5) {
            true => Duration::from_millis(dice.below(30)),
            false => Duration::from_secs(20),
        };
        let life = world.life.load(Relaxed);
        match timeout(patience, open.ask(&request)).await {
            Ok(Ok(answer)) => {
                if world.hear(key, &answer) {
                    return;
                }
                sleep(Duration::from_millis(5 + dice.below(10))).await;
            }
            Ok(Err(_)) | Err(_) => {
                *wire = None;
                world.note(key, |known| known.lose(life));
                world.tell(key, format!("lost, sent in life {life}"));
            }
        }
    }
}

/// Everybody asks once more, of a proxy that knows only what is on disk, and is told the same.
async fn ask_everybody_again(world: &Arc<World>, proxy: SocketAddr) {
    let keys: Vec<String> = world.known().keys().cloned().collect();
    let before = world.replays.load(Relaxed);
    let mut asking = JoinSet::new();
    for part in keys.chunks(keys.len().div_ceil(CLIENTS)) {
        let (world, part) = (world.clone(), part.to_vec());
        asking.spawn(async move {
            let mut wire = Wire::open(proxy).await.unwrap();
            for key in part {
                let request = post("/v1/payments", &key, b"{\"amount\": 20}");
                let answer = wire.ask(&request).await.unwrap();
                assert!(world.hear(&key, &answer), "{key}: {}", answer.verdict());
            }
        });
    }
    asking.join_all().await;
    let replays = (world.replays.load(Relaxed) - before) as usize;
    let succeeded = world
        .known()
        .values()
        .filter(|it| it.success.is_some())
        .count();
    assert_eq!(replays, succeeded, "every success is a replay now");
}

async fn start(setup: &Arc<Setup>) -> Proxy {
    let setup = setup.clone();
    spawn_blocking(move || setup.start()).await.unwrap()
}

/// Kills at some moment, checks, and starts again; sometimes it is killed while it starts.
async fn kill_and_start(
    setup: &Arc<Setup>,
    mut proxy: Proxy,
    world: &Arc<World>,
    dice: &mut Dice,
) -> Proxy {
    sleep(Duration::from_millis(20 + dice.below(200))).await;
    proxy.kill();
    world.life.fetch_add(1, Relaxed);
    let checked = world.clone();
    spawn_blocking(move || check_so_far(&checked))
        .await
        .unwrap();
    if dice.happens(15) {
        let (setup, after) = (setup.clone(), Duration::from_millis(dice.below(40)));
        let killing = spawn_blocking(move || setup.start_and_kill(after));
        killing.await.unwrap();
        world.life.fetch_add(1, Relaxed);
    }
    start(setup).await
}

#[tokio::test]
async fn a_proxy_that_is_killed_again_and_again_runs_nothing_twice_and_swallows_nothing() {
    let kills = env::var("REFRAIN_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = format!("127.0.0.1:{}", lasting_port(seed));
    let setup = Arc::new(Setup::on(
        &listen,
        listener.local_addr().unwrap(),
        "[policy]\nwait = \"2s\"\n",
    ));
    let world = World::new(&setup, seed);
    let seen: Mutex<HashMap<String, u32>> = Mutex::default();
    let serving = world.clone();
    let upstream = Upstream::serve(listener, move |arrived| {
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(arrived.request.key().to_owned()).or_default();
        *times += 1;
        serve(serving.clone(), *times == 1, arrived)
    });
    let mut proxy = start(&setup).await;
    let mut clients = JoinSet::new();
    let mut dice = Dice::new(seed);
    for _ in 0..CLIENTS {
        clients.spawn(client(world.clone(), proxy.address, dice.throw()));
    }
    for _ in 0..kills {
        proxy = kill_and_start(&setup, proxy, &world, &mut dice).await;
    }
    world.is_over.store(true, Relaxed);
    clients.join_all().await;
    sleep(SLOWEST).await;
    check_at_the_end(&world, &upstream);
    proxy.kill();
    let count = upstream.count();
    let proxy = start(&setup).await;
    ask_everybody_again(&world, proxy.address).await;
    assert_eq!(upstream.count(), count, "something ran again at the end");
    assert!(!setup.log().contains("panicked"), "{}", setup.log());
}
