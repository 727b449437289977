//! Operations in steps on a server that two nodes share.

use crate::support::Schema;

#[path = "../support/steps.rs"]
mod shared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_on_two_nodes_are_done_once_or_undone() {
    let schema = Schema::new();
    shared::check([schema.open().await, schema.open().await]).await;
}
