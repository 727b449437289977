//! A proxy in front of a payments service, and an issuer that changes its keys. Only the bearer of a valid token executes
//! and sees replays; nothing of a token reaches a log.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

#[path = "../../refrain/tests/support/tokens.rs"]
#[allow(dead_code, reason = "no test file needs all of it")]
mod tokens;

use std::{
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use support::{HttpResponse, Proxy, Starting, Upstream, answer, call, request, until};
use tokens::{IssuerKey, SECRET, key_set};

const ISSUER: &str = "https://login.example";
/// Appears in every token, and must appear nowhere else.
const CANARY: &str = "canary-7f3a";

/// An issuer that serves its key set over loopback.
struct Issuer {
    upstream: Upstream,
    keys: Arc<Mutex<String>>,
}

impl Issuer {
    fn start(keys: &[&IssuerKey]) -> Self {
        let keys = Arc::new(Mutex::new(key_set(keys)));
        let served = keys.clone();
        let upstream = Upstream::start(move |_, stream| {
            let body = served.lock().unwrap().clone();
            let (status, body) = match body.is_empty() {
                true => ("503 Service Unavailable", "{}".into()),
                false => ("200 OK", body),
            };
            answer(
                stream,
                status,
                &[("content-type", "application/json")],
                body.as_bytes(),
            )
        });
        Self { upstream, keys }
    }

    fn settings(&self, more: &str) -> String {
        let address = self.upstream.address;
        format!(
            "[jwt]\njwks_url = \"http://{address}/jwks\"\nissuer = \"{ISSUER}\"\naudience = \"pay\"\n\
             jwks_retry = \"100ms\"\n{more}\n\
             [policy]\nscope = \"jwt:sub\"\nreplay_to = \"same-scope\"\n"
        )
    }

    fn rotate(&self, keys: &[&IssuerKey]) {
        *self.keys.lock().unwrap() = key_set(keys);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tokens expire by the wall clock, which this test does not set"
)]
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": "pay", "sub": CANARY, "exp": now() + 3_600 })
}

fn pay(proxy: &Proxy, key: &str, token: &str) -> HttpResponse {
    let authorization = format!("Bearer {token}");
    let headers = [("idempotency-key", key), ("authorization", &*authorization)];
    call(proxy.address, request("POST /pay", &headers, b"x"))
}

fn shop() -> Upstream {
    Upstream::start(|_, stream| answer(stream, "201 Created", &[], b"paid"))
}

/// A proxy that logs everything.
fn talkative(upstream: &Upstream, settings: &str) -> Proxy {
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .arg("--log", "trace")
        .arg("--access-log", "access.jsonl")
        .file(settings)
        .start()
}

#[test]
fn tokens_of_every_algorithm_are_verified_and_keys_rotate() {
    let (rsa, ec, ed) = (
        IssuerKey::rs256("rsa"),
        IssuerKey::es256("ec"),
        IssuerKey::eddsa("ed"),
    );
    let issuer = Issuer::start(&[&rsa, &ec]);
    let upstream = shop();
    let proxy = talkative(&upstream, &issuer.settings(""));
    for (at, key) in [&rsa, &ec].into_iter().enumerate() {
        let token = key.token(&claims());
        let first = pay(&proxy, &at.to_string(), &token);
        assert_eq!(
            (first.status, first.is_replay()),
            (201, false),
            "{}",
            first.text()
        );
        assert!(pay(&proxy, &at.to_string(), &token).is_replay());
    }
    // A key that is not published yet.
    let token = ed.token(&claims());
    let refused = pay(&proxy, "0", &token);
    assert_eq!(
        (refused.status, refused.code().as_deref()),
        (401, Some("token-invalid"))
    );
    let challenge = refused.header("www-authenticate");
    assert_eq!(challenge, Some("Bearer error=\"invalid_token\""));
    // The issuer rotates: the new key is fetched because a token names it, and the old ones are no longer valid.
    issuer.rotate(&[&ed]);
    until("the new key is known", || {
        pay(&proxy, "0", &token).is_replay()
    });
    let old = pay(&proxy, "0", &rsa.token(&claims()));
    assert_eq!(old.code().as_deref(), Some("token-invalid"));
    assert_eq!(upstream.count(), 2);
    check_silence(&proxy);
}

