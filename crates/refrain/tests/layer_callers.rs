//! Two customers whose API keys differ must not share idempotency keys; a customer who was already known before an upgrade
//! must not be charged again after it; and a caller who has lost access must not see a replay any more.

use std::sync::{Arc, Mutex};

use axum::{Router, response::IntoResponse as _};
use http::{HeaderMap, Request, StatusCode};
use refrain::{
    Engine, Fingerprint, Intent, Key, Operation, Outcome, Policy, Verdict,
    fingerprint::{Content, Part, RequestView},
    http::{RefrainLayer, extract},
    key::CredentialPart,
    policy::ReplayTo,
    store::{AnyStore, Memory, StateName},
};

#[path = "support/shop.rs"]
#[allow(dead_code, reason = "no test file needs all of it")]
mod shop;
use shop::{KEY, Shop, operation, shop, shop_behind, shop_on};

const ANNA: (&str, &str) = ("x-api-key", "anna");
const BERT: (&str, &str) = ("x-api-key", "bert");

#[tokio::test]
async fn callers_with_different_api_keys_do_not_share_keys() {
    let shop = shop(Policy::default());
    for caller in [ANNA, BERT] {
        assert!(!shop.post("/pay", &[KEY, caller], "x").await.is_replay());
        assert!(shop.post("/pay", &[KEY, caller], "x").await.is_replay());
        // Another request under the key of one caller says nothing about the other.
        let other = shop.post("/pay", &[KEY, caller], "y").await;
        other.check_problem(422, "key-reused");
    }
    assert_eq!(shop.effects(), 2);
}

#[tokio::test]
async fn a_session_cookie_separates_callers_where_the_policy_names_it() {
    let shop = shop(operation(|it| {
        it.credential = vec!["cookie:session".parse().unwrap()];
    }));
    for session in ["session=a; theme=1", "session=b; theme=1"] {
        let sent = [KEY, ("cookie", session)];
        assert!(
            !shop.post("/pay", &sent, "x").await.is_replay(),
            "{session}"
        );
    }
    let later = [KEY, ("cookie", "theme=2; session=a")];
    assert!(shop.post("/pay", &later, "x").await.is_replay());
    assert_eq!(shop.effects(), 2);
}

#[tokio::test]
async fn changing_cookies_never_make_a_retry_execute_again() {
    let shop = shop(Policy::default());
    shop.post("/pay", &[KEY, ("cookie", "csrf=1")], "x").await;
    let again = shop.post("/pay", &[KEY, ("cookie", "csrf=2")], "x").await;
    again.check_problem(409, "credential-changed");
    assert_eq!(shop.effects(), 1);
}

