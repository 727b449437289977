//! axum's `Router::nest` removes the prefix from the path before the layer sees it. One layer inside of two nests
//! answered `POST /us/pay` with the record of `POST /eu/pay`, so the former never ran, and a rule for `/named/pay`
//! inside of `nest("/named")` was silently disabled.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{OriginalUri, Request},
    routing::post,
};
use http::{Response, Uri, request::Parts};
use refrain::{
    Engine, Key, Operation, Policy,
    http::{Code, RefrainLayer},
    store::Memory,
};
use tower_layer::Layer as _;
use tower_service::Service as _;

fn layer(policy: Policy) -> RefrainLayer {
    RefrainLayer::new(Engine::new(Memory::new()), policy)
}

/// Responds with the number of the request, the original path and the path that its handler sees.
fn pay(effects: &Arc<AtomicUsize>) -> axum::routing::MethodRouter {
    let effects = effects.clone();
    post(async move |OriginalUri(whole): OriginalUri, uri: Uri| {
        let number = effects.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{number} {whole} {uri}")
    })
}

fn request(path: &str, key: Option<&str>) -> Request {
    let mut request = Request::builder().method("POST").uri(path);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from("5")).unwrap()
}

async fn send(app: &Router, request: Request) -> (u16, bool, String) {
    let response: Response<Body> = app.clone().call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let is_replay = head.headers.contains_key("idempotent-replayed");
    let body = String::from_utf8(body.to_vec()).unwrap();
    (head.status.as_u16(), is_replay, body)
}

async fn post_to(app: &Router, path: &str, key: &str) -> (u16, bool, String) {
    send(app, request(path, Some(key))).await
}

/// The policy that requires a key for `/named/pay`, and for nothing else.
fn named() -> Policy {
    let mut named = Operation::new("POST /named/pay").unwrap();
    named.required = true;
    Policy::default().with(named).unwrap()
}

/// Every way in which axum puts a layer around a route below a prefix.
fn placed(layer: &RefrainLayer, effects: &Arc<AtomicUsize>) -> Vec<(&'static str, Router)> {
    let routes = || Router::new().route("/pay", pay(effects));
    let guarded = || routes().layer(layer.clone());
    let fallback = Router::new()
        .fallback_service(pay(effects))
        .layer(layer.clone());
    let deep = Router::new().nest("/b", Router::new().nest("/c", guarded()));
    vec![
        ("nest", Router::new().nest("/named", guarded())),
        (
            "nest_service",
            Router::new().nest_service("/named", guarded()),
        ),
        ("fallback", Router::new().nest("/named", fallback)),
        (
            "route_layer",
            Router::new().nest("/named", routes().route_layer(layer.clone())),
        ),
        (
            "merge",
            Router::new()
                .route("/elsewhere", post(async || ""))
                .merge(Router::new().nest("/named", guarded())),
        ),
        (
            "around the nest",
            Router::new().nest("/named", routes()).layer(layer.clone()),
        ),
        ("deep", Router::new().nest("/a", deep)),
    ]
}

#[tokio::test]
async fn two_nests_with_one_layer_share_no_answers() {
    let effects = Arc::new(AtomicUsize::new(0));
    let layer = layer(Policy::default());
    let region = || {
        Router::new()
            .route("/pay", pay(&effects))
            .layer(layer.clone())
    };
    let app = Router::new().nest("/eu", region()).nest("/us", region());
    let (status, _, body) = post_to(&app, "/eu/pay", "k").await;
    assert_eq!((status, &body[..]), (200, "1 /eu/pay /pay"));
    // The same key for another path is another request: rejected, and never answered from the other record.
    let (status, is_replay, body) = post_to(&app, "/us/pay", "k").await;
    assert_eq!((status, is_replay), (422, false), "{body}");
    let (status, _, body) = post_to(&app, "/us/pay", "k-2").await;
    assert_eq!((status, &body[..]), (200, "2 /us/pay /pay"));
    let (_, is_replay, body) = post_to(&app, "/eu/pay", "k").await;
    assert_eq!((is_replay, &body[..]), (true, "1 /eu/pay /pay"));
}

