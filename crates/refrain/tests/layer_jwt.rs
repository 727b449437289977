//! A scope that is made of a claim is as good as the check of the token: a forged, expired or foreign token must neither
//! execute nor see a replay, and a valid one must reach its records, also after the issuer has changed its keys.
#![cfg(feature = "http")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Engine, Error, ErrorKind, Operation, Policy,
    clock::Clock as _,
    http::RefrainLayer,
    jwt::{FetchedJwks, JwksFetcher, JwtKeys, JwtSettings, JwtVerifier, KeySet},
    policy::{Mode, ReplayTo},
    store::{Memory, StateName},
};
use refrain_testkit::ManualClock;
use serde_json::{Value, json};

#[path = "support/shop.rs"]
#[allow(dead_code, reason = "no test file needs all of it")]
mod shop;
use shop::{KEY, Seen, Shop, shop_behind};

#[path = "support/tokens.rs"]
#[allow(dead_code, reason = "no test file needs all of it")]
mod tokens;
use tokens::{IssuerKey, SECRET, key_set};

const ISSUER: &str = "https://login.example";

fn by_subject(change: impl FnOnce(&mut Operation)) -> Policy {
    let mut operation = Operation::new("POST *").unwrap();
    operation.scope = vec!["jwt:sub".parse().unwrap()];
    operation.replay_to = ReplayTo::SameScope;
    change(&mut operation);
    Policy::new(vec![operation]).unwrap()
}

fn shop_with(policy: Policy, verifier: JwtVerifier) -> Shop {
    let layer = RefrainLayer::new(Engine::new(Memory::new()), policy).with_jwt(verifier);
    layer.check().unwrap();
    shop_behind(layer)
}

fn ours(keys: JwtKeys) -> JwtSettings {
    JwtSettings::new(keys)
        .from_issuer(ISSUER)
        .for_audience("pay")
}

fn fixed(keys: &[&IssuerKey], clock: &ManualClock) -> JwtVerifier {
    let keys = KeySet::from_jwks(key_set(keys).as_bytes()).unwrap();
    let settings = ours(JwtKeys::Fixed(keys, Vec::new()));
    JwtVerifier::new(settings)
        .unwrap()
        .with_clock(clock.shared())
}

fn claims(clock: &ManualClock) -> Value {
    let now = clock.wall().0 / 1_000;
    json!({ "iss": ISSUER, "aud": "pay", "sub": "alice", "exp": now + 300 })
}

async fn pay(shop: &Shop, token: &str) -> Seen {
    let authorization = format!("Bearer {token}");
    shop.post("/pay", &[KEY, ("authorization", &authorization)], "x")
        .await
}

/// The request is refused, executes nothing and leaves no record.
#[track_caller]
fn check_refused(seen: &Seen, why: &str) {
    seen.check_problem(401, "token-invalid");
    let challenge = seen.header("www-authenticate");
    assert_eq!(challenge, Some("Bearer error=\"invalid_token\""), "{why}");
    assert!(!seen.is_replay());
    let detail = String::from_utf8_lossy(&seen.body);
    assert!(detail.contains(why), "{detail} instead of {why}");
    assert!(!detail.contains("alice"), "{detail}");
}

#[tokio::test]
async fn valid_tokens_of_every_algorithm_execute_once() {
    let clock = ManualClock::new();
    for key in [
        IssuerKey::rs256("k"),
        IssuerKey::es256("k"),
        IssuerKey::eddsa("k"),
    ] {
        let shop = shop_with(by_subject(|_| {}), fixed(&[&key], &clock));
        let mut claims = claims(&clock);
        let first = pay(&shop, &key.token(&claims)).await;
        assert_eq!(
            (first.status, first.is_replay()),
            (201, false),
            "{}",
            key.algorithm()
        );
        // A refreshed token of the same caller.
        claims["jti"] = "2".into();
        let again = pay(&shop, &key.token(&claims)).await;
        assert!(again.is_replay(), "{}", key.algorithm());
        assert_eq!(shop.effects(), 1);
    }
    let settings = JwtSettings::with_secret(SECRET)
        .unwrap()
        .from_issuer(ISSUER)
        .for_audience("pay");
    let verifier = JwtVerifier::new(settings)
        .unwrap()
        .with_clock(clock.shared());
    let shop = shop_with(by_subject(|_| {}), verifier);
    let token = IssuerKey::hs256(SECRET.as_bytes()).token(&claims(&clock));
    assert_eq!(pay(&shop, &token).await.status, 201);
    assert!(pay(&shop, &token).await.is_replay());
}

