//! Operations in steps, on two nodes that share a server.

use refrain_stores::redis::Options;

use crate::support::Prefix;

#[path = "../support/steps.rs"]
mod shared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_on_two_nodes_are_done_once_or_undone() {
    let prefix = Prefix::new();
    let open = async || prefix.open(Options::default()).await.unwrap();
    shared::check([open().await, open().await]).await;
}