#[tokio::test]
async fn a_rule_for_the_whole_path_is_in_force_wherever_axum_puts_the_layer() {
    for at in 0..7 {
        let effects = Arc::new(AtomicUsize::new(0));
        let policy = match at {
            6 => {
                let mut deep = Operation::new("POST /a/b/c/pay").unwrap();
                deep.required = true;
                Policy::default().with(deep).unwrap()
            }
            _ => named(),
        };
        let layer = layer(policy);
        let (name, app) = placed(&layer, &effects).swap_remove(at);
        let path = if name == "deep" {
            "/a/b/c/pay"
        } else {
            "/named/pay"
        };
        let (status, _, body) = send(&app, request(path, None)).await;
        assert_eq!(status, 400, "{name}: {body}");
        assert!(body.contains("key-missing"), "{name}: {body}");
        assert_eq!(effects.load(Ordering::SeqCst), 0, "{name}");
        let (status, is_replay, first) = post_to(&app, path, "k").await;
        assert_eq!((status, is_replay), (200, false), "{name}: {first}");
        let (_, is_replay, again) = post_to(&app, path, "k").await;
        assert_eq!((is_replay, again), (true, first), "{name}");
        assert_eq!(effects.load(Ordering::SeqCst), 1, "{name}");
    }
}

/// The tenant is a segment of the prefix: the scope has to find it there.
#[tokio::test]
async fn scopes_and_derived_keys_go_by_the_whole_path() {
    for (key, keyed) in [("header:idempotency-key", true), ("derive", false)] {
        let effects = Arc::new(AtomicUsize::new(0));
        let mut tenants = Operation::new("POST /{tenant}/pay").unwrap();
        tenants.key = vec![key.parse().unwrap()];
        tenants.scope = vec!["path:tenant".parse().unwrap()];
        tenants.fingerprint = vec!["body".parse().unwrap()];
        let layer = layer(Policy::new(vec![tenants]).unwrap());
        let routes = Router::new().route("/pay", pay(&effects)).layer(layer);
        let app = Router::new().nest("/{tenant}", routes);
        let key = keyed.then_some("k");
        for (tenant, number) in [("acme", 1), ("emca", 2), ("acme", 1)] {
            let path = format!("/{tenant}/pay");
            let (status, _, body) = send(&app, request(&path, key)).await;
            let expected = format!("{number} {path} /pay");
            assert_eq!((status, body), (200, expected));
        }
    }
}

#[tokio::test]
async fn the_record_of_a_nested_request_is_located_by_its_whole_path() {
    let effects = Arc::new(AtomicUsize::new(0));
    let layer = layer(named());
    let head = |path: &str| -> Parts { request(path, Some("k")).into_parts().0 };
    let mut nested = head("/pay");
    nested
        .extensions
        .insert(OriginalUri("/named/pay".parse().unwrap()));
    let body = "5".into();
    let located = layer.locate(&nested, &body, None).unwrap();
    assert_eq!(located.operation, "POST /named/pay");
    assert_eq!(
        located,
        layer.locate(&head("/named/pay"), &body, None).unwrap()
    );
    let app = Router::new().nest(
        "/named",
        Router::new()
            .route("/pay", pay(&effects))
            .layer(layer.clone()),
    );
    post_to(&app, "/named/pay", "k").await;
    let key = Some(Key::new("k").unwrap());
    let located = layer.locate(&nested, &body, key).unwrap();
    let reading = refrain::Store::read(layer.engine().store(), located.record).await;
    assert!(reading.unwrap().is_some());
}

#[tokio::test]
async fn pages_of_problems_are_served_at_the_address_that_problems_name() {
    let base = "/named/problems/";
    let layer = layer(named()).with_problems(base);
    let routes = Router::new()
        .route("/pay", post(async || ""))
        .fallback(async || "none")
        .layer(layer);
    let app = Router::new().nest("/named", routes);
    let (_, _, problem) = send(&app, request("/named/pay", None)).await;
    assert!(
        problem.contains(&format!("\"{base}key-missing\"")),
        "{problem}"
    );
    let page = Request::get(format!("{base}key-missing")).body(Body::empty());
    let (status, _, body) = send(&app, page.unwrap()).await;
    assert_eq!((status, &body[..]), (200, Code::KeyMissing.page()));
    // The service may have a page of its own there.
    let index = Request::get(base).body(Body::empty());
    let (status, _, body) = send(&app, index.unwrap()).await;
    assert_eq!((status, &body[..]), (200, "none"));
}

