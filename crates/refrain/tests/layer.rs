//! What an HTTP client gets: every row of the contract's table that concerns the layer, through axum with in-process
//! requests. Real connections are in `layer_wire.rs`, failing stores and probes in `layer_faults.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::post};
use refrain::{
    Engine, Guarantee, Operation, Policy, Terms,
    engine::Count,
    http::{Code, RefrainLayer},
    policy::{Class, Mode},
    store::{Memory, StateName},
};
use tower_layer::Layer as _;
use tower_service::Service;

#[path = "support/shop.rs"]
mod shop;
use shop::{KEY, operation, request, shop, shop_on};

#[tokio::test]
async fn a_duplicate_gets_the_first_answer_to_the_byte_and_nothing_runs() {
    let shop = shop(Policy::default());
    let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let first = shop.post("/pay", &[KEY], binary.clone()).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(
        first.header("set-cookie"),
        Some("session=secret"),
        "the first answer is unchanged"
    );
    let again = shop.post("/pay", &[KEY], binary.clone()).await;
    assert_eq!((again.status, &again.body[..]), (201, &binary[..]));
    assert!(again.is_replay());
    assert_eq!(again.header("location"), Some("/pay/1"));
    assert_eq!(
        again.header("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(again.header("cache-control"), Some("no-store"));
    assert_eq!(again.header("set-cookie"), None);
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn quoted_and_bare_are_one_key() {
    let shop = shop(Policy::default());
    shop.post("/pay", &[("idempotency-key", "\"abc\"")], "x")
        .await;
    assert!(
        shop.post("/pay", &[("idempotency-key", "abc")], "x")
            .await
            .is_replay()
    );
}

#[tokio::test]
async fn member_order_and_white_space_make_no_other_request() {
    let shop = shop(Policy::default());
    let json = ("content-type", "application/json");
    shop.post("/pay", &[KEY, json], r#"{"a":1,"b":2}"#).await;
    assert!(
        shop.post("/pay", &[KEY, json], r#"{ "b":2, "a":1 }"#)
            .await
            .is_replay()
    );
    let other = shop.post("/pay", &[KEY, json], r#"{"a":1.0,"b":2}"#).await;
    other.check_problem(422, "key-reused");
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused() {
    let shop = shop(Policy::new(vec![Operation::new("* *").unwrap()]).unwrap());
    shop.send(request("POST", "/pay?amount=1", &[KEY], "x"))
        .await;
    for (method, path, body) in [
        ("POST", "/pay?amount=1", "y"),
        ("POST", "/pay?amount=999", "x"),
        ("POST", "/slow?amount=1", "x"),
        ("PUT", "/pay?amount=1", "x"),
    ] {
        let seen = shop.send(request(method, path, &[KEY], body)).await;
        seen.check_problem(422, "key-reused");
    }
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn keys_that_are_missing_or_malformed_are_refused() {
    let shop = shop(operation(|it| it.required = true));
    shop.post("/pay", &[], "x")
        .await
        .check_problem(400, "key-missing");
    let long = "k".repeat(256);
    for key in ["", "two words", "\"open", &long] {
        shop.post("/pay", &[("idempotency-key", key)], "x")
            .await
            .check_problem(400, "key-invalid");
    }
    let twice = [KEY, ("idempotency-key", "k-2")];
    shop.post("/pay", &twice, "x")
        .await
        .check_problem(400, "key-invalid");
    let mut foreign = request("POST", "/pay", &[], "x");
    foreign.headers_mut().insert(
        "idempotency-key",
        http::HeaderValue::from_bytes(b"k\xff").unwrap(),
    );
    shop.send(foreign).await.check_problem(400, "key-invalid");
    assert_eq!(shop.effects(), 0);
}

#[tokio::test]
async fn fifty_duplicates_at_once_run_once_and_get_one_answer() {
    let shop = Arc::new(shop(Policy::default()));
    let mut tasks = Vec::new();
    for _ in 0..50 {
        let shop = shop.clone();
        tasks.push(tokio::spawn(async move {
            shop.post("/slow", &[KEY], "x").await
        }));
    }
    while shop.engine.tally().waiting_now() < 49 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shop.gate.add_permits(1);
    let mut fresh = 0;
    for task in tasks {
        let seen = task.await.unwrap();
        assert_eq!((seen.status, &seen.body[..]), (200, &b"1 x"[..]));
        fresh += usize::from(!seen.is_replay());
    }
    assert_eq!((fresh, shop.effects()), (1, 1));
}

#[tokio::test]
async fn wait_timeout_returns_in_flight() {
    let shop = Arc::new(shop(operation(|it| {
        it.terms.wait = Duration::from_millis(20);
    })));
    let first = tokio::spawn({
        let shop = shop.clone();
        async move { shop.post("/slow", &[KEY], "x").await }
    });
    while shop.records(StateName::InFlight).await == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = shop.post("/slow", &[KEY], "x").await;
    second.check_problem(409, "in-flight");
    assert!(
        second
            .header("retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 1
    );
    // While the first is in flight, too, a different request is rejected.
    shop.post("/slow", &[KEY], "y")
        .await
        .check_problem(422, "key-reused");
    shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    assert!(shop.post("/slow", &[KEY], "x").await.is_replay());
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing() {
    let shop = Arc::new(shop(Policy::default()));
    let gone =
        tokio::time::timeout(Duration::from_millis(20), shop.post("/slow", &[KEY], "x")).await;
    assert!(gone.is_err());
    shop.gate.add_permits(1);
    let again = shop.post("/slow", &[KEY], "x").await;
    assert_eq!((again.status, shop.effects()), (200, 1));
    assert!(again.is_replay());
}

#[tokio::test]
async fn a_panic_leaves_doubt_and_a_living_service() {
    let shop = shop(Policy::default());
    let how = ("how", "panic");
    shop.post("/fail", &[KEY, how], "x")
        .await
        .check_problem(502, "outcome-unknown");
    let again = shop.post("/fail", &[KEY, how], "x").await;
    again.check_problem(409, "outcome-unknown");
    assert_eq!(again.header("retry-after"), None);
    assert_eq!(
        shop.post("/pay", &[("idempotency-key", "k-2")], "x")
            .await
            .status,
        201
    );
}

#[tokio::test]
async fn a_broken_answer_leaves_doubt() {
    let shop = shop(Policy::default());
    shop.post("/cut", &[KEY], "x")
        .await
        .check_problem(502, "outcome-unknown");
    shop.post("/cut", &[KEY], "x")
        .await
        .check_problem(409, "outcome-unknown");
    let reset = [("idempotency-key", "k-2"), ("how", "reset")];
    shop.post("/fail", &reset, "x")
        .await
        .check_problem(502, "outcome-unknown");
    shop.post("/fail", &reset, "x")
        .await
        .check_problem(409, "outcome-unknown");
}

#[tokio::test]
async fn probe_without_a_probe_service_sends_nothing() {
    let shop = shop(operation(|it| {
        it.probe = Some("GET /fail?key={key}".parse().unwrap());
        it.terms.timeout = Duration::from_secs(1);
        it.terms.settle_after = Duration::from_secs(1);
    }));
    let reset = [KEY, ("how", "reset")];
    shop.post("/fail", &reset, "x")
        .await
        .check_problem(502, "outcome-unknown");
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    // With axum the guarded service is the handler itself: a probe of it would execute again.
    shop.post("/fail", &reset, "x")
        .await
        .check_problem(409, "outcome-unknown");
    assert_eq!(shop.records(StateName::Indeterminate).await, 1);
}

#[tokio::test]
async fn unsent_request_releases_its_key() {
    let shop = shop(Policy::default());
    let how = ("how", "not-sent");
    for _ in 0..2 {
        shop.post("/fail", &[KEY, how], "x")
            .await
            .check_problem(502, "upstream-unreachable");
    }
    assert_eq!(shop.records(StateName::Indeterminate).await, 0);
}

#[tokio::test]
async fn a_slow_answer_is_unknown_first_and_the_truth_later() {
    let shop = shop(operation(|it| it.terms.timeout = Duration::from_millis(20)));
    shop.post("/slow", &[KEY], "x")
        .await
        .check_problem(504, "outcome-unknown");
    shop.post("/slow", &[KEY], "x")
        .await
        .check_problem(409, "outcome-unknown");
    shop.gate.add_permits(1);
    while shop.records(StateName::Completed).await == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let again = shop.post("/slow", &[KEY], "x").await;
    assert_eq!((again.status, shop.effects()), (200, 1));
}

#[tokio::test]
async fn answers_are_kept_or_free_the_key_as_the_contract_says() {
    let at_least = || operation(|it| it.terms.guarantee = Guarantee::AtLeastOnce);
    let cases: [(Policy, &str, bool); 10] = [
        (Policy::default(), "200", true),
        (Policy::default(), "302", true),
        (Policy::default(), "402", true),
        (Policy::default(), "500", true),
        (Policy::default(), "401", false),
        (Policy::default(), "429", false),
        (at_least(), "201", true),
        (at_least(), "402", false),
        (at_least(), "503", false),
        (
            operation(|it| it.release = vec!["5xx".parse().unwrap()]),
            "500",
            false,
        ),
    ];
    for (policy, status, is_kept) in cases {
        let shop = shop(policy);
        for _ in 0..2 {
            let seen = shop.post("/pay", &[KEY, ("want", status)], "x").await;
            assert_eq!(seen.status.to_string(), status);
        }
        assert_eq!(shop.effects(), if is_kept { 1 } else { 2 }, "{status}");
    }
}

#[tokio::test]
async fn the_operation_may_overrule_the_policy_without_the_client_seeing_it() {
    for (status, said, is_kept) in [("500", "release", false), ("429", "keep", true)] {
        let shop = shop(Policy::default());
        for _ in 0..2 {
            let seen = shop
                .post("/pay", &[KEY, ("want", status), ("say", said)], "x")
                .await;
            assert_eq!(
                (
                    seen.status.to_string().as_str(),
                    seen.header("refrain-outcome")
                ),
                (status, None)
            );
        }
        assert_eq!(shop.effects(), if is_kept { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_refused_burst_costs_one_request() {
    let policy = operation(|it| it.release = vec!["2xx".parse().unwrap()]);
    let shop = Arc::new(shop(policy));
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let shop = shop.clone();
        tasks.push(tokio::spawn(async move {
            shop.post("/slow", &[KEY], "x").await
        }));
    }
    while shop.engine.tally().waiting_now() < 19 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shop.gate.add_permits(1);
    for task in tasks {
        let seen = task.await.unwrap();
        assert_eq!((&seen.body[..], seen.is_replay()), (&b"1 x"[..], false));
    }
    assert_eq!(shop.effects(), 1);
    shop.gate.add_permits(1);
    assert_eq!(
        &shop.post("/slow", &[KEY], "x").await.body[..],
        b"2 x",
        "nothing was stored"
    );
}

#[tokio::test]
async fn a_body_over_the_cap_reaches_the_first_caller_and_is_never_run_again() {
    let shop = shop(operation(|it| it.outcome_bytes_max = 1_000));
    let first = shop.post("/large", &[KEY], "x").await;
    assert_eq!((first.status, first.body.len()), (200, 5_000));
    let again = shop.post("/large", &[KEY], "x").await;
    again.check_problem(409, "body-not-kept");
    assert_eq!(again.header("location"), Some("/large/1"));
    let json: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!(json["original_status"], 200);
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn a_request_over_the_cap_is_refused() {
    let shop = shop(operation(|it| it.request_bytes_max = 1_000));
    shop.post("/pay", &[KEY], vec![0; 1_001])
        .await
        .check_problem(413, "request-too-large");
    assert_eq!(shop.post("/pay", &[KEY], vec![0; 1_000]).await.status, 201);
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn after_retention_the_key_is_refused() {
    let terms = Terms {
        retention: Duration::from_secs(1),
        ..Terms::default()
    };
    let shop = shop(operation(|it| it.terms = terms));
    shop.post("/pay", &[KEY], "x").await;
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    shop.post("/pay", &[KEY], "x")
        .await
        .check_problem(410, "key-expired");
    shop.post("/pay", &[KEY], "y")
        .await
        .check_problem(422, "key-reused");
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn another_credential_sees_nothing_of_it() {
    let shop = shop(operation(|it| it.scope = vec!["none".parse().unwrap()]));
    let (alice, bob) = (("authorization", "Bearer a"), ("authorization", "Bearer b"));
    shop.post("/pay", &[KEY, alice], "x").await;
    shop.post("/pay", &[KEY, bob], "x")
        .await
        .check_problem(409, "credential-changed");
    shop.post("/pay", &[KEY], "x")
        .await
        .check_problem(409, "credential-changed");
    // The credential is checked before the fingerprint.
    shop.post("/pay", &[KEY, bob], "y")
        .await
        .check_problem(409, "credential-changed");
    assert!(shop.post("/pay", &[KEY, alice], "x").await.is_replay());
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn callers_do_not_share_keys_unless_the_scope_says_so() {
    let shop = shop(Policy::default());
    let (alice, bob) = (
        ("authorization", "Basic YWxpY2U6MQ=="),
        ("authorization", "Basic Ym9iOjE="),
    );
    shop.post("/pay", &[KEY, alice], "x").await;
    let other = shop.post("/pay", &[KEY, bob], "other").await;
    assert_eq!(
        (other.status, other.is_replay(), shop.effects()),
        (201, false, 2)
    );
}

#[tokio::test]
async fn a_scope_of_ones_own_replaces_the_policys() {
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = effects.clone();
    let router = Router::new().route(
        "/pay",
        post(async move || {
            counted.fetch_add(1, Ordering::SeqCst);
            "paid"
        }),
    );
    let layer = RefrainLayer::new(
        Engine::new(Memory::new()),
        operation(|it| it.credential = vec!["header:x-user".parse().unwrap()]),
    )
    .with_scope(|head| refrain::Scope::none().with("tenant", head.headers["x-tenant"].as_bytes()));
    let app = layer.layer(router);
    for (tenant, expected) in [("a", 1), ("a", 1), ("b", 2)] {
        let request = request("POST", "/pay", &[KEY, ("x-tenant", tenant)], "x");
        app.clone().call(request).await.unwrap();
        assert_eq!(effects.load(Ordering::SeqCst), expected);
    }
}

#[tokio::test]
async fn the_handler_gets_fence_and_attempt() {
    let shop = shop(Policy::default());
    let seen = shop
        .post("/fence", &[KEY, ("refrain-attempt", "99")], "x")
        .await;
    let text = String::from_utf8(seen.body.to_vec()).unwrap();
    assert!(text.ends_with(" 1"), "{text}");
}

#[tokio::test]
async fn unguarded_requests_are_left_alone() {
    let shop = shop(Policy::default());
    for (method, headers) in [("GET", &[KEY][..]), ("PUT", &[KEY]), ("POST", &[])] {
        for _ in 0..2 {
            let seen = shop.send(request(method, "/pay", headers, "x")).await;
            assert_eq!((seen.status, seen.is_replay()), (201, false));
            assert_eq!(seen.header("set-cookie"), Some("session=secret"));
        }
    }
    assert_eq!(shop.effects(), 6);
    assert_eq!(shop.records(StateName::Completed).await, 0);
}

#[tokio::test]
async fn observing_changes_nothing_and_counts() {
    let shop = shop(operation(|it| it.mode = Mode::Observe));
    for _ in 0..3 {
        let seen = shop.post("/pay", &[KEY], "x").await;
        assert_eq!((seen.status, seen.is_replay()), (201, false));
    }
    assert_eq!(shop.post("/pay", &[KEY], "y").await.status, 201);
    assert_eq!(shop.effects(), 4);
    // Counted in a background task, which may take a moment.
    let tally = shop.engine.tally();
    let counts = || [Count::Granted, Count::Replayed, Count::Mismatch].map(|it| tally.get(it));
    while counts().iter().sum::<u64>() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(counts(), [1, 2, 1]);
}

#[tokio::test]
async fn a_store_without_room_refuses_and_runs_nothing() {
    let full = || {
        Engine::new(Memory::with_options(
            0,
            Arc::new(refrain::clock::SystemClock),
        ))
    };
    let refusing = shop_on(Policy::default(), full());
    let seen = refusing.post("/pay", &[KEY], "x").await;
    seen.check_problem(503, "store-unavailable");
    assert!(seen.header("retry-after").is_some());
    assert_eq!(refusing.effects(), 0);

    let pass = operation(|it| it.on_store_failure = refrain::policy::OnStoreFailure::Pass);
    let passing = shop_on(pass, full());
    assert_eq!(passing.post("/pay", &[KEY], "x").await.status, 201);
    assert_eq!(passing.effects(), 1);
    assert_eq!(passing.engine.tally().get(Count::Unguarded), 1);
}

#[tokio::test]
async fn monetary_operations_need_a_key() {
    let pay = Operation::new("POST /pay")
        .unwrap()
        .with_class(Class::Monetary);
    let shop = shop(Policy::default().with(pay).unwrap());
    shop.post("/pay", &[], "x")
        .await
        .check_problem(400, "key-missing");
    shop.post("//pay", &[], "x")
        .await
        .check_problem(400, "key-missing");
    assert_eq!(
        shop.post("/large", &[], "x").await.status,
        200,
        "other operations need no key"
    );
}

#[tokio::test]
async fn every_problem_has_its_page() {
    let shop = shop(Policy::default());
    for code in Code::ALL {
        let path = format!("/.well-known/refrain/problems/{}", code.code());
        let seen = shop.send(request("GET", &path, &[], "")).await;
        assert_eq!(seen.status, 200);
        assert!(
            String::from_utf8_lossy(&seen.body).contains(code.code()),
            "{path}"
        );
    }
}

/// A browser that follows the link of a problem would otherwise show raw Markdown, or download it.
#[tokio::test]
async fn browsers_get_pages_in_html_and_others_in_markdown() {
    let shop = shop(Policy::default());
    let browser = [("accept", "text/html,application/xml;q=0.9,*/*;q=0.8")];
    let base = "/.well-known/refrain/problems/";
    for (name, has_link) in [("", false), ("in-flight", true)] {
        for (accept, media_type) in [
            (&browser[..], "text/html; charset=utf-8"),
            (&[("accept", "*/*")], "text/markdown; charset=utf-8"),
            (&[], "text/markdown; charset=utf-8"),
        ] {
            let path = format!("{base}{name}");
            let seen = shop.send(request("GET", &path, accept, "")).await;
            assert_eq!(seen.status, 200, "{path}");
            assert_eq!(seen.headers["content-type"], media_type);
            assert_eq!(seen.headers["vary"], "Accept");
            let is_html = media_type.starts_with("text/html");
            let text = String::from_utf8(seen.body.to_vec()).unwrap();
            assert_eq!(text.starts_with("<!doctype html>"), is_html, "{text}");
            assert_eq!(text.contains("All problems"), is_html && has_link);
            assert!(!text.contains("<script"));
            let policy = seen.headers.get("content-security-policy");
            assert_eq!(policy.is_some(), is_html);
            let head = shop.send(request("HEAD", &path, accept, "")).await;
            assert_eq!(head.headers["content-type"], media_type);
            let len = head.headers["content-length"].to_str().unwrap();
            assert_eq!((head.body.len(), len), (0, &text.len().to_string()[..]));
        }
    }
    // Other names, other methods and the root of a service are the service's own.
    let none = shop.send(request("GET", &format!("{base}none"), &browser, ""));
    assert_eq!(none.await.status, 404);
    let posted = shop.send(request("POST", base, &browser, ""));
    assert_ne!(posted.await.status, 200);
}
