//! The proxy is killed with -9 at any moment, again and again, and the ledger of what took effect still balances.
//!
//! The service behind it takes effect first and has its troubles afterwards: it loses answers, cuts them short, is slow or busy.
//! Clients send each key until they are told how it ended. Nothing is told to the ledger but by the service itself.
//! `REFRAIN_KILLS` says how often the proxy is killed; the seed is printed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::HashMap,
    env,
    fs::File,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain::Guarantee;
use refrain_testkit::{Audit, Ledger, Seen, disk::Dice};
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

use proxy::{Proxy, Setup, lasting_port};
use upstream::{Act, Arrived, Upstream};
use wire::{Message, Wire, post, response};

const KILLS: u64 = 60;
const CLIENTS: usize = 16;
/// The longest that the service takes over one request, and then some.
const SLOWEST: Duration = Duration::from_millis(400);

/// An answer that has to be the same for everybody who asks with its key.
type Success = (u16, Option<String>, Vec<u8>);

/// What clients know of one key.
#[derive(Debug, Default)]
struct Known {
    success: Option<Success>,
    /// In which of the proxy's lives they were first told that nobody knows.
    doubted_in: Option<u64>,
    /// In which of its lives the first request was sent to which no answer came.
    lost_in: Option<u64>,
    /// Requests to which no answer came.
    lost: u32,
    /// Whether the service kept its answer, or a part of it, to itself.
    is_troubled: bool,
    /// Answers that said that it did not run.
    busy: u32,
    /// How often the service said so.
    refused: u32,
    answers: u32,
    /// What happened, and in which life, to be shown when a check fails.
    history: Vec<(u64, String)>,
}

/// What everybody in the test shares.
struct World {
    seed: u64,
    ledger: Ledger,
    /// The ledger's file, to have it synced.
    file: File,
    keys: AtomicU64,
    /// How often the proxy was killed.
    life: AtomicU64,
    is_over: AtomicBool,
    known: Mutex<HashMap<String, Known>>,
    replays: AtomicU64,
    in_flight: AtomicU64,
}

