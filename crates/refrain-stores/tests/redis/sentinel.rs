//! Failover by a Sentinel. The replica lags when the primary dies, and writes that it had not received are lost.
//! Hence `lossy_failover`, and at-most-once is rejected there unless the loss is accepted.

use std::process::{Child, Command, Stdio};

use refrain::{Store, Verdict, policy::Policy};
use refrain_stores::redis::Redis;
use refrain_testkit::{
    servers::{PrivateRedis, free_port},
    wait::until,
};

use crate::support::{ask, claim, complete, granted, replayed, verdict, words};

/// Private Sentinel, stopped with the test.
struct Sentinel {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    fn start(primary: &PrivateRedis) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        let file = folder.path().join("sentinel.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 5000\nsentinel failover-timeout main 3000\n",
            folder.path().display(),
            primary.port()
        );
        std::fs::write(&file, settings).unwrap();
        let process = Command::new(primary.binaries().join("redis-server"))
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            process,
            port,
            _folder: folder,
        }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Whether the Sentinel knows a replica to fail over to.
    fn knows_a_replica(&self) -> bool {
        let Ok(client) = redis::Client::open(self.url()) else {
            return false;
        };
        let Ok(mut connection) = client.get_connection() else {
            return false;
        };
        let asked: Result<Vec<redis::Value>, _> =
            words("SENTINEL REPLICAS main").query(&mut connection);
        asked.is_ok_and(|replicas| !replicas.is_empty())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_is_followed_and_its_possible_loss_was_reported() {
    let mut primary = PrivateRedis::start().unwrap();
    let of = format!("127.0.0.1 {}", primary.port());
    let replica = PrivateRedis::start_with(&[("replicaof", &of)]).unwrap();
    let sentinel = Sentinel::start(&primary);
    until("the Sentinel knows the replica", async || {
        sentinel.knows_a_replica()
    })
    .await;
    let address = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port);

    let store = refrain_stores::open(&address).await.unwrap();
    assert!(store.guarantees().lossy_failover);
    let error = Policy::default()
        .check_store(&store)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Sentinel") && error.contains("accept_lossy_claims"),
        "{error}"
    );

    let store = Redis::open(&address).await.unwrap();
    complete(&store, 1, "before").await;
    until("the replica has the outcome", async || {
        let keys: Vec<String> = ask(&replica.url(), &words("KEYS refrain:*}o*"));
        !keys.is_empty()
    })
    .await;

    // Acknowledged, but not replicated.
    replica.pause().unwrap();
    let _: i64 = ask(&primary.url(), &words("CLIENT KILL TYPE replica"));
    let lost = granted(&store, &claim(2)).await;
    primary.kill().unwrap();
    replica.resume().unwrap();
    until("the replica takes over", async || {
        verdict(&store, &claim(3)).await.is_ok()
    })
    .await;
    assert_eq!(replayed(&store, 1).await, "before");
    // The loss: the claim is granted again, with a higher fence than the lost one.
    let again = match verdict(&store, &claim(2)).await.unwrap() {
        Verdict::Granted(grant) => grant,
        other => panic!("the claim was not lost: {other:?}"),
    };
    assert!(
        again.fence > lost.fence,
        "{:?} {:?}",
        again.fence,
        lost.fence
    );
}