#[tokio::test]
async fn every_rsa_algorithm_is_verified_as_itself_alone() {
    let clock = ManualClock::new();
    let all = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];
    for algorithm in all {
        let key = IssuerKey::rsa("k", algorithm);
        let shop = shop_with(by_subject(|_| {}), fixed(&[&key], &clock));
        for signed_with in all {
            let token = IssuerKey::rsa("k", signed_with).token(&claims(&clock));
            let seen = pay(&shop, &token).await;
            match signed_with == algorithm {
                true => assert_eq!(seen.status, 201, "{algorithm}"),
                false => check_refused(&seen, "not allowed"),
            }
        }
        // A signature of another algorithm under the right name.
        let other = IssuerKey::rsa(
            "k",
            if algorithm == "PS256" {
                "RS256"
            } else {
                "PS256"
            },
        );
        let header = json!({ "alg": algorithm, "kid": "k" }).to_string();
        let token = other.token_as(&header, &claims(&clock).to_string());
        check_refused(&pay(&shop, &token).await, "signature");
    }
}

#[tokio::test]
async fn public_keys_are_read_from_pem() {
    let clock = ManualClock::new();
    for key in [
        IssuerKey::rs256(""),
        IssuerKey::es256(""),
        IssuerKey::eddsa(""),
    ] {
        let pem = key.pem();
        let settings = JwtSettings::with_public_key(&pem).unwrap();
        let settings = settings.from_issuer(ISSUER).for_audience("pay");
        let verifier = JwtVerifier::new(settings).unwrap();
        let shop = shop_with(by_subject(|_| {}), verifier.with_clock(clock.shared()));
        assert_eq!(pay(&shop, &key.token(&claims(&clock))).await.status, 201);
        let public = IssuerKey::hs256(pem.as_bytes()).token(&claims(&clock));
        check_refused(&pay(&shop, &public).await, "not allowed");
        // Damaged and foreign files are rejected, and none of them panics.
        let body = pem.lines().nth(1).unwrap();
        for at in 0..body.len() {
            let cut = pem.replace(body, &body[..at]);
            assert!(KeySet::from_public_key(&cut).is_err(), "{at}");
        }
        assert!(KeySet::from_public_key(&format!("{pem}{pem}")).is_err());
        assert!(KeySet::from_public_key(&pem.replace("PUBLIC", "PRIVATE")).is_err());
    }
}

