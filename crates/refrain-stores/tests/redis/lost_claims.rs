//! Claims whose answer was lost, on Redis.

use refrain_stores::redis::{Options, Redis};

use crate::{
    relay::Relay,
    support::{Prefix, patient},
};

#[path = "../support/lost_claims.rs"]
mod story;
use story::Scene;

async fn open(address: &str) -> Redis {
    let options = patient(Options::default());
    Redis::open_with(address, options).await.unwrap()
}

/// Scene, and the address of the store through its relay.
async fn scene(prefix: &Prefix) -> (Scene<Redis>, String) {
    let (_, server) = prefix.server.split_once("://").unwrap();
    let relay = Relay::start(server.trim_end_matches('/').to_owned()).await;
    let address = prefix
        .address
        .replace(server, &format!("127.0.0.1:{}", relay.port));
    let through = open(&address).await;
    let direct = prefix.open(Options::default()).await.unwrap();
    (Scene::new(relay, through, direct), address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_is_released_when_the_store_is_back() {
    let prefix = Prefix::new();
    story::is_released_when_the_store_is_back(scene(&prefix).await.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_is_not_crowded_out_by_refused_requests() {
    let prefix = Prefix::new();
    story::is_not_crowded_out_by_refused_requests(scene(&prefix).await.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_of_a_killed_process_is_judged_by_its_guarantee() {
    if let Some(address) = story::child_store() {
        return story::be_killed(open(&address).await).await;
    }
    let test = "lost_claims::lost_claim_of_a_killed_process_is_judged_by_its_guarantee";
    for guarantee in ["at-most-once", "at-least-once", "exactly-once"] {
        let prefix = Prefix::new();
        let (scene, address) = scene(&prefix).await;
        story::is_judged_by_its_guarantee_after_a_kill(test, &address, scene, guarantee).await;
    }
}
