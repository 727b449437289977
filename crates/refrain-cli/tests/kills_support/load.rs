//! A service that executes first and then loses or delays its response, and clients that retry until they have an
//! outcome.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use refrain::Guarantee;
use refrain_testkit::disk::Dice;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

use crate::{
    upstream::{Act, Arrived, Upstream},
    wire::{Wire, post, response},
    world::World,
};

const CLIENTS: usize = 16;
/// Longer than the slowest request to the service.
pub(crate) const SLOWEST: Duration = Duration::from_millis(400);

/// Starts the service on a port that the proxies already know.
pub(crate) fn start_service(world: &Arc<World>, listener: tokio::net::TcpListener) -> Upstream {
    let world = world.clone();
    Upstream::serve(listener, move |arrived| {
        let times = world.arrives(arrived.request.key());
        serve(world.clone(), times, arrived)
    })
}

/// The fault of a request depends on its key and, where it may run again, on the attempt number.
async fn serve(world: Arc<World>, times: u64, arrived: Arrived) -> Vec<Act> {
    let key = arrived.request.key().to_owned();
    let number: u64 = key.trim_start_matches("payment-").parse().unwrap();
    let round = match world.guarantee {
        Guarantee::AtLeastOnce => times,
        _ => 0,
    };
    let mut dice = Dice::new(world.seed ^ (number << 20) ^ (round << 8));
    let attempt = arrived.request.header("refrain-attempt");
    let attempt = attempt.unwrap_or("of no number").to_owned();
    let number_of_all = arrived.number;
    world.tell(
        &key,
        format!("arrived as request {number_of_all}, attempt {attempt}"),
    );
    if dice.happens(20) && times == 1 {
        world.note(&key, |known| known.refused += 1);
        world.tell(&key, "refused by the service");
        return vec![Act::Say(response(429, "", "busy"))];
    }
    let pause_max = if dice.happens(6) { 150 } else { 12 };
    sleep(Duration::from_millis(dice.below(pause_max))).await;
    let (book, charged) = (world.clone(), key.clone());
    // The effect is on disk before any response is sent.
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
    world.note(&key, |known| known.is_troubled |= trouble < 15);
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

/// The connections of one client, one to each proxy.
struct Wires(Vec<(SocketAddr, Option<Wire>)>);

impl Wires {
    fn to(proxies: &[SocketAddr]) -> Self {
        Self(proxies.iter().map(|address| (*address, None)).collect())
    }

    /// A slot with a connection to a random proxy; `None` if that proxy does not listen.
    async fn any(&mut self, dice: &mut Dice) -> Option<&mut Option<Wire>> {
        let place = dice.below(self.0.len() as u64) as usize;
        let (address, wire) = &mut self.0[place];
        if wire.is_none() {
            *wire = Wire::open(*address).await.ok();
        }
        wire.is_some().then_some(wire)
    }
}

/// Starts clients that send to random proxies until [`World::end`].
pub(crate) fn start_clients(
    world: &Arc<World>,
    proxies: &[SocketAddr],
    dice: &mut Dice,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(world.clone(), proxies.into(), dice.throw()));
    }
    clients
}

/// A client: one key after the other, some of them with a concurrent duplicate.
async fn client(world: Arc<World>, proxies: Vec<SocketAddr>, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut wires = [Wires::to(&proxies), Wires::to(&proxies)];
    while !world.is_over() {
        let key = world.next_key();
        let [one, other] = &mut wires;
        let mut own = Dice::new(dice.throw());
        if dice.happens(33) {
            let mut others = Dice::new(dice.throw());
            tokio::join!(
                persist(&world, one, &key, &mut own),
                persist(&world, other, &key, &mut others),
            );
        } else {
            persist(&world, one, &key, &mut own).await;
        }
    }
}

/// Retries the same request until its outcome is final.
async fn persist(world: &World, wires: &mut Wires, key: &str, dice: &mut Dice) {
    let request = post("/v1/payments", key, b"{\"amount\": 20}");
    loop {
        let Some(place) = wires.any(dice).await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Some clients disconnect in the middle, and some when the response takes too long.
        let patience = match dice.below(100) {
            0..5 => Duration::from_millis(dice.below(30)),
            5..30 => Duration::from_millis(500),
            _ => Duration::from_secs(20),
        };
        let sent = world.sending(key);
        let asked = async { place.as_mut()?.ask(&request).await.ok() };
        match timeout(patience, asked).await {
            Ok(Some(answer)) => {
                if world.hear(key, sent, &answer) {
                    return;
                }
                sleep(Duration::from_millis(5 + dice.below(10))).await;
            }
            Ok(None) | Err(_) => {
                *place = None;
                world.lose(key, sent);
            }
        }
    }
}

/// Every client retries every key at this proxy: responses are the same as before, and nothing executes again.
pub(crate) async fn ask_everybody_again(world: &Arc<World>, proxy: SocketAddr) {
    let keys: Vec<String> = world.known().keys().cloned().collect();
    let mut asking = JoinSet::new();
    for part in keys.chunks(keys.len().div_ceil(CLIENTS)) {
        let (world, part) = (world.clone(), part.to_vec());
        asking.spawn(async move {
            let mut wire = Wire::open(proxy).await.unwrap();
            for key in part {
                ask_again(&world, &mut wire, &key).await;
            }
        });
    }
    asking.join_all().await;
}

async fn ask_again(world: &World, wire: &mut Wire, key: &str) {
    let request = post("/v1/payments", key, b"{\"amount\": 20}");
    let may_run = world.note(key, |known| known.has_no_effect());
    loop {
        let sent = world.sending(key);
        let answer = wire.ask(&request).await.unwrap();
        let is_told = world.hear(key, sent, &answer);
        let has_run = answer.status() == 201 && !answer.is_replay();
        let history = || world.note(key, |known| known.history.clone());
        assert!(may_run || !has_run, "{key}: it ran again: {:?}", history());
        if is_told {
            return;
        }
    }
}