/// A router that removes the prefix without noting it; the layer is configured with the prefix.
#[tokio::test]
async fn other_routers_are_served_by_a_hook_or_a_prefix() {
    #[derive(Clone)]
    struct Whole(Uri);
    let hook = |head: &Parts| Some(head.extensions.get::<Whole>()?.0.clone());
    let hooked = layer(named()).with_original_uri(hook);
    let prefixed = layer(named()).under("/named/").unwrap();
    for (name, layer) in [("hook", hooked), ("prefix", prefixed)] {
        let effects = Arc::new(AtomicUsize::new(0));
        // Without a router, nothing records the original URI.
        let mut service = layer.layer(pay(&effects));
        let mut seen = Vec::new();
        for key in [None, Some("k"), Some("k")] {
            let mut stripped = request("/pay?a=1", key);
            stripped
                .extensions_mut()
                .insert(Whole("/named/pay?a=1".parse().unwrap()));
            let response = service.call(stripped).await.unwrap();
            seen.push((
                response.status().as_u16(),
                response.headers().contains_key("idempotent-replayed"),
            ));
        }
        assert_eq!(seen, [(400, false), (200, false), (200, true)], "{name}");
        assert_eq!(effects.load(Ordering::SeqCst), 1, "{name}");
    }
}

/// Collects the warnings of this thread while the guard lives.
fn warnings() -> (tempfile::NamedTempFile, tracing::subscriber::DefaultGuard) {
    let written = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(Arc::new(written.reopen().unwrap()))
        .finish();
    (written, tracing::subscriber::set_default(subscriber))
}

