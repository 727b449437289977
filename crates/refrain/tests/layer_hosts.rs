//! Two shops behind one Refrain, distinguished by `Host` alone. The same key, body and token at the second shop was
//! answered from the first shop's record.

use axum::body::Body;
use http::Request;
use refrain::{
    Engine, Fingerprint, Intent, Operation, Outcome, Policy, Verdict,
    fingerprint::{Content, Part, RequestView},
    http::extract,
    policy::File,
    store::AnyStore,
};

#[path = "support/shop.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod shop;
use shop::{KEY, Shop, operation, request, shop, shop_on};

fn policy(text: &str) -> Policy {
    File::parse(text, "refrain.toml").unwrap().policy
}

async fn pay(shop: &Shop, host: &str) -> shop::Seen {
    shop.post("/pay", &[KEY, ("host", host)], "x").await
}

#[tokio::test]
async fn the_same_key_on_another_host_is_refused() {
    let shop = shop(Policy::default());
    assert_eq!(pay(&shop, "eu.example").await.status, 201);
    for host in ["us.example", "eu.example:8443", "example", ""] {
        pay(&shop, host).await.check_problem(422, "key-reused");
    }
    let hostless = shop.post("/pay", &[KEY], "x").await;
    hostless.check_problem(422, "key-reused");
    assert_eq!(shop.effects(), 1);
    assert!(pay(&shop, "eu.example").await.is_replay());
}

#[tokio::test]
async fn spellings_of_one_host_are_one_host() {
    let shop = shop(Policy::default());
    assert_eq!(pay(&shop, "eu.example").await.status, 201);
    for host in ["EU.Example", "eu.example:443", "eu.example:80"] {
        assert!(pay(&shop, host).await.is_replay(), "{host}");
    }
}

/// HTTP/2 has the host in its request target, and so has HTTP/1 in absolute form, which takes precedence over `Host`.
#[tokio::test]
async fn the_target_says_the_host_before_the_header_does() {
    let shop = shop(Policy::default());
    assert_eq!(pay(&shop, "eu.example").await.status, 201);
    let at = |target: &str, headers: &[(&str, &str)]| request("POST", target, headers, "x");
    let same = shop.send(at("http://eu.example/pay", &[KEY])).await;
    assert!(same.is_replay(), "{same:?}");
    let other = at("http://us.example/pay", &[KEY, ("host", "eu.example")]);
    shop.send(other).await.check_problem(422, "key-reused");
}

#[tokio::test]
async fn a_policy_can_leave_the_host_out() {
    let texts = [
        "[policy]\nfingerprint.host = false\n",
        "[[operation]]\nmatch = \"POST /pay\"\nfingerprint = { host = false }\n",
        "[policy]\nfingerprint.host = false\n[[operation]]\nmatch = \"POST /pay\"\nfingerprint = [\"path\", \"body\"]\n",
        "[[operation]]\nmatch = \"POST /pay\"\n[operation.fingerprint]\nparts = \"body\"\nhost = false\n",
    ];
    for text in texts {
        let shop = shop(policy(text));
        assert_eq!(pay(&shop, "eu.example").await.status, 201);
        assert!(pay(&shop, "us.example").await.is_replay(), "{text}");
    }
    for text in [
        "[policy]\nfingerprint = [\"body\"]\n",
        "[policy]\nfingerprint.host = true\n",
        "[policy]\nfingerprint.host = false\n[[operation]]\nmatch = \"POST /pay\"\nfingerprint.host = true\n",
    ] {
        let shop = shop(policy(text));
        assert_eq!(pay(&shop, "eu.example").await.status, 201);
        let other = pay(&shop, "us.example").await;
        other.check_problem(422, "key-reused");
    }
}

#[tokio::test]
async fn a_scope_by_host_gives_each_host_keys_of_its_own() {
    let shop = shop(policy(
        "[policy]\nscope = [\"header:host\", \"credential\"]\n",
    ));
    assert_eq!(pay(&shop, "eu.example").await.status, 201);
    let other = pay(&shop, "us.example").await;
    assert_eq!((other.status, other.is_replay()), (201, false));
    assert_eq!(shop.effects(), 2);
    assert!(pay(&shop, "US.example:443").await.is_replay());
    let target = request("POST", "http://us.example/pay", &[KEY], "x");
    assert!(shop.send(target).await.is_replay());
}

/// The intent that the previous release made of a request.
fn earlier_intent(engine: &Engine, request: &Request<Body>, body: &str) -> Intent {
    let secret = engine.secret();
    let headers = request.headers();
    let none = |_: &str| None;
    let operation = Operation::default();
    let input = extract::ScopeInput {
        secret,
        headers,
        host: None,
        credential: &operation.credential,
        certificate: None,
        claims: None,
    };
    let scope = extract::scope(&operation.scope, &input, "", none).unwrap();
    let content = Content::new(None, body.as_bytes());
    let view = RequestView {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: None,
        host: None,
        headers,
        content: &content,
    };
    let parts = [Part::Method, Part::Path, Part::Query, Part::Body];
    let mut intent = Intent::new(scope, refrain::Key::new(KEY.1).unwrap());
    intent.fingerprint = Fingerprint::of(secret, &parts, &view);
    intent.credential = Some(extract::credential(
        &operation.credential,
        secret,
        headers,
        None,
    ));
    intent
}

/// Records that outlive a process, so they may be those of a previous release.
async fn kept() -> (tempfile::TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file:{}", folder.path().join("records").display());
    let store = AnyStore::open(&address).await.unwrap();
    (folder, Engine::new(store))
}

/// After an upgrade, retries of requests that ran before it must not be rejected.
#[tokio::test]
async fn records_of_earlier_versions_answer_their_retries() {
    for parts in [
        "",
        "[policy]\nfingerprint = [\"method\", \"path\", \"query\", \"body\"]",
    ] {
        let (_folder, engine) = kept().await;
        let shop = shop_on(policy(parts), engine.clone());
        let retry = || request("POST", "/pay", &[KEY, ("host", "eu.example")], "x");
        let intent = earlier_intent(&engine, &retry(), "x");
        let Verdict::Granted(guard) = engine.claim(&intent).await.unwrap() else {
            panic!("not granted");
        };
        let running = guard.start();
        let settled = running.complete(Outcome::new(201, "paid")).await;
        assert_eq!(settled.unwrap(), refrain::Settled::Applied);
        let again = shop.send(retry()).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(&again.body[..], b"paid");
        let other = shop.post("/pay", &[KEY, ("host", "eu.example")], "y").await;
        other.check_problem(422, "key-reused");
        assert_eq!(shop.effects(), 0);
        let counted = engine.tally().get(refrain::engine::Count::Mismatch);
        assert_eq!(counted, 1, "the refusal must be counted once");
    }
}

/// A duplicate waits for the request in flight, whichever release claimed it.
#[tokio::test]
async fn a_run_of_an_earlier_version_is_waited_for() {
    let (_folder, engine) = kept().await;
    let shop = shop_on(
        operation(|it| it.terms.wait = std::time::Duration::ZERO),
        engine.clone(),
    );
    let retry = || request("POST", "/pay", &[KEY, ("host", "eu.example")], "x");
    let intent = earlier_intent(&engine, &retry(), "x");
    let Verdict::Granted(guard) = engine.claim(&intent).await.unwrap() else {
        panic!("not granted");
    };
    let _running = guard.start();
    shop.send(retry()).await.check_problem(409, "in-flight");
    assert_eq!(shop.effects(), 0);
}
