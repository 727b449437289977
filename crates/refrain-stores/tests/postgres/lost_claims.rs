//! Claims whose answer was lost, on PostgreSQL.

use refrain_stores::postgres::Postgres;

use crate::{lost, support::Schema};

#[path = "../support/lost_claims.rs"]
mod story;
use story::Scene;

async fn scene(schema: &Schema) -> Scene<Postgres> {
    let (relay, through) = lost::through_relay(schema).await;
    Scene::new(relay, through, schema.open().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_is_released_when_the_store_is_back() {
    let schema = Schema::new();
    story::is_released_when_the_store_is_back(scene(&schema).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_is_not_crowded_out_by_refused_requests() {
    let schema = Schema::new();
    story::is_not_crowded_out_by_refused_requests(scene(&schema).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_of_a_killed_process_is_judged_by_its_guarantee() {
    if let Some(address) = story::child_store() {
        return story::be_killed(Postgres::open(&address).await.unwrap()).await;
    }
    let test = "lost_claims::lost_claim_of_a_killed_process_is_judged_by_its_guarantee";
    for guarantee in ["at-most-once", "at-least-once", "exactly-once"] {
        let schema = Schema::new();
        let (relay, address) = lost::relayed(&schema).await;
        let through = Postgres::open(&address).await.unwrap();
        let scene = Scene::new(relay, through, schema.open().await);
        story::is_judged_by_its_guarantee_after_a_kill(test, &address, scene, guarantee).await;
    }
}