/// The intent that earlier versions made of a request: of all sources, they knew `Authorization` alone.
fn earlier_intent(engine: &Engine, headers: &[(&str, &str)], body: &str) -> Intent {
    let secret = engine.secret();
    let operation = Operation::default();
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).unwrap();
    let input = extract::ScopeInput {
        secret,
        headers: request.headers(),
        host: None,
        credential: &["header:Authorization".parse::<CredentialPart>().unwrap()],
        certificate: None,
        claims: None,
    };
    let scope = extract::scope(&operation.scope, &input, "", |_| None).unwrap();
    let content = Content::new(None, body.as_bytes());
    let view = RequestView {
        method: "POST",
        path: "/pay",
        query: None,
        host: None,
        headers: request.headers(),
        content: &content,
    };
    let parts = [Part::Method, Part::Path, Part::Query, Part::Body];
    let mut intent = Intent::new(scope, Key::new(KEY.1).unwrap());
    intent.fingerprint = Fingerprint::of(secret, &parts, &view);
    intent.credential = Some(extract::credential(
        &operation.credential,
        secret,
        request.headers(),
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

#[tokio::test]
async fn a_retry_across_the_upgrade_gets_its_replay_and_nobody_else_does() {
    let (_folder, engine) = kept().await;
    let intent = earlier_intent(&engine, &[ANNA], "x");
    let Verdict::Granted(guard) = engine.claim(&intent).await.unwrap() else {
        panic!("not granted");
    };
    let running = guard.start();
    let settled = running.complete(Outcome::new(201, "paid")).await;
    assert_eq!(settled.unwrap(), refrain::Settled::Applied);

    let shop = shop_on(Policy::default(), engine);
    // Another caller with the same key has a request of its own.
    let bert = shop.post("/pay", &[KEY, BERT], "x").await;
    assert_eq!((bert.status, bert.is_replay()), (201, false));
    let anna = shop.post("/pay", &[KEY, ANNA], "x").await;
    assert!(anna.is_replay(), "{anna:?}");
    assert_eq!(&anna.body[..], b"paid");
    let reused = shop.post("/pay", &[KEY, ANNA], "y").await;
    reused.check_problem(422, "key-reused");
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn a_run_that_began_before_the_upgrade_is_not_run_again() {
    let (_folder, engine) = kept().await;
    let intent = earlier_intent(&engine, &[ANNA], "x");
    let Verdict::Granted(guard) = engine.claim(&intent).await.unwrap() else {
        panic!("not granted");
    };
    let _running = guard.start();
    let policy = operation(|it| it.terms.wait = std::time::Duration::ZERO);
    let shop = shop_on(policy, engine);
    let anna = shop.post("/pay", &[KEY, ANNA], "x").await;
    anna.check_problem(409, "in-flight");
    assert_eq!(shop.effects(), 0);
}

/// A service that answers `/me` by the header `may`, and notes who asked.
#[derive(Clone, Default)]
struct Gatekeeper {
    asked: Arc<Mutex<Vec<(String, HeaderMap)>>>,
}

impl Gatekeeper {
    fn routes(&self) -> Router {
        let asked = self.asked.clone();
        Router::new().fallback(async move |request: axum::extract::Request| {
            let (head, _) = request.into_parts();
            assert_eq!(head.method, "GET");
            let answer = match head.headers.get("authorization").map(|it| it.as_bytes()) {
                Some(b"Bearer revoked") => {
                    let challenge = [
                        ("www-authenticate", "Bearer realm=us"),
                        ("refrain-outcome", "keep"),
                    ];
                    (
                        StatusCode::UNAUTHORIZED,
                        challenge,
                        "revoked, says the upstream",
                    )
                        .into_response()
                }
                Some(b"Bearer forbidden") => (StatusCode::FORBIDDEN, "forbidden").into_response(),
                Some(b"Bearer lost") => {
                    (StatusCode::FOUND, [("location", "/login")]).into_response()
                }
                Some(b"Bearer broken") => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                Some(b"Bearer hanging") => std::future::pending().await,
                _ => "you".into_response(),
            };
            let target = head.uri.to_string();
            asked.lock().unwrap().push((target, head.headers));
            answer
        })
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// A shop whose callers share one scope, and whose replays the gatekeeper allows.
fn guarded(change: impl FnOnce(&mut Operation)) -> (Shop, Gatekeeper) {
    let gatekeeper = Gatekeeper::default();
    let policy = operation(|it| {
        it.scope = vec!["header:x-tenant".parse().unwrap()];
        it.replay_probe = Some("GET /me".parse().unwrap());
        change(it);
    });
    let layer = RefrainLayer::new(Engine::new(Memory::new()), policy);
    assert!(layer.check().is_err(), "without a service that answers");
    let layer = layer.with_probes(gatekeeper.routes());
    layer.check().unwrap();
    (shop_behind(layer), gatekeeper)
}

#[tokio::test]
async fn the_upstream_decides_who_sees_a_replay() {
    for replay_to in [ReplayTo::SameCredential, ReplayTo::SameScope] {
        let (shop, gatekeeper) = guarded(|it| it.replay_to = replay_to);
        let send = async |token: &str, body: &'static str| {
            let token = format!("Bearer {token}");
            let headers = [
                KEY,
                ("authorization", &*token),
                ("x-tenant", "acme"),
                ("content-type", "text/plain"),
            ];
            shop.post("/pay", &headers, body).await
        };
        assert_eq!(send("first", "x").await.status, 201);
        assert_eq!(
            gatekeeper.count(),
            0,
            "the first request needs nobody's permission"
        );
        // The same credential, and a newer one of the same tenant.
        for (at, token) in ["first", "rotated", "first"].into_iter().enumerate() {
            assert!(send(token, "x").await.is_replay(), "{token}");
            assert_eq!(gatekeeper.count(), at + 1, "each duplicate is asked about");
        }
        let (target, headers) = gatekeeper.asked.lock().unwrap()[1].clone();
        assert_eq!(
            (&*target, &headers["authorization"]),
            (
                "/me",
                &"Bearer rotated".parse::<http::HeaderValue>().unwrap()
            )
        );
        assert!(!headers.contains_key("content-type"));

        let revoked = send("revoked", "x").await;
        assert_eq!(
            (revoked.status, &revoked.body[..]),
            (401, &b"revoked, says the upstream"[..])
        );
        assert_eq!(revoked.header("www-authenticate"), Some("Bearer realm=us"));
        assert_eq!(revoked.header("refrain-outcome"), None);
        assert!(!revoked.is_replay() && revoked.header("location").is_none());
        assert_eq!(send("forbidden", "x").await.status, 403);
        for token in ["lost", "broken"] {
            let refused = send(token, "x").await;
            refused.check_problem(503, "caller-unconfirmed");
            assert_eq!(refused.header("location"), None, "{token}");
        }
        // An allowed caller with another request is told so.
        send("rotated", "y").await.check_problem(422, "key-reused");
        assert_eq!(
            (shop.effects(), shop.records(StateName::Completed).await),
            (1, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_answer_allows_nothing() {
    let (shop, _) = guarded(|_| {});
    let sent = [KEY, ("authorization", "Bearer hanging")];
    assert_eq!(shop.post("/pay", &sent, "x").await.status, 201);
    let refused = shop.post("/pay", &sent, "x").await;
    refused.check_problem(503, "caller-unconfirmed");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn duplicates_that_waited_are_asked_about_one_by_one() {
    let (shop, gatekeeper) = guarded(|_| {});
    let shop = Arc::new(shop);
    let mut tasks = Vec::new();
    for token in ["Bearer first"; 4]
        .into_iter()
        .chain(["Bearer rotated"; 3])
        .chain(["Bearer revoked"; 3])
    {
        let (sent, after) = (shop.clone(), shop.engine.running());
        tasks.push(tokio::spawn(async move {
            sent.post("/slow", &[KEY, ("authorization", token)], "x")
                .await
        }));
        if after == 0 {
            refrain_testkit::wait::until("the first one runs", async || shop.engine.running() == 1)
                .await;
        }
    }
    let tally = shop.engine.tally();
    refrain_testkit::wait::until("the allowed ones wait", async || tally.waiting_now() == 6).await;
    shop.gate.add_permits(1);
    let mut statuses = Vec::new();
    for task in tasks {
        let seen = task.await.unwrap();
        assert!(seen.status != 401 || !seen.is_replay());
        statuses.push(seen.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 401, 401, 401]);
    assert_eq!((shop.effects(), gatekeeper.count()), (1, 9));
}

#[tokio::test]
async fn a_replay_probe_names_key_path_and_record() {
    let gatekeeper = Gatekeeper::default();
    let mut operation = Operation::new("POST /{shop}").unwrap();
    operation.replay_probe = Some("GET /{shop}/may?key={key}&record={record}".parse().unwrap());
    let layer = RefrainLayer::new(
        Engine::new(Memory::new()),
        Policy::new(vec![operation]).unwrap(),
    );
    let shop = shop_behind(layer.with_probes(gatekeeper.routes()));
    let first = shop.post("/pay", &[("idempotency-key", "a/b")], "x").await;
    let record = first.header("refrain-record").unwrap();
    assert!(
        shop.post("/pay", &[("idempotency-key", "a/b")], "x")
            .await
            .is_replay()
    );
    let (target, _) = gatekeeper.asked.lock().unwrap()[0].clone();
    assert_eq!(target, format!("/pay/may?key=a%2Fb&record={record}"));
}