#[test]
fn forged_tokens_execute_nothing_and_see_nothing() {
    let rsa = IssuerKey::rs256("rsa");
    let issuer = Issuer::start(&[&rsa]);
    let upstream = shop();
    let proxy = talkative(&upstream, &issuer.settings(""));
    assert_eq!(pay(&proxy, "k", &rsa.token(&claims())).status, 201);
    let text = claims().to_string();
    let public = IssuerKey::hs256(&rsa.public_bytes());
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        rsa.token(&claims)
    };
    let unsigned = rsa.token_as(r#"{"alg":"none"}"#, &text);
    for token in [
        format!("{}.", unsigned.rsplit_once('.').unwrap().0),
        public.token_as(r#"{"alg":"HS256","kid":"rsa"}"#, &text),
        public.token_as(r#"{"alg":"RS256","kid":"rsa"}"#, &text),
        IssuerKey::es256("rsa").token(&claims()),
        rsa.token_as(r#"{"alg":"RS256","kid":"another"}"#, &text),
        with("aud", "reports".into()),
        with("iss", "https://evil.example".into()),
        with("exp", (now() - 3_600).into()),
        with("nbf", (now() + 3_600).into()),
        with("sub", Value::Null),
        CANARY.to_owned(),
    ] {
        let refused = pay(&proxy, "k", &token);
        assert_eq!(
            (refused.status, refused.is_replay()),
            (401, false),
            "{token}"
        );
        assert_eq!(refused.code().as_deref(), Some("token-invalid"));
        assert!(!refused.text().contains(CANARY) && !refused.text().contains("paid"));
    }
    assert_eq!(upstream.count(), 1);
    let metrics = proxy.ask_admin("/metrics");
    let refusals = metrics
        .text()
        .lines()
        .find(|line| line.contains("outcome=\"token-invalid\""));
    assert!(
        refusals.is_some_and(|line| line.ends_with(" 11")),
        "{refusals:?}"
    );
    check_silence(&proxy);
}

/// No log, metric or report has a claim, a part of a token or a secret.
fn check_silence(proxy: &Proxy) {
    let access = std::fs::read_to_string(proxy.folder().join("access.jsonl")).unwrap();
    let told = [
        proxy.errors(),
        access,
        proxy.ask_admin("/metrics").text().to_owned(),
        proxy.ask_admin("/api/requests").text().to_owned(),
        proxy.ask_admin("/api/records").text().to_owned(),
        proxy.ask_admin("/configuration").text().to_owned(),
    ];
    for told in told {
        for secret in [CANARY, "eyJ", SECRET] {
            assert!(!told.contains(secret), "{secret} in {told}");
        }
    }
}

#[test]
fn without_keys_tokens_are_neither_valid_nor_invalid() {
    let rsa = IssuerKey::rs256("rsa");
    let issuer = Issuer::start(&[]);
    *issuer.keys.lock().unwrap() = String::new();
    let upstream = shop();
    let proxy = Proxy::start(upstream.address, &issuer.settings(""));
    let token = rsa.token(&claims());
    let refused = pay(&proxy, "k", &token);
    assert_eq!(
        (refused.status, refused.code().as_deref()),
        (503, Some("caller-unconfirmed"))
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(
        proxy.errors().contains("cannot fetch the keys"),
        "{}",
        proxy.errors()
    );
    issuer.rotate(&[&rsa]);
    until("the keys are fetched", || {
        pay(&proxy, "k", &token).status == 201
    });
    assert_eq!(upstream.count(), 1);
}

#[test]
fn secrets_come_from_the_environment_and_are_never_shown() {
    let upstream = shop();
    let settings = format!(
        "[jwt]\nsecret_env = \"TOKEN_SECRET\"\nissuer = \"{ISSUER}\"\naudience = \"pay\"\n\
         [policy]\nscope = \"jwt:sub\"\n"
    );
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .arg("--log", "trace")
        .arg("--access-log", "access.jsonl")
        .variable("TOKEN_SECRET", SECRET)
        .file(&settings)
        .start();
    let key = IssuerKey::hs256(SECRET.as_bytes());
    assert_eq!(pay(&proxy, "k", &key.token(&claims())).status, 201);
    let thief = IssuerKey::hs256(b"another-secret-0123456789-0123456789");
    assert_eq!(pay(&proxy, "k", &thief.token(&claims())).status, 401);
    check_silence(&proxy);
    let shown = proxy.ask_admin("/configuration");
    assert!(
        shown.text().contains("env:TOKEN_SECRET"),
        "{}",
        shown.text()
    );
}

#[test]
fn the_upstream_is_asked_before_a_replay() {
    let upstream = Upstream::start(|seen, stream| match &seen.head {
        head if !head.starts_with("GET /me ") => answer(stream, "201 Created", &[], b"paid"),
        head if head.contains("Bearer revoked") => {
            answer(stream, "403 Forbidden", &[("x-why", "revoked")], b"not you")
        }
        head if head.contains("Bearer broken") => answer(stream, "500 Oops", &[], b""),
        _ => answer(stream, "200 OK", &[], b"you"),
    });
    let settings = "[policy]\nscope = \"route\"\nreplay_probe = \"GET /me\"\n";
    let proxy = Proxy::start(upstream.address, settings);
    assert_eq!(pay(&proxy, "k", "first").status, 201);
    assert_eq!(upstream.count(), 1);
    assert!(pay(&proxy, "k", "first").is_replay());
    assert!(pay(&proxy, "k", "rotated").is_replay());
    let revoked = pay(&proxy, "k", "revoked");
    assert_eq!((revoked.status, revoked.text()), (403, "not you"));
    assert_eq!(revoked.header("x-why"), Some("revoked"));
    let broken = pay(&proxy, "k", "broken");
    assert_eq!(
        (broken.status, broken.code().as_deref()),
        (503, Some("caller-unconfirmed"))
    );
    // Four duplicates, four questions.
    assert_eq!(upstream.count(), 5);
}
