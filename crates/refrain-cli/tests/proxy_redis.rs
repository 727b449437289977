//! On Redis, the proxy must refuse to start where its guarantees do not hold, two proxies must guard one key
//! together, and every rejection must say why.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use refrain_testkit::servers::{PrivateRedis, free_port};
use support::{Starting, Upstream, call, post};

fn starting(store: &str, file: &str) -> Starting {
    Starting::new()
        .arg("--upstream", "http://127.0.0.1:9")
        .arg("--store", store)
        .file(file)
}

/// Checks the exit code and words of the message.
fn check(starting: &Starting, code: i32, words: &[&str]) {
    let (exited, text) = starting.refused();
    assert_eq!(exited, Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(
        !text.contains("panicked") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn a_server_that_may_lose_claims_is_refused_for_at_most_once_and_accepted_where_that_is_said() {
    let server = PrivateRedis::start_with(&[("appendfsync", "everysec")]).unwrap();
    let words = [
        "appendfsync is everysec",
        "would execute again",
        "accept_lossy_claims",
    ];
    check(&starting(&server.url(), ""), 64, &words);
    for accepted in [
        "[policy]\naccept_lossy_claims = true\n",
        "[policy]\nguarantee = \"at-least-once\"\n",
    ] {
        starting(&server.url(), accepted).start();
    }
    // One operation that must not lose its claims is enough.
    let one = "[policy]\naccept_lossy_claims = true\n[[operation]]\nmatch = \"POST /pay\"\naccept_lossy_claims = false\n";
    check(
        &starting(&server.url(), one),
        64,
        &["`POST /pay` is at-most-once"],
    );
}

#[test]
fn evicting_or_unreachable_server_is_named() {
    let evicts = PrivateRedis::start_with(&[("maxmemory-policy", "allkeys-lru")]).unwrap();
    check(
        &starting(&evicts.url(), ""),
        64,
        &["maxmemory-policy noeviction"],
    );
    let locked = PrivateRedis::start_with(&[("requirepass", "sesame")]).unwrap();
    let wrong = format!("redis://:secret@127.0.0.1:{}", locked.port());
    check(
        &starting(&wrong, ""),
        69,
        &["rejected the user or password"],
    );
    let nobody = format!("redis://127.0.0.1:{}", free_port().unwrap());
    check(&starting(&nobody, ""), 69, &[&nobody, "is unreachable"]);
    let bad = "redis://u:secret@h/not-a-number";
    check(&starting(bad, ""), 69, &["invalid Redis store address"]);
    let front = "store = [\"memory:\", \"file:data\"]\n";
    let backwards = Starting::new()
        .arg("--upstream", "http://127.0.0.1:9")
        .file(front);
    check(&backwards, 64, &["the first of two stores is the front"]);
}

/// An operator flushes the server: requests are rejected, and `/readyz` and the next start report it.
#[test]
fn a_flushed_server_is_not_ready_and_nobody_starts_on_it_unknowingly() {
    let server = PrivateRedis::start().unwrap();
    let upstream = Upstream::echo();
    let start = |store: &str| {
        Starting::new()
            .arg("--upstream", format!("http://{}", upstream.address))
            .arg("--store", store)
            .start()
    };
    // The admin listener only accepts its own address as `Host`.
    let ready = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let proxy = start(&server.url());
    assert_eq!(call(proxy.admin, ready).status, 200);
    assert_eq!(call(proxy.address, post("key-1", "{}")).status, 200);
    server.flush().unwrap();
    let refused = call(proxy.admin, ready);
    assert_eq!(refused.status, 503, "{}", refused.text());
    for words in [
        "\"reason\":\"store\"",
        "has lost",
        "accept_lost_records=true",
    ] {
        assert!(refused.text().contains(words), "{}", refused.text());
    }
    assert_eq!(call(proxy.address, post("key-1", "{}")).status, 503);
    check(
        &starting(&server.url(), ""),
        69,
        &["has lost", "accept_lost_records=true"],
    );
    drop(proxy);
    check(&starting(&server.url(), ""), 69, &["has lost"]);
    let restarted = start(&format!("{}/?accept_lost_records=true", server.url()));
    assert_eq!(call(restarted.admin, ready).status, 200);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn two_proxies_on_one_server_run_a_key_once() {
    let server = PrivateRedis::start().unwrap();
    let upstream = Upstream::echo();
    let start = || {
        Starting::new()
            .arg("--upstream", format!("http://{}", upstream.address))
            .arg("--store", server.url())
            .start()
    };
    let (one, two) = (start(), start());
    let first = call(one.address, post("key-1", "{}"));
    let again = call(two.address, post("key-1", "{}"));
    assert_eq!((first.is_replay(), again.is_replay()), (false, true));
    assert_eq!(first.text(), again.text());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_server_is_reached_over_tls_and_believed_only_with_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let certificate = file("certificate.pem", made.cert.pem());
    let key = file("key.pem", made.signing_key.serialize_pem());
    let port = free_port().unwrap().to_string();
    let _server = PrivateRedis::start_with(&[
        ("tls-port", &port),
        ("tls-cert-file", &certificate),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", &certificate),
        ("tls-auth-clients", "no"),
    ])
    .unwrap();
    let address = format!("rediss://localhost:{port}");
    check(&starting(&address, ""), 69, &[&address, "TLS"]);
    let known = starting(&address, "").variable("SSL_CERT_FILE", &certificate);
    known.start();
}