impl World {
    fn new(setup: &Setup, seed: u64) -> Arc<Self> {
        let path = setup.file("ledger");
        Arc::new(Self {
            seed,
            ledger: Ledger::open(&path).unwrap(),
            file: File::open(&path).unwrap(),
            keys: AtomicU64::new(0),
            life: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            known: Mutex::default(),
            replays: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap()
    }

    fn tell(&self, key: &str, what: impl Into<String>) {
        let what = (self.life.load(Relaxed), what.into());
        self.note(key, |known| known.history.push(what));
    }

    fn note(&self, key: &str, change: impl FnOnce(&mut Known)) {
        change(self.known().entry(key.to_owned()).or_default());
    }

    /// What an answer tells; `true` if there is nothing more to ask.
    fn hear(&self, key: &str, answer: &Message) -> bool {
        self.note(key, |known| known.answers += 1);
        self.tell(key, answer.verdict());
        self.replays.fetch_add(answer.is_replay().into(), Relaxed);
        match &*answer.verdict() {
            "201" => {
                let kind = answer.header("content-type").map(Into::into);
                let success = (answer.status(), kind, answer.body.clone());
                self.note(key, |known| known.succeed(key, success));
                true
            }
            "409 outcome-unknown" | "502 outcome-unknown" => {
                let life = self.life.load(Relaxed);
                self.note(key, |known| known.doubt(key, life));
                answer.status() == 409
            }
            "429" | "502 upstream-unreachable" => {
                self.note(key, |known| known.busy += 1);
                false
            }
            "409 in-flight" => {
                self.in_flight.fetch_add(1, Relaxed);
                false
            }
            "503 store-unavailable" => false,
            other => panic!("{key}: {other}: {}", answer.text()),
        }
    }
}

impl Known {
    fn succeed(&mut self, key: &str, success: Success) {
        assert_eq!(
            self.doubted_in, None,
            "{key}: first in doubt, then a success"
        );
        let first = self.success.get_or_insert_with(|| success.clone());
        assert_eq!(*first, success, "{key}: two answers under one key");
    }

    fn doubt(&mut self, key: &str, life: u64) {
        assert_eq!(self.success, None, "{key}: first a success, then in doubt");
        self.doubted_in.get_or_insert(life);
    }

    fn lose(&mut self, life: u64) {
        self.lost += 1;
        self.lost_in.get_or_insert(life);
    }

    /// How it ended for the client.
    fn end(&self) -> Seen {
        match &self.success {
            Some(_) => Seen::Completed,
            None => Seen::Unknown,
        }
    }

    /// Whether the proxy was killed between a request that was lost and the first word of doubt.
    fn is_cut_by_a_kill(&self) -> bool {
        let lives = self.lost_in.zip(self.doubted_in);
        lives.is_some_and(|(lost, doubted)| lost < doubted)
    }
}

/// The service: what goes wrong with a request depends on its key alone.
async fn serve(world: Arc<World>, is_first: bool, arrived: Arrived) -> Vec<Act> {
    let key = arrived.request.key().to_owned();
    let number: u64 = key.trim_start_matches("payment-").parse().unwrap();
    let mut dice = Dice::new(world.seed ^ (number << 20));
    world.tell(&key, format!("arrived as request {}", arrived.number));
    if dice.happens(8) && is_first {
        world.note(&key, |known| known.refused += 1);
        return vec![Act::Say(response(429, "", "busy"))];
    }
    let is_slow = dice.happens(6);
    sleep(Duration::from_millis(dice.below(if is_slow {
        150
    } else {
        15
    })))
    .await;
    let (book, charged) = (world.clone(), key.clone());
    // Before any answer: what took effect is on disk.
    spawn_blocking(move || {
        book.ledger.record(&charged, arrived.number).unwrap();
        book.file.sync_data().unwrap();
    })
    .await
    .unwrap();
    let pause = Act::Sleep(Duration::from_millis(dice.below(if is_slow {
        150
    } else {
        10
    })));
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

/// What holds at every moment, also in the middle of everything.
fn check_so_far(world: &World) {
    // In this order: what was told before the ledger is read must be in there.
    let told: Vec<String> = {
        let known = world.known();
        let told = known.iter().filter(|(_, it)| it.success.is_some());
        told.map(|(key, _)| key.clone()).collect()
    };
    let mut audit = Audit::new(Guarantee::AtMostOnce);
    let effects = world.ledger.all().unwrap();
    for effect in &effects {
        audit.saw(&effect.key, Seen::Unknown);
    }
    for key in &told {
        audit.saw(key, Seen::Completed);
    }
    assert_eq!(audit.check(&effects), []);
}

/// What holds when every client knows how each of its keys ended.
fn check_at_the_end(world: &World, upstream: &Upstream) {
    let mut dispatched: HashMap<String, u32> = HashMap::new();
    for arrived in upstream.arrived() {
        *dispatched
            .entry(arrived.request.key().to_owned())
            .or_default() += 1;
    }
    let mut audit = Audit::new(Guarantee::AtMostOnce);
    let known = world.known();
    for (key, known) in &*known {
        let dispatches = dispatched.get(key).copied().unwrap_or_default();
        audit.saw(key, known.end());
        assert!(dispatches <= 1 + known.refused, "{key}: {dispatches} sent");
        // Who was never sent on is refused only because a kill came in between, and doubt has a cause.
        let is_cut = known.is_cut_by_a_kill();
        assert!(dispatches > 0 || is_cut, "{key}: swallowed: {known:?}");
        let is_explained = known.success.is_some() || known.is_troubled || is_cut;
        assert!(is_explained, "{key}: in doubt without a cause: {known:?}");
    }
    let effects = world.ledger.all().unwrap();
    assert_eq!(audit.check(&effects), []);
    let in_doubt = known.values().filter(|it| it.doubted_in.is_some());
    let never_sent = known.keys().filter(|key| !dispatched.contains_key(*key));
    println!(
        "{} keys: {} succeeded, {} in doubt ({} of them never reached the service); {} effects; \
         {} answers, {} replays, {} in flight, {} busy, {} requests lost",
        known.len(),
        known.values().filter(|it| it.success.is_some()).count(),
        in_doubt.count(),
        never_sent.count(),
        effects.len(),
        known.values().map(|it| it.answers).sum::<u32>(),
        world.replays.load(Relaxed),
        world.in_flight.load(Relaxed),
        known.values().map(|it| it.busy).sum::<u32>(),
        known.values().map(|it| it.lost).sum::<u32>(),
    );
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
