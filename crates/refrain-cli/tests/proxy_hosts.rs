//! Bugs found in use with real services: virtual hosts that shared records, a path in other case that bypassed the
//! required key, a Refrain behind a Refrain whose rejections were kept, and money that moved without an audit log.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{fs, io::Write as _};

use support::{
    AfterResponse, Client, Parked, Proxy, Starting, Upstream, answer, call, post, request, until,
};

/// A payment for a host, always with the same key, body and token.
fn pay(host: &str, target: &str) -> Vec<u8> {
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer t\r\nidempotency-key: k\r\ncontent-length: 1\r\n\r\n5"
    );
    head.into_bytes()
}

#[test]
fn virtual_hosts_share_no_records() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(call(proxy.address, pay("eu.test", "/pay")).status, 200);
    for host in ["us.test", "eu.test:8080"] {
        let other = call(proxy.address, pay(host, "/pay"));
        assert_eq!(
            (other.status, other.code().as_deref()),
            (422, Some("key-reused"))
        );
    }
    for host in ["EU.test", "eu.test:80"] {
        assert!(call(proxy.address, pay(host, "/pay")).is_replay(), "{host}");
    }
    // The host in the target has precedence over `Host`.
    assert!(call(proxy.address, pay("eu.test", "http://eu.test/pay")).is_replay());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn each_host_has_keys_of_its_own_where_the_scope_says_so() {
    let upstream = Upstream::echo();
    let scope = "[policy]\nscope = [\"header:host\", \"credential\"]\n";
    let proxy = Proxy::start(upstream.address, scope);
    for host in ["eu.test", "us.test"] {
        let first = call(proxy.address, pay(host, "/pay"));
        assert_eq!((first.status, first.is_replay()), (200, false), "{host}");
        assert!(call(proxy.address, pay(host, "/pay")).is_replay(), "{host}");
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn the_case_of_a_path_leads_around_no_key() {
    let upstream = Upstream::echo();
    let policy = "[[operation]]\nmatch = \"POST /v1/pay\"\nrequired = true\n";
    let proxy = Proxy::start(upstream.address, policy);
    for path in ["/v1/pay", "/V1/pay", "/v1/PAY/", "/v1/%50ay"] {
        let missing = call(proxy.address, request(&format!("POST {path}"), &[], b"5"));
        assert_eq!(missing.code().as_deref(), Some("key-missing"), "{path}");
    }
    // With a suffix it is another path.
    let suffixed = call(proxy.address, request("POST /v1/pay.json", &[], b"5"));
    assert_eq!(suffixed.status, 200);
    let first = call(proxy.address, pay("eu.test", "/v1/pay"));
    assert_eq!(first.status, 200);
    // The upstream may treat the two paths differently, so they are different requests.
    let other = call(proxy.address, pay("eu.test", "/V1/pay"));
    assert_eq!(other.code().as_deref(), Some("key-reused"));
    let sensitive = format!("[policy]\npaths = \"case-sensitive\"\n{policy}");
    let proxy = Proxy::start(upstream.address, &sensitive);
    let other = call(proxy.address, request("POST /V1/pay", &[], b"5"));
    assert_eq!(other.status, 200);
}

#[test]
fn refusals_of_a_refrain_behind_are_not_kept() {
    for guarantee in ["at-most-once", "at-least-once"] {
        let policy = format!("[policy]\nguarantee = \"{guarantee}\"\n");
        let parked = Parked::new();
        let inner = Proxy::start(parked.address(), &policy);
        let outer = Proxy::start(inner.address, &policy);
        for _ in 0..2 {
            let refused = call(outer.address, post("k", "5"));
            assert_eq!(refused.code().as_deref(), Some("upstream-unreachable"));
            assert!(!refused.is_replay());
        }
        let upstream = Upstream::on(parked.listen(), |_, stream| {
            answer(stream, "200 OK", &[], b"paid")
        });
        let paid = call(outer.address, post("k", "5"));
        assert_eq!((paid.status, paid.text()), (200, "paid"), "{guarantee}");
        let again = call(outer.address, post("k", "5"));
        assert!(again.is_replay() && again.text() == "paid", "{guarantee}");
        assert_eq!(upstream.count(), 1);
    }
}

#[test]
fn a_replay_of_head_says_the_length() {
    let upstream = Upstream::start(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 77\r\netag: \"e\"\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    let policy = "[[operation]]\nmatch = \"HEAD /report\"\n";
    let proxy = Proxy::start(upstream.address, policy);
    let mut client = Client::connect(proxy.address);
    for is_replay in [false, true] {
        let asked = request("HEAD /report", &[("idempotency-key", "k")], b"");
        let head = client.send(asked).head().unwrap();
        assert_eq!(head.header("content-length"), Some("77"));
        assert_eq!(head.is_replay(), is_replay);
    }
    // The connection is still usable: the proxy did not wait for a body.
    assert_eq!(
        client
            .send(request("HEAD /report", &[("idempotency-key", "k")], b""))
            .head()
            .unwrap()
            .status,
        200
    );
    assert_eq!(upstream.count(), 1);
}

#[test]
fn money_without_an_audit_log_is_said_at_the_start_and_can_be_refused() {
    let upstream = Upstream::echo();
    let money = "[[operation]]\nmatch = \"POST /pay\"\nclass = \"monetary\"\n";
    let unaudited = format!("{money}audit = false\n");
    let proxy = Proxy::start(upstream.address, &unaudited);
    let errors = || fs::read_to_string(proxy.folder().join("stderr")).unwrap();
    until("the warning is logged", || {
        errors().contains("without an audit log")
    });
    assert_eq!(
        errors().matches("without an audit log").count(),
        1,
        "{}",
        errors()
    );
    assert!(errors().contains("`POST /pay`"));
    let listed = operations(&proxy);
    assert_eq!(listed["operations"][0]["audited"], false);
    assert_eq!(listed["warnings"][0]["name"], "POST /pay");
    let required =
        format!("upstream = \"http://127.0.0.1:9\"\n[policy]\naudit = \"required\"\n{unaudited}");
    let (code, said) = Starting::new().file(&required).refused();
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("required"), "{said}");
    let audited = Proxy::start(
        upstream.address,
        &format!("[policy]\naudit = \"required\"\n{money}"),
    );
    let paid = call(
        audited.address,
        request("POST /pay", &[("idempotency-key", "k")], b"5"),
    );
    assert_eq!(paid.status, 200);
    assert_eq!(operations(&audited)["operations"][0]["audited"], true);
}

/// Operations as the admin listener shows them.
fn operations(proxy: &Proxy) -> serde_json::Value {
    let host = proxy.admin;
    let listed = call(
        host,
        format!("GET /api/operations HTTP/1.1\r\nhost: {host}\r\n\r\n"),
    );
    serde_json::from_slice(&listed.body).unwrap()
}