fn lines(written: &tempfile::NamedTempFile) -> Vec<String> {
    let text = std::fs::read_to_string(written).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Routers apply a layer to each of their routes, so a warning must not be repeated.
#[test]
fn rules_out_of_reach_are_reported_once_when_the_layer_is_applied() {
    let (written, _guard) = warnings();
    let policy = named().with(Operation::new("POST /pay").unwrap()).unwrap();
    let layer = layer(policy).under("/named").unwrap();
    let effects = Arc::new(AtomicUsize::new(0));
    let _services = [layer.layer(pay(&effects)), layer.layer(pay(&effects))];
    let lines = lines(&written);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN"), "{lines:?}");
    assert!(lines[0].contains("`POST /pay`"), "{lines:?}");
    assert!(!lines[0].contains("`POST /named/pay`"), "{lines:?}");
}

/// The layer learns axum's prefix from the first request that comes through it.
#[tokio::test]
async fn a_rule_without_the_prefix_of_a_nest_is_reported_at_the_first_request() {
    let stripped = || named().with(Operation::new("POST /pay").unwrap()).unwrap();
    for (at, policy, expected) in [
        (0, stripped(), Some("`/named`")),
        (1, stripped(), Some("`/named`")),
        (2, stripped(), Some("`/named`")),
        (3, stripped(), Some("`/named`")),
        (4, stripped(), Some("`/named`")),
        (6, stripped(), Some("`/a/b/c`")),
        // Outside of the nest the layer sees whole paths, including those of other routes.
        (5, stripped(), None),
        (0, named(), None),
    ] {
        let (written, _guard) = warnings();
        let effects = Arc::new(AtomicUsize::new(0));
        let (name, app) = placed(&layer(policy), &effects).swap_remove(at);
        let path = if name == "deep" {
            "/a/b/c/pay"
        } else {
            "/named/pay"
        };
        for key in ["k-1", "k-2"] {
            assert_eq!(post_to(&app, path, key).await.0, 200, "{name}");
        }
        let lines = lines(&written);
        assert_eq!(
            lines.len(),
            usize::from(expected.is_some()),
            "{name}: {lines:?}"
        );
        if let Some(prefix) = expected {
            assert!(lines[0].contains(prefix), "{name}: {lines:?}");
            assert!(lines[0].contains("`POST /pay`"), "{name}: {lines:?}");
        }
    }
}

#[test]
fn rules_that_apply_to_nothing_below_the_prefix_are_known() {
    let patterns = [
        "POST /named/pay",
        "POST /NAMED/{id}",
        "POST /{any}/pay",
        "POST|PUT /{any}/pay/{id}",
        "POST /named/pay/{id}",
        "POST /named/*",
        "POST /named",
        "POST /*",
        "* *",
        "POST /other/pay",
        "POST /pay",
        "POST /other/*",
        "PUT /",
    ];
    let operations = patterns.map(|pattern| Operation::new(pattern).unwrap());
    let policy = Policy::new(operations.into()).unwrap();
    let check = |prefix: &str, paths: &[&str], expected: &[&str]| {
        let layer = layer(policy.clone()).under(prefix).unwrap();
        let unreached = layer.out_of_reach().map(|it| it.name.clone());
        assert_eq!(unreached.collect::<Vec<_>>(), expected, "{prefix}");
        // The paths match all the other operations, and none of the unreachable ones.
        let find = |method, path| policy.find(method, path).unwrap().operation.name.clone();
        let mut found: Vec<_> = paths
            .iter()
            .flat_map(|path| ["POST", "PUT"].map(|it| find(it, path)))
            .collect();
        found.sort();
        found.dedup();
        let mut others: Vec<_> = patterns
            .into_iter()
            .filter(|it| !expected.contains(it))
            .collect();
        others.sort_unstable();
        assert_eq!(found, others, "{prefix}");
    };
    let named = [
        "/named",
        "/named/pay",
        "/named/7",
        "/named/pay/7",
        "/named/7/pay",
    ];
    let beside = [
        "/",
        "/pay",
        "/other",
        "/other/pay",
        "/other/7",
        "/7/pay",
        "/7",
        "/7/pay/7",
        "/7/8",
    ];
    check(
        "/named",
        &named,
        &[
            "POST /{any}/pay",
            "POST /*",
            "POST /other/pay",
            "POST /pay",
            "POST /other/*",
            "PUT /",
        ],
    );
    check(
        "/{tenant}",
        &[&named[..], &beside[1..]].concat(),
        &["PUT /"],
    );
    check("/", &[&named[..], &beside[..]].concat(), &[]);
    check(
        "/named/pay",
        &["/named/pay", "/named/pay/7", "/named/pay/7/8"],
        &[
            "POST /NAMED/{id}",
            "POST /{any}/pay",
            "POST /named",
            "POST /*",
            "POST /other/pay",
            "POST /pay",
            "POST /other/*",
            "PUT /",
        ],
    );
    assert!(layer(policy.clone()).under("named").is_err());
    assert!(layer(policy.clone()).under("/named/*").is_err());
    assert_eq!(
        layer(policy).out_of_reach().count(),
        0,
        "without a prefix every operation counts as reachable"
    );
}

/// A pattern in another case, or for other methods, does not always take precedence.
#[test]
fn a_rule_is_no_shadow_of_one_that_applies_to_some_requests() {
    let check = |first: Operation, second: Operation, expected: usize| {
        let name = format!("{} {}", first.name, second.name);
        let layer = layer(Policy::new(vec![first, second]).unwrap())
            .under("/named")
            .unwrap();
        assert_eq!(layer.out_of_reach().count(), expected, "{name}");
    };
    let operation = |pattern: &str| Operation::new(pattern).unwrap();
    let exact = |pattern: &str| {
        let mut operation = operation(pattern);
        operation.paths = refrain::policy::Paths::CaseSensitive;
        operation
    };
    check(
        operation("POST /named/pay"),
        operation("POST /{any}/pay"),
        1,
    );
    check(
        operation("POST|PUT /named/pay"),
        operation("POST /{any}/pay"),
        1,
    );
    check(operation("* /named/pay"), operation("POST /{any}/pay"), 1);
    check(exact("POST /named/pay"), exact("POST /{any}/pay"), 1);
    check(operation("PUT /named/pay"), operation("POST /{any}/pay"), 0);
    check(operation("POST /named/pay"), operation("* /{any}/pay"), 0);
    check(
        operation("POST /NAMED/pay"),
        operation("POST /{any}/pay"),
        0,
    );
    check(
        operation("POST /named/Pay"),
        operation("POST /{any}/pay"),
        0,
    );
    check(exact("POST /named/pay"), operation("POST /{any}/pay"), 0);
    check(operation("POST /named/*"), operation("POST /{any}/pay"), 0);
}
