//! A redrive must not end with "no dead letters" before its group has assigned partitions.

use std::{sync::Arc, time::Duration};

use refrain::{
    Engine, ErrorKind,
    consume::{Broker as _, DEAD_SOURCE, Message, Publisher as _, Redrive},
    store,
};

use crate::{Cluster, pull};

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_waits_until_the_group_has_formed() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    cluster.make("dead", 3);
    let worker = cluster.join("orders", "worker").await;
    let redrive = async || {
        let dead = Arc::new(cluster.join("dead", "worker-redrive").await);
        let to = Arc::new(cluster.join("orders", "other").await);
        // Far too short for a group to form.
        let redrive = Redrive::new(dead.clone(), to, Engine::new(store::Memory::new()))
            .with_idle(Duration::from_millis(10));
        let done = redrive.run().await;
        dead.close().await.unwrap();
        done
    };
    assert_eq!(redrive().await.unwrap().sent, 0, "none are there");
    for number in 0..9 {
        let letter = Message::new(number.to_string())
            .with_group(number.to_string())
            .with_header(DEAD_SOURCE, "orders");
        worker.publish("dead", &letter).await.unwrap();
    }
    let done = redrive().await.unwrap();
    assert_eq!((done.sent, done.left), (9, 0));
    assert_eq!(pull(&worker, 9).await.len(), 9);
}

/// Another member owns the only partition: whether there are dead letters is unknown, so the redrive must
/// not report none.
#[tokio::test(flavor = "multi_thread")]
async fn redrive_that_gets_no_partition_returns_an_error() {
    let cluster = Cluster::start();
    cluster.make("dead", 1);
    let first = cluster.join("dead", "c").await;
    first.ready(Duration::from_secs(30)).await.unwrap();
    let second = cluster.join("dead", "c").await;
    let looking = second.ready(Duration::from_secs(8));
    let keeping = async {
        loop {
            let _ = first.pull(1, Duration::from_millis(200)).await;
        }
    };
    let error = tokio::select! {
        looked = looking => looked.unwrap_err(),
        () = keeping => unreachable!("the other member stopped"),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("was assigned no partition"),
        "{error}"
    );
}
