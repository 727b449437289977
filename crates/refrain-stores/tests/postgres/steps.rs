//! Operations in steps, on two nodes that share a server.

use crate::support::Schema;

#[path = "../support/steps.rs"]
mod shared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_on_two_nodes_are_done_once_or_undone() {
    let schema = Schema::new();
    shared::check([schema.open().await, schema.open().await]).await;
}