#[tokio::test]
async fn invalid_tokens_neither_execute_nor_see_a_replay() {
    let clock = ManualClock::new();
    let (key, other) = (IssuerKey::rs256("k"), IssuerKey::es256("k2"));
    let shop = shop_with(by_subject(|_| {}), fixed(&[&key, &other], &clock));
    let good = claims(&clock);
    assert_eq!(pay(&shop, &key.token(&good)).await.status, 201);

    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        key.token(&claims)
    };
    let text = good.to_string();
    let thief = IssuerKey::es256("k2");
    let stranger = IssuerKey::es256("k3");
    let now = clock.wall().0 / 1_000;
    let unsigned = key.token_as(r#"{"alg":"none","kid":"k"}"#, &text);
    let no_signature = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    let public = IssuerKey::hs256(&key.public_bytes());
    let public_jwk = IssuerKey::hs256(key.jwk().to_string().as_bytes());
    let signed = key.token(&good);
    let (head, rest) = signed.split_once('.').unwrap();
    let cases = [
        ("is malformed", "no.token".to_owned()),
        ("is malformed", format!("{signed}.x")),
        ("is malformed", format!("{head}=.{rest}")),
        ("is malformed", "a".repeat(20_000)),
        ("not allowed", unsigned),
        ("not allowed", no_signature),
        (
            "not allowed",
            key.token_as(r#"{"alg":"None","kid":"k"}"#, &text),
        ),
        ("not allowed", key.token_as(r#"{"kid":"k"}"#, &text)),
        ("not allowed", key.token_as(r#"{"alg":"RS1"}"#, &text)),
        (
            "not allowed",
            public.token_as(r#"{"alg":"HS256","kid":"k"}"#, &text),
        ),
        ("not allowed", public.token_as(r#"{"alg":"HS256"}"#, &text)),
        (
            "not allowed",
            public_jwk.token_as(r#"{"alg":"HS256","kid":"k"}"#, &text),
        ),
        // The header says RS256, and the signature is an HMAC with the public key.
        (
            "signature",
            public.token_as(r#"{"alg":"RS256","kid":"k"}"#, &text),
        ),
        (
            "is malformed",
            key.token_as(r#"{"alg":"RS256","kid":"k","crit":["exp"]}"#, &text),
        ),
        (
            "is malformed",
            key.token_as(r#"{"alg":"none","alg":"RS256","kid":"k"}"#, &text),
        ),
        (
            "is malformed",
            key.token_as(r#"{"alg":"RS256","kid":["k"]}"#, &text),
        ),
        ("signature", thief.token(&good)),
        ("unknown key", stranger.token(&good)),
        (
            "unknown key",
            key.token_as(r#"{"alg":"RS256","kid":"k2"}"#, &text),
        ),
        (
            "unknown key",
            key.token_as(r#"{"alg":"RS256","kid":""}"#, &text),
        ),
        // The key that a token brings along is not used.
        (
            "signature",
            thief.token_as(
                &json!({"alg": "ES256", "kid": "k2", "jwk": thief.jwk()}).to_string(),
                &text,
            ),
        ),
        ("has expired", with("exp", json!(now - 61))),
        ("is malformed", with("exp", json!("never"))),
        (
            "has expired",
            key.token(&json!({ "iss": ISSUER, "aud": "pay", "sub": "alice" })),
        ),
        ("not valid yet", with("nbf", json!(now + 120))),
        ("another issuer", with("iss", json!("https://evil.example"))),
        ("another audience", with("aud", json!("reports"))),
        ("claim `sub`", with("sub", json!(null))),
        ("claim `sub`", with("sub", json!(["alice"]))),
        ("claim `sub`", with("sub", json!(true))),
        ("claim `sub`", with("sub", json!(1.5))),
        ("claim `sub`", with("sub", json!(""))),
        (
            "is malformed",
            key.token_as(
                r#"{"alg":"RS256","kid":"k"}"#,
                &text.replacen('{', r#"{"sub":"alice","#, 1),
            ),
        ),
    ];
    for (why, token) in cases {
        check_refused(&pay(&shop, &token).await, why);
    }
    check_refused(&shop.post("/pay", &[KEY], "x").await, "missing");
    let basic = ("authorization", "Basic YWxpY2U6eA==");
    check_refused(&shop.post("/pay", &[KEY, basic], "x").await, "missing");
    let bearer = format!("Bearer {signed}");
    let twice = [KEY, ("authorization", &bearer), ("authorization", &bearer)];
    check_refused(&shop.post("/pay", &twice, "x").await, "twice");
    assert_eq!(
        (shop.effects(), shop.records(StateName::Completed).await),
        (1, 1)
    );

    // The right token still gets its replay, and a request without a key passes.
    assert!(pay(&shop, &signed).await.is_replay());
    assert_eq!(shop.post("/pay", &[], "x").await.status, 201);
}

#[tokio::test]
async fn a_token_that_expires_sees_no_more_replays() {
    let clock = ManualClock::new();
    let key = IssuerKey::es256("k");
    let shop = shop_with(by_subject(|_| {}), fixed(&[&key], &clock));
    let token = key.token(&claims(&clock));
    assert_eq!(pay(&shop, &token).await.status, 201);
    clock.advance(Duration::from_secs(359));
    assert!(pay(&shop, &token).await.is_replay());
    clock.advance(Duration::from_secs(1));
    check_refused(&pay(&shop, &token).await, "has expired");
    let fresh = key.token(&claims(&clock));
    assert!(pay(&shop, &fresh).await.is_replay());
}

#[tokio::test]
async fn callers_have_keys_of_their_own() {
    let clock = ManualClock::new();
    let key = IssuerKey::eddsa("k");
    let keys = KeySet::from_jwks(key_set(&[&key]).as_bytes()).unwrap();
    let settings = ours(JwtKeys::Fixed(keys, Vec::new())).from_issuer("https://second.example");
    let verifier = JwtVerifier::new(settings)
        .unwrap()
        .with_clock(clock.shared());
    let shop = shop_with(by_subject(|_| {}), verifier);
    let mut subjects = Vec::new();
    for issuer in [ISSUER, "https://second.example"] {
        for subject in [json!("a"), json!("b"), json!("7"), json!(7)] {
            let mut claims = claims(&clock);
            claims["iss"] = issuer.into();
            claims["sub"] = subject;
            subjects.push(claims);
        }
    }
    for claims in &subjects {
        assert!(
            !pay(&shop, &key.token(claims)).await.is_replay(),
            "{claims}"
        );
    }
    for claims in &subjects {
        assert!(pay(&shop, &key.token(claims)).await.is_replay(), "{claims}");
    }
    assert_eq!(shop.effects(), subjects.len());
}

#[tokio::test]
async fn a_key_in_the_body_is_claimed_only_with_a_token() {
    let clock = ManualClock::new();
    let key = IssuerKey::es256("k");
    let policy = by_subject(|it| it.key = vec!["body:/id".parse().unwrap()]);
    let shop = shop_with(policy, fixed(&[&key], &clock));
    check_refused(&shop.post("/pay", &[], r#"{"id":"1"}"#).await, "missing");
    assert_eq!(shop.post("/pay", &[], r#"{"no":"key"}"#).await.status, 201);
    let bearer = format!("Bearer {}", key.token(&claims(&clock)));
    let sent = [("authorization", &*bearer)];
    assert_eq!(shop.post("/pay", &sent, r#"{"id":"1"}"#).await.status, 201);
    assert!(shop.post("/pay", &sent, r#"{"id":"1"}"#).await.is_replay());
}

#[tokio::test]
async fn a_token_may_be_in_another_header() {
    let clock = ManualClock::new();
    let key = IssuerKey::es256("k");
    let keys = KeySet::from_jwks(key_set(&[&key]).as_bytes()).unwrap();
    let mut settings = ours(JwtKeys::Fixed(keys, Vec::new()));
    settings.header = "x-id-token".into();
    let verifier = JwtVerifier::new(settings)
        .unwrap()
        .with_clock(clock.shared());
    let shop = shop_with(by_subject(|_| {}), verifier);
    let token = key.token(&claims(&clock));
    check_refused(&pay(&shop, &token).await, "missing");
    assert_eq!(
        shop.post("/pay", &[KEY, ("x-id-token", &token)], "x")
            .await
            .status,
        201
    );
    let bearer = format!("bearer {token}");
    assert!(
        shop.post("/pay", &[KEY, ("x-id-token", &bearer)], "x")
            .await
            .is_replay()
    );
}

#[tokio::test]
async fn an_observed_operation_passes_without_a_token() {
    let clock = ManualClock::new();
    let key = IssuerKey::es256("k");
    let shop = shop_with(
        by_subject(|it| it.mode = Mode::Observe),
        fixed(&[&key], &clock),
    );
    assert_eq!(shop.post("/pay", &[KEY], "x").await.status, 201);
}

#[tokio::test]
async fn without_keys_the_layer_reports_it_and_refuses() {
    let layer = RefrainLayer::new(Engine::new(Memory::new()), by_subject(|_| {}));
    let error = layer.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let shop = shop_behind(layer);
    pay(&shop, "a.b.c")
        .await
        .check_problem(503, "caller-unconfirmed");
    assert_eq!(shop.effects(), 0);
}

#[tokio::test]
async fn settings_that_would_let_tokens_be_forged_are_rejected() {
    let key = IssuerKey::rs256("k");
    let jwks = key_set(&[&key]);
    let public = || KeySet::from_jwks(jwks.as_bytes()).unwrap();
    let secret = || KeySet::from_secret(SECRET).unwrap();
    let with = |keys: JwtKeys, algorithms: &[&str]| {
        let mut settings = ours(keys);
        settings.algorithms = algorithms.iter().map(|it| it.parse().unwrap()).collect();
        settings.check()
    };
    let fixed = |keys| JwtKeys::Fixed(keys, Vec::new());
    for (settings, why) in [
        (
            with(fixed(public()), &["RS256", "HS256"]),
            "the key is public",
        ),
        (
            with(fixed(secret()), &["HS256", "RS256"]),
            "the key is a secret",
        ),
        (
            with(fixed(secret().and(public())), &["RS256"]),
            "the key is a secret",
        ),
        (with(fixed(secret()), &["HS512"]), "at least 64 bytes"),
        (with(fixed(public()), &["ES256"]), "fits none of the keys"),
        (
            with(JwtKeys::Url("https://x/".into()), &["HS256"]),
            "a key set has public keys",
        ),
        (with(fixed(public()), &[]), "is empty"),
        (
            JwtSettings::new(fixed(public())).check(),
            "`audience` is missing",
        ),
    ] {
        let error = settings.unwrap_err().to_string();
        assert!(error.contains(why), "{error} instead of {why}");
    }
    assert!("none".parse::<refrain::jwt::Algorithm>().is_err());
    assert!(KeySet::from_secret("short").is_err());
    // A secret in a key set would be public.
    let symmetric = key_set(&[&IssuerKey::hs256(SECRET.as_bytes())]);
    assert!(KeySet::from_jwks(symmetric.as_bytes()).is_err());
}

/// An issuer whose key set can be changed and withheld.
#[derive(Debug, Clone, Default)]
struct Issuer {
    /// `None` while it cannot be reached.
    keys: Arc<Mutex<Option<String>>>,
    fetches: Arc<AtomicUsize>,
}

impl Issuer {
    fn publish(&self, keys: Option<&[&IssuerKey]>) {
        *self.keys.lock().unwrap() = keys.map(key_set);
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Relaxed)
    }
}

impl JwksFetcher for Issuer {
    fn fetch<'a>(&'a self, url: &'a str) -> FetchedJwks<'a> {
        assert_eq!(url, "https://login.example/jwks");
        self.fetches.fetch_add(1, Relaxed);
        let keys = self.keys.lock().unwrap().clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            let unreachable = || Error::new(ErrorKind::Unavailable, "unreachable");
            keys.map(Bytes::from).ok_or_else(unreachable)
        })
    }
}

fn fetching(issuer: &Issuer, clock: &ManualClock) -> Shop {
    let settings = ours(JwtKeys::Url("https://login.example/jwks".into()));
    let verifier = JwtVerifier::fetching(settings, issuer.clone()).unwrap();
    shop_with(by_subject(|_| {}), verifier.with_clock(clock.shared()))
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_again_when_a_token_names_a_new_one() {
    let (clock, issuer) = (ManualClock::new(), Issuer::default());
    let (old, new) = (IssuerKey::es256("old"), IssuerKey::eddsa("new"));
    issuer.publish(Some(&[&old]));
    let shop = Arc::new(fetching(&issuer, &clock));
    let claims = claims(&clock);
    // A burst of requests shares one fetch.
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let (shop, token) = (shop.clone(), old.token(&claims));
        tasks.push(tokio::spawn(async move { pay(&shop, &token).await.status }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 201);
    }
    assert_eq!((shop.effects(), issuer.fetches()), (1, 1));
    // An unknown key is looked for, and not more often than every ten seconds.
    issuer.publish(Some(&[&new]));
    for _ in 0..50 {
        check_refused(&pay(&shop, &new.token(&claims)).await, "unknown key");
    }
    assert_eq!(issuer.fetches(), 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(pay(&shop, &new.token(&claims)).await.is_replay());
    assert_eq!(issuer.fetches(), 2);
    // The old key was withdrawn.
    tokio::time::advance(Duration::from_secs(10)).await;
    check_refused(&pay(&shop, &old.token(&claims)).await, "unknown key");
    assert_eq!((shop.effects(), issuer.fetches()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn old_keys_are_used_while_the_issuer_is_unreachable_up_to_a_limit() {
    let (clock, issuer) = (ManualClock::new(), Issuer::default());
    let key = IssuerKey::es256("k");
    let shop = fetching(&issuer, &clock);
    let token = key.token(&claims(&clock));
    // Never fetched: it cannot be said whether the token is valid.
    pay(&shop, &token)
        .await
        .check_problem(503, "caller-unconfirmed");
    assert_eq!((shop.effects(), issuer.fetches()), (0, 1));
    issuer.publish(Some(&[&key]));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(pay(&shop, &token).await.status, 201);
    issuer.publish(None);
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(pay(&shop, &token).await.is_replay());
    }
    assert!(issuer.fetches() > 10, "{}", issuer.fetches());
    // An unknown key may be a new one.
    let new = IssuerKey::es256("new").token(&claims(&clock));
    tokio::time::advance(Duration::from_secs(60)).await;
    pay(&shop, &new)
        .await
        .check_problem(503, "caller-unconfirmed");
    tokio::time::advance(Duration::from_secs(4 * 3_600)).await;
    pay(&shop, &token)
        .await
        .check_problem(503, "caller-unconfirmed");
    issuer.publish(Some(&[&key]));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(pay(&shop, &token).await.is_replay());
    assert_eq!(shop.effects(), 1);
}
