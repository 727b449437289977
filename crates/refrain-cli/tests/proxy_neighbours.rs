//! Two versions of the proxy on one store, as during a rolling upgrade: each key executes once, whichever is asked.
//!
//! It is run by hand, because it needs a build of the other version; `docs/operating/upgrades.md` has the commands.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{env, thread, time::Duration};

use refrain_testkit::servers::{PrivatePostgres, PrivateRedis};
use support::{Proxy, Starting, Upstream, answer, call, post, until};

const KEYS: usize = 50;

fn start(upstream: &Upstream, store: &str, wrapper: &[&str]) -> Proxy {
    Starting::new()
        .through(wrapper)
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", store)
        .start()
}

/// Sends a request to one proxy, and retries it at the other.
#[track_caller]
fn check_key(first: &Proxy, second: &Proxy, key: &str) {
    let executed = call(first.address, post(key, key));
    assert_eq!(
        (executed.status, executed.is_replay()),
        (200, false),
        "{key}"
    );
    let retried = call(second.address, post(key, key));
    assert!(retried.is_replay(), "{key}: {}", retried.head);
    assert_eq!(retried.body, executed.body);
    let other = call(second.address, post(key, "other"));
    assert_eq!(other.code().as_deref(), Some("key-reused"), "{key}");
}

fn check(older: &str, store: &str) {
    let upstream = Upstream::start(|seen, stream| {
        if seen.header("idempotency-key") == Some("slow") {
            thread::sleep(Duration::from_secs(1));
        }
        answer(stream, "200 OK", &[], &seen.body)
    });
    let script = format!("exec '{older}' \"$@\"");
    let old = start(&upstream, store, &["sh", "-c", &script]);
    check_key(&old, &old, "before");
    // It migrates the tables while the other one serves.
    let new = start(&upstream, store, &[]);
    for number in 0..KEYS {
        check_key(&old, &new, &format!("old-{number}"));
        check_key(&new, &old, &format!("new-{number}"));
    }
    let (address, sent) = (old.address, upstream.count());
    let slow = thread::spawn(move || call(address, post("slow", "x")));
    until("it runs", || upstream.count() > sent);
    assert!(call(new.address, post("slow", "x")).is_replay());
    assert_eq!(slow.join().unwrap().status, 200);
    old.terminate();
    assert!(old.ended().success());
    assert!(call(new.address, post("before", "before")).is_replay());
    assert_eq!(upstream.count(), 2 * KEYS + 2);
}

#[test]
#[ignore = "needs REFRAIN_OLDER_BIN, the path of an earlier version's command"]
fn an_earlier_version_and_this_one_execute_each_key_once() {
    let older = env::var("REFRAIN_OLDER_BIN").unwrap();
    check(&older, &PrivatePostgres::start().unwrap().url());
    check(&older, &PrivateRedis::start().unwrap().url());
}
