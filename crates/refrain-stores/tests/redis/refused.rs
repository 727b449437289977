//! Servers that would lose, evict or mix up records, and unreachable addresses.
//! Stripe's game day of 2014: the primary was killed, restarted empty, and every key was new.

use std::time::Duration;

use refrain::{
    ErrorKind, Guarantee, Store,
    policy::{Mode, Operation, Policy, Terms},
    store::AnyStore,
};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::{
    servers::{PrivateRedis, free_port, redis_url},
    wait,
};

use crate::support::{Prefix, ask, claim, granted, verdict, words};

async fn refusal(address: &str) -> refrain::Error {
    match Redis::open(address).await {
        Ok(store) => panic!("{store:?} opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    for policy in [
        "allkeys-lru",
        "volatile-lru",
        "volatile-ttl",
        "allkeys-random",
    ] {
        let server = PrivateRedis::start_with(&[("maxmemory-policy", policy)]).unwrap();
        let error = refusal(&server.url()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        for words in [
            policy,
            "a request whose record is evicted would execute again",
            "noeviction",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }
}

fn policy(change: impl Fn(&mut Operation)) -> Policy {
    let mut operation = Operation::new("POST /pay").unwrap();
    change(&mut operation);
    Policy::new(vec![operation]).unwrap()
}

/// Checks that at-most-once is rejected, and that the other guarantees are accepted.
async fn check_lossy(address: &str, words: &str) {
    let store = refrain_stores::open(address).await.unwrap();
    let guarantees = store.guarantees();
    assert!(
        guarantees.lossy_failover && !guarantees.survives_power,
        "{words}"
    );
    let error = policy(|_| ()).check_store(&store).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    for words in [
        words,
        "`POST /pay` is at-most-once",
        "accept_lossy_claims = true",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let repeatable = Terms {
        guarantee: Guarantee::AtLeastOnce,
        ..Terms::default()
    };
    for allowed in [
        policy(|operation| operation.accept_lossy_claims = true),
        policy(|operation| operation.terms = repeatable),
        policy(|operation| operation.mode = Mode::Observe),
        policy(|operation| operation.guarded = false),
    ] {
        allowed.check_store(&store).unwrap();
    }
}

#[tokio::test]
async fn a_server_that_may_lose_writes_is_refused_for_at_most_once() {
    for (settings, words) in [
        (&[("appendonly", "no")], "appendonly is off"),
        (&[("appendfsync", "everysec")], "appendfsync is everysec"),
    ] {
        let server = PrivateRedis::start_with(settings).unwrap();
        check_lossy(&server.url(), words).await;
    }
}

#[tokio::test]
async fn a_server_with_a_replica_is_refused_for_at_most_once_and_the_replica_for_anything() {
    let primary = PrivateRedis::start().unwrap();
    let of = format!("127.0.0.1 {}", primary.port());
    let replica = PrivateRedis::start_with(&[("replicaof", &of)]).unwrap();
    let attached = || -> String { ask(&primary.url(), &words("INFO replication")) };
    wait::until("the replica is attached", async || {
        attached().contains("state=online")
    })
    .await;
    check_lossy(&primary.url(), "it has replicas").await;
    let error = refusal(&replica.url()).await;
    assert!(
        error.to_string().contains("use the address of the primary"),
        "{error}"
    );
}

#[tokio::test]
async fn the_shared_server_loses_nothing() {
    let prefix = Prefix::new();
    let store = AnyStore::new(prefix.open(Options::default()).await.unwrap());
    assert!(!store.guarantees().lossy_failover);
    policy(|_| ()).check_store(&store).unwrap();
}

#[tokio::test]
async fn a_user_without_rights_is_told_which() {
    let server = PrivateRedis::start_with(&[("requirepass", "sesame")]).unwrap();
    let port = server.port();
    let admin = format!("redis://:sesame@127.0.0.1:{port}");
    for rule in [
        "ACL SETUSER reader on >pw ~* +@read +@connection +info +config|get",
        "ACL SETUSER elsewhere on >pw ~other:* +@all",
        "ACL SETUSER single on >pw ~* &* +@all -@transaction",
        "ACL SETUSER silent on >pw ~* +@all -config",
    ] {
        let _: redis::Value = ask(&admin, &words(rule));
    }
    for (login, what) in [
        ("", "rejected the user or password"),
        (":wrong@", "rejected the user or password"),
        ("nobody:pw@", "rejected the user or password"),
        ("reader:pw@", "lacks permissions"),
        ("elsewhere:pw@", "lacks permissions"),
        ("single:pw@", "+@transaction"),
    ] {
        let error = refusal(&format!("redis://{login}127.0.0.1:{port}")).await;
        let text = error.to_string();
        assert!(text.contains(what), "{login}: {text}");
        assert!(!text.contains("pw@") && !text.contains("wrong"), "{text}");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
    }
    // A setting that a managed server hides counts as unsafe.
    let silent = format!("redis://silent:pw@127.0.0.1:{port}");
    check_lossy(&silent, "cannot read its appendfsync").await;
}

#[tokio::test]
async fn foreign_keys_under_the_prefix_are_left_alone() {
    let [older, newer] = [2, 4].map(|it| format!("refrain store {it} {}", "0".repeat(64)));
    for (value, kind, what) in [
        (
            "foreign",
            ErrorKind::Unsupported,
            "was not written by Refrain",
        ),
        (
            "refrain store 3 00",
            ErrorKind::Unsupported,
            "was not written by Refrain",
        ),
        (&older, ErrorKind::Unsupported, "has format version 2"),
        (&newer, ErrorKind::Unsupported, "has format version 4"),
    ] {
        let prefix = Prefix::new();
        let mut set = redis::cmd("SET");
        set.arg(prefix.mark()).arg(value);
        let _: redis::Value = ask(&redis_url(), &set);
        let error = refusal(&prefix.address).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        let kept: String = ask(&redis_url(), redis::cmd("GET").arg(prefix.mark()));
        assert_eq!(kept, value);
    }
    let prefix = Prefix::new();
    let _: redis::Value = ask(
        &redis_url(),
        redis::cmd("LPUSH").arg(prefix.mark()).arg("x"),
    );
    let error = refusal(&prefix.address).await;
    assert!(
        error.to_string().contains("was not written by Refrain"),
        "{error}"
    );
}

#[tokio::test]
async fn unreachable_address_fails_within_the_timeout() {
    let nobody = free_port().unwrap();
    // Accepts connections and sends nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().port();
    let plain = PrivateRedis::start().unwrap();
    for address in [
        format!("redis://127.0.0.1:{nobody}"),
        format!("redis+cluster://127.0.0.1:{nobody}"),
        format!("redis+sentinel://127.0.0.1:{nobody}/main"),
        format!("redis://127.0.0.1:{silent}"),
        format!("rediss://127.0.0.1:{silent}"),
        format!("rediss://127.0.0.1:{}", plain.port()),
        "redis://no-such-host.invalid".to_owned(),
    ] {
        let refused = tokio::time::timeout(wait::PATIENCE, refusal(&address)).await;
        let error = refused.unwrap_or_else(|_| panic!("waited too long for {address}"));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{address}: {error}");
        assert!(error.to_string().contains(&*address), "{error}");
    }
}

/// A server that is out of memory rejects new claims, and still stores settlements.
#[tokio::test]
async fn a_full_server_refuses_new_claims_and_settles_old_ones() {
    for sync in ["always", "everysec"] {
        check_full(&PrivateRedis::start_with(&[("appendfsync", sync)]).unwrap()).await;
    }
}

async fn check_full(server: &PrivateRedis) {
    let store = Redis::open(&server.url()).await.unwrap();
    let grant = granted(&store, &claim(1)).await;
    let _: redis::Value = ask(&server.url(), &words("CONFIG SET maxmemory 1"));
    let error = verdict(&store, &claim(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let lease = Duration::from_secs(60);
    let renewed = store.renew(claim(1).id, grant.fence, lease).await.unwrap();
    assert_eq!(renewed, refrain::Settled::Applied);
    let end = crate::support::completion("done");
    let settled = store.settle(claim(1).id, grant.fence, end).await.unwrap();
    assert_eq!(settled, refrain::Settled::Applied);
    assert_eq!(crate::support::replayed(&store, 1).await, "done");
}
